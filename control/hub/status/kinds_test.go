package status

import (
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// asked is a discovery that serves apps/v1 and counts questions.
type asked struct {
	discovery.ServerResourcesInterface
	times int
	err   error
}

func (a *asked) ServerResourcesForGroupVersion(gv string) (*metav1.APIResourceList, error) {
	a.times++
	switch {
	case a.err != nil:
		return nil, a.err
	case gv != "apps/v1":
		return nil, apierrors.NewNotFound(schema.GroupResource{}, gv)
	}
	return &metav1.APIResourceList{APIResources: []metav1.APIResource{
		{Name: "deployments", Kind: "Deployment"}, {Name: "deployments/status", Kind: "Deployment"}, {Name: "deployments/scale", Kind: "Scale"},
		{Name: "controllerrevisions", Kind: "ControllerRevision"}}}, nil
}

func TestKindsHaveStatus(t *testing.T) {
	a := &asked{}
	k := &statusKinds{discovery: a, known: map[schema.GroupVersionKind]known{}}
	for _, step := range []struct {
		gvk   schema.GroupVersionKind
		after time.Duration
		want  bool
		times int // questions asked so far
	}{
		{schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, 0, true, 1},
		{schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "ControllerRevision"}, 0, false, 2},
		{schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Scale"}, 0, false, 3},
		{schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Farm"}, 0, false, 4},
		{schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Farm"}, remembered - 1, false, 4},
		{schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, remembered - 1, true, 4},
		{schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, remembered, true, 5},
	} {
		got, err := k.haveStatus(step.gvk, noon.Add(step.after))
		if err != nil || got != step.want || a.times != step.times {
			t.Errorf("%v after %v: %v, %v, %d questions; want %v, %d", step.gvk, step.after, got, err, a.times, step.want, step.times)
		}
	}
	deployments := schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}
	k.forget(deployments)
	a.err = errors.New("away")
	if _, err := k.haveStatus(deployments, noon); err == nil || a.times != 6 {
		t.Errorf("error %v after %d questions, want one at the 6th", err, a.times)
	}
}
