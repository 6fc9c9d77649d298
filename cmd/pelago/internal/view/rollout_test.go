package view

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
)

func TestRollout(t *testing.T) {
	state, err := workv1alpha2.Rollout{Revision: "b", Passed: "a", Reason: workv1alpha2.ReasonRolloutStopped, Message: "revision b reaches no further cluster",
		Clusters: map[string]workv1alpha2.RolloutCluster{"m1": {Done: true}, "m2": {Failed: "it is unhealthy"}, "m3": {}, "m4": {Healthy: &metav1.MicroTime{Time: noon}}}}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	b := &workv1alpha2.ResourceBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "nginx-deployment", Annotations: map[string]string{
		policyv1alpha1.AnnotationRollout: `{"order": ["tier=canary"]}`, workv1alpha2.AnnotationRollout: state}}}
	for _, name := range []string{"m1", "m2", "m3", "m4", "m5"} {
		b.Spec.Clusters = append(b.Spec.Clusters, workv1alpha2.TargetCluster{Name: name})
	}
	template := &unstructured.Unstructured{Object: map[string]any{"kind": "Deployment", "metadata": map[string]any{"namespace": "shop", "name": "nginx"}}}
	scheme := runtime.NewScheme()
	if err := workv1alpha2.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(b).Build()
	read := func() *Subject {
		t.Helper()
		now := &workv1alpha2.ResourceBinding{}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(b), now); err != nil {
			t.Fatal(err)
		}
		return &Subject{template: template, binding: binding.Of(now),
			clusters: []clusterv1alpha1.Cluster{{ObjectMeta: metav1.ObjectMeta{Name: "m1", Labels: map[string]string{"tier": "canary"}}}}}
	}
	var out bytes.Buffer
	if err := PrintRollout(&out, read().Rollout(), true); err != nil {
		t.Fatal(err)
	}
	want := []string{"Stopped: revision b reaches no further cluster", "CLUSTER WAVE REVISION STATE WHY", "m1 1 b done", "m2 2 b unhealthy it is unhealthy",
		"m3 2 b applying", "m4 2 b soaking", "m5 2 a waiting"}
	var got []string
	for line := range strings.Lines(out.String()) {
		if text := strings.Join(strings.Fields(line), " "); text != "" {
			got = append(got, text)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}

	resume := func(r *workv1alpha2.Rollout) error {
		r.Resume()
		return nil
	}
	stale := read()
	if err := read().ChangeRollout(t.Context(), c, resume); err != nil {
		t.Fatal(err)
	}
	if _, state := workv1alpha2.ReadRollout(read().binding.GetAnnotations()).In("m2"); state != workv1alpha2.RolloutDone {
		t.Errorf("resumed, m2 is %s", state)
	}
	if err := stale.ChangeRollout(t.Context(), c, resume); err == nil {
		t.Error("a change of another version is accepted")
	}
	refused := errors.New("refused")
	if err := read().ChangeRollout(t.Context(), c, func(*workv1alpha2.Rollout) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("error %v", err)
	}

	without := &Subject{template: template}
	const none = "Deployment nginx has no rollout: set annotation pelago.io/rollout of its policy, which must be valid"
	if err := without.ChangeRollout(t.Context(), c, resume); err == nil || err.Error() != none {
		t.Errorf("without a rollout: %v", err)
	}
	out.Reset()
	if err := PrintRollout(&out, without.Rollout(), false); err != nil || strings.TrimSpace(out.String()) != none {
		t.Errorf("without a rollout: %v, %q", err, out.String())
	}
}
