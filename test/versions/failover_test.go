package main

import (
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
	"github.com/pelago-net/pelago/test/hubset"
	"github.com/pelago-net/pelago/test/lab/binaries"
	"github.com/pelago-net/pelago/test/need"
)

// A Deployment goes to the first cluster of its policy, with the override for it, reports its
// status, and goes to the second one when the first one's API server has ended.
func TestFailover(t *testing.T) {
	need.Kubernetes(t)
	bin := t.TempDir()
	for _, name := range []string{"pelago", "pelago-hub"} {
		if err := binaries.Program(t.Context(), "./cmd/"+name, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	s, err := hubset.Open(t.Context(), hubset.Options{Binaries: bin, Dir: t.TempDir(), Real: 2, Workloads: true,
		HubFlags: []string{"--cluster-monitor-grace-period=5s", "--cluster-failover-after=5s"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := s.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	hub := apiserver.Connect(t, s.Server.Config(), policyv1alpha1.AddToScheme)
	meta := metav1.ObjectMeta{Namespace: "default", Name: "web"}
	selectors := []policyv1alpha1.ResourceSelector{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}}
	term := func(name string) policyv1alpha1.ClusterAffinityTerm {
		return policyv1alpha1.ClusterAffinityTerm{AffinityName: name, ClusterAffinity: policyv1alpha1.ClusterAffinity{ClusterNames: []string{name}}}
	}
	labels := map[string]string{"app": "web"}
	hub.Make(
		&policyv1alpha1.OverridePolicy{ObjectMeta: meta, Spec: policyv1alpha1.OverrideSpec{ResourceSelectors: selectors,
			OverrideRules: []policyv1alpha1.RuleWithCluster{{TargetCluster: &policyv1alpha1.ClusterAffinity{ClusterNames: []string{"member1"}},
				Overriders: policyv1alpha1.Overriders{AnnotationsOverrider: []policyv1alpha1.LabelAnnotationOverrider{
					{Operator: policyv1alpha1.OverriderOpAdd, Value: map[string]string{"site": "first"}}}}}}}},
		&policyv1alpha1.PropagationPolicy{ObjectMeta: meta, Spec: policyv1alpha1.PropagationSpec{ResourceSelectors: selectors,
			Placement: policyv1alpha1.Placement{ClusterAffinities: []policyv1alpha1.ClusterAffinityTerm{term("member1"), term("member2")}},
			Failover:  &policyv1alpha1.FailoverBehavior{Cluster: &policyv1alpha1.ClusterFailoverBehavior{}}}},
		&appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](2),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "web"}}}}}},
	)
	ready := func(c *apiserver.Cluster) int32 {
		d := &appsv1.Deployment{}
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "web"}, d); err != nil {
			if !apierrors.IsNotFound(err) {
				t.Log(err)
			}
			return -1
		}
		return d.Status.ReadyReplicas
	}
	first, second := apiserver.Connect(t, s.Members[0].Config), apiserver.Connect(t, s.Members[1].Config)
	await.Equal(t, 2, func() int32 { return ready(first) })
	await.Equal(t, 2, func() int32 { return ready(hub) })
	d := &appsv1.Deployment{}
	if err := first.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "web"}, d); err != nil || d.Annotations["site"] != "first" {
		t.Errorf("annotations %v, %v: want the override's", d.Annotations, err)
	}
	if n := ready(second); n != -1 {
		t.Errorf("the second cluster has %d replicas before the first one has failed", n)
	}
	s.Members[0].Server.KillAPI()
	await.Equal(t, 2, func() int32 { return ready(second) })
}
