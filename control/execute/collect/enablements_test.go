package collect

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
)

// Karmada, conditions: CompleteAPIEnablements True Complete, False Partial or Empty.
func TestEnablements(t *testing.T) {
	core := &metav1.APIResourceList{GroupVersion: "v1", APIResources: []metav1.APIResource{
		{Name: "pods", Kind: "Pod"}, {Name: "pods/log", Kind: "Pod"}, {Name: "configmaps", Kind: "ConfigMap"},
	}}
	apps := &metav1.APIResourceList{GroupVersion: "apps/v1", APIResources: []metav1.APIResource{
		{Name: "deployments", Kind: "Deployment"},
	}}
	former := []clusterv1alpha1.APIEnablement{
		{GroupVersion: "gone.example/v1", Resources: []clusterv1alpha1.APIResource{{Name: "olds", Kind: "Old"}}},
		{GroupVersion: "metrics.k8s.io/v1beta1", Resources: []clusterv1alpha1.APIResource{{Name: "nodes", Kind: "NodeMetrics"}}},
	}
	metrics := &discovery.ErrGroupDiscoveryFailed{Groups: map[schema.GroupVersion]error{
		{Group: "metrics.k8s.io", Version: "v1beta1"}: errors.New("stale"),
		{Group: "custom.example", Version: "v1"}:      errors.New("stale"),
	}}
	for name, tt := range map[string]struct {
		found     []*metav1.APIResourceList
		err       error
		want      string
		condition string
	}{
		"all": {[]*metav1.APIResourceList{core, apps}, nil,
			"apps/v1 deployments=Deployment; v1 configmaps=ConfigMap pods=Pod",
			"True Complete: all kinds that the cluster serves are listed"},
		"a group failed": {[]*metav1.APIResourceList{core}, metrics,
			"metrics.k8s.io/v1beta1 nodes=NodeMetrics; v1 configmaps=ConfigMap pods=Pod",
			"False Partial: the cluster serves these groups, but does not say what is in them: custom.example/v1, metrics.k8s.io/v1beta1"},
		"half an answer": {[]*metav1.APIResourceList{apps}, errors.New("boom"),
			"apps/v1 deployments=Deployment",
			"False Partial: discovery of some of the kinds that the cluster serves failed: boom"},
		"no answer": {nil, errors.New("boom"),
			"gone.example/v1 olds=Old; metrics.k8s.io/v1beta1 nodes=NodeMetrics",
			"False Empty: discovery of the kinds that the cluster serves failed: boom"},
		"nothing": {nil, nil,
			"gone.example/v1 olds=Old; metrics.k8s.io/v1beta1 nodes=NodeMetrics",
			"False Empty: discovery of the kinds that the cluster serves found none"},
	} {
		t.Run(name, func(t *testing.T) {
			list, c := enablements(tt.found, tt.err, former)
			var got []string
			for _, e := range list {
				line := e.GroupVersion
				for _, r := range e.Resources {
					line += " " + r.Name + "=" + r.Kind
				}
				got = append(got, line)
			}
			if text := strings.Join(got, "; "); text != tt.want {
				t.Errorf("listed %s\nwant   %s", text, tt.want)
			}
			if text := fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message); text != tt.condition {
				t.Errorf("condition %s\nwant      %s", text, tt.condition)
			}
		})
	}
}
