package policy_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	searchv1alpha1 "github.com/pelago-net/pelago/api/search/v1alpha1"
	"github.com/pelago-net/pelago/control/hub/policy"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// The conditions follow the clusters: a kind that a member begins to serve is served.
func TestRegistryFollowsClusters(t *testing.T) {
	c := apiserver.Connect(t, server.Config(t), clusterv1alpha1.AddToScheme, searchv1alpha1.AddStoredToScheme)
	apiserver.Manager{Scheme: c.Scheme(), Setup: []func(ctrl.Manager) error{
		func(mgr ctrl.Manager) error { return policy.SetupRegistries(mgr, true) }}}.Run(t, c.Config)
	r := &searchv1alpha1.ResourceRegistry{ObjectMeta: metav1.ObjectMeta{Name: "gadgets"}}
	r.Spec.ResourceSelectors = []searchv1alpha1.ResourceSelector{{APIVersion: "example.com/v1", Kind: "Gadget"}}
	member := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "registry-member"}, Spec: clusterv1alpha1.ClusterSpec{SyncMode: clusterv1alpha1.Pull}}
	c.Make(r, member)
	is := func(status metav1.ConditionStatus) func() bool {
		return func() bool {
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(r), r); err != nil {
				t.Fatal(err)
			}
			served := meta.FindStatusCondition(r.Status.Conditions, searchv1alpha1.ConditionKindsServed)
			return meta.IsStatusConditionTrue(r.Status.Conditions, "Accepted") && served != nil && served.Status == status && served.ObservedGeneration == 1
		}
	}
	await.True(t, "no member serves Gadget", is(metav1.ConditionFalse))
	member.Status.APIEnablements = []clusterv1alpha1.APIEnablement{{GroupVersion: "example.com/v1", Resources: []clusterv1alpha1.APIResource{{Name: "gadgets", Kind: "Gadget"}}}}
	if err := c.Status().Update(t.Context(), member); err != nil {
		t.Fatal(err)
	}
	await.True(t, "a member serves Gadget", is(metav1.ConditionTrue))
	c.Remove(r, member)
}
