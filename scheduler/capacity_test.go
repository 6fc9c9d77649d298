package scheduler

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
)

func resources(pairs ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}

func added(l, other Load, times int64) Load {
	l.Add(other, times)
	return l
}

func TestRoom(t *testing.T) {
	summary := func(s clusterv1alpha1.ResourceSummary, models ...clusterv1alpha1.ResourceModel) *clusterv1alpha1.Cluster {
		return &clusterv1alpha1.Cluster{Spec: clusterv1alpha1.ClusterSpec{ResourceModels: models}, Status: clusterv1alpha1.ClusterStatus{ResourceSummary: &s}}
	}
	model := func(grade uint, minimum string) clusterv1alpha1.ResourceModel {
		return clusterv1alpha1.ResourceModel{Grade: grade, Ranges: []clusterv1alpha1.ResourceModelRange{{Name: "cpu", Min: resource.MustParse(minimum)}}}
	}
	free := clusterv1alpha1.ResourceSummary{
		Allocatable: resources("cpu", "10", "memory", "16Gi", "pods", "110"),
		Allocated:   resources("cpu", "2500m", "pods", "10"), Allocating: resources("cpu", "500m", "pods", "1"),
	}
	modelled := free
	modelled.AllocatableModelings = []clusterv1alpha1.AllocatableModeling{{Grade: 0, Count: 9}, {Grade: 1, Count: 2}, {Grade: 2, Count: 1}, {Grade: 7, Count: 5}}
	grades := []clusterv1alpha1.ResourceModel{model(0, "0"), model(1, "1"), model(2, "2")}
	beyond := clusterv1alpha1.ResourceSummary{
		Allocatable: resources("cpu", "10", "pods", "110"), Allocated: resources("cpu", "9P"), Allocating: resources("cpu", "9P"),
	}
	full := clusterv1alpha1.ResourceSummary{Allocatable: resources("cpu", "10", "pods", "5"), Allocated: resources("cpu", "1", "pods", "7")}
	for name, c := range map[string]struct {
		cluster *clusterv1alpha1.Cluster
		assumed Load
		request corev1.ResourceList
		want    int64
	}{
		"nothing is reported":                   {cluster: &clusterv1alpha1.Cluster{}, request: resources("cpu", "1")},
		"no request: pods":                      {cluster: summary(free), want: 99},
		"the scarcest resource":                 {cluster: summary(free), request: resources("cpu", "500m", "memory", "2Gi"), want: 8},
		"thousandths of a core":                 {cluster: summary(free), request: resources("cpu", "70m"), want: 99},
		"a resource that is not there":          {cluster: summary(free), request: resources("example.com/gpu", "1")},
		"a request of nothing":                  {cluster: summary(free), request: resources("example.com/gpu", "0"), want: 99},
		"more pods than allowed":                {cluster: summary(full), request: resources("cpu", "1")},
		"what was decided since":                {cluster: summary(free), assumed: LoadOf(resources("cpu", "1"), 3), request: resources("cpu", "1"), want: 4},
		"twice":                                 {cluster: summary(free), assumed: added(LoadOf(resources("cpu", "1"), 3), LoadOf(resources("memory", "0"), 5), 19), request: resources("cpu", "1m"), want: 1},
		"more was decided than a number holds":  {cluster: summary(free), assumed: LoadOf(resources("cpu", "1P"), 10), request: resources("cpu", "1")},
		"twice more":                            {cluster: summary(free), assumed: added(Load{}, LoadOf(resources("cpu", "9P"), 1), 3), request: resources("cpu", "1")},
		"a request of more":                     {cluster: summary(free), request: resources("cpu", "10P")},
		"pods request more":                     {cluster: summary(beyond), request: resources("cpu", "1")},
		"pods request more, and so was decided": {cluster: summary(beyond), assumed: LoadOf(resources("cpu", "1P"), 10), request: resources("cpu", "1")},
		"models, and more was decided":          {cluster: summary(modelled, grades...), assumed: LoadOf(resources("cpu", "1P"), 10), request: resources("cpu", "10m")},
		"nodes by their lower bounds":           {cluster: summary(modelled, grades...), request: resources("cpu", "1"), want: 4},
		"nodes that are too small":              {cluster: summary(modelled, grades...), request: resources("cpu", "3")},
		"nodes, half of a core":                 {cluster: summary(modelled, grades...), request: resources("cpu", "500m"), want: 8},
		"a resource that is not modelled":       {cluster: summary(modelled, grades...), request: resources("memory", "4Gi"), want: 4},
		"models, and what was decided since":    {cluster: summary(modelled, grades...), assumed: LoadOf(resources("cpu", "1"), 3), request: resources("cpu", "1"), want: 1},
		"models, and larger ones since":         {cluster: summary(modelled, grades...), assumed: LoadOf(resources("cpu", "3"), 1), request: resources("cpu", "1"), want: 1},
		"models, and smaller ones since":        {cluster: summary(modelled, grades...), assumed: LoadOf(resources("cpu", "10m"), 2), request: resources("cpu", "1"), want: 2},
		"models, and too many since":            {cluster: summary(modelled, grades...), assumed: LoadOf(resources("cpu", "10m"), 9), request: resources("cpu", "1")},
	} {
		if got := capacityOf(c.cluster, c.assumed).replicas(LoadOf(c.request, 1).Amounts); got != c.want {
			t.Errorf("%s: %d replicas, want %d", name, got, c.want)
		}
	}
}
