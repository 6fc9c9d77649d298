package main

import (
	"context"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// The whole hub with the rights that `pelago init` gives it: a template becomes a binding, and the
// lease is given back at the end.
func TestRun(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.HubControllers())
	installer, err := manifests.NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := manifests.Propagation(t.Context(), installer, manifests.PropagationOptions{}, t.Logf); err != nil {
		t.Fatal(err)
	}
	as := rest.CopyConfig(cfg)
	as.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + manifests.SystemNamespace + ":" + manifests.HubName,
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + manifests.SystemNamespace, "system:authenticated"}}
	o, err := parse([]string{"--metrics-address=0", "--health-address=0"})
	if err != nil {
		t.Fatal(err)
	}
	mgr, err := open(t.Context(), as, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()

	c := apiserver.Connect(t, cfg, clusterv1alpha1.AddToScheme, policyv1alpha1.AddToScheme, workv1alpha2.AddToScheme)
	meta := metav1.ObjectMeta{Namespace: "default", Name: "web"}
	member := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "m1"},
		Spec: clusterv1alpha1.ClusterSpec{SyncMode: clusterv1alpha1.Pull, ID: "x"}}
	c.Make(member)
	member.Status.APIEnablements = []clusterv1alpha1.APIEnablement{
		{GroupVersion: "v1", Resources: []clusterv1alpha1.APIResource{{Name: "configmaps", Kind: "ConfigMap"}}}}
	member.Status.Conditions = []metav1.Condition{{Type: clusterv1alpha1.ConditionReady, Status: metav1.ConditionTrue,
		Reason: clusterv1alpha1.ReasonClusterReady, LastTransitionTime: metav1.Now()}}
	await.True(t, "the member reports", func() bool { // the hub writes the Cluster, too
		report := member.Status.DeepCopy()
		if c.Get(t.Context(), client.ObjectKeyFromObject(member), member) != nil {
			return false
		}
		member.Status = *report
		return c.Status().Update(t.Context(), member) == nil
	})
	c.Make(&corev1.ConfigMap{ObjectMeta: meta}, &policyv1alpha1.PropagationPolicy{ObjectMeta: meta,
		Spec: policyv1alpha1.PropagationSpec{
			ResourceSelectors: []policyv1alpha1.ResourceSelector{{APIVersion: "v1", Kind: "ConfigMap", Name: "web"}}}})
	await.True(t, "the template has a binding", func() bool {
		return c.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "web-configmap"}, &workv1alpha2.ResourceBinding{}) == nil
	})
	await.True(t, "the member has an execution namespace", func() bool {
		return c.Get(t.Context(), client.ObjectKey{Name: "karmada-es-m1"}, &corev1.Namespace{}) == nil
	})
	stop()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("the hub ends with %v", err)
		}
	case <-time.After(3 * time.Minute):
		t.Fatal("the hub does not end")
	}
	lease := &coordinationv1.Lease{}
	err = c.Get(t.Context(), client.ObjectKey{Namespace: manifests.SystemNamespace, Name: manifests.HubName}, lease)
	if !apierrors.IsNotFound(err) && (err != nil || ptr.Deref(lease.Spec.HolderIdentity, "") != "") {
		t.Errorf("the lease is held by %q after the end: %v", ptr.Deref(lease.Spec.HolderIdentity, ""), err)
	}
}
