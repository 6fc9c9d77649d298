package cluster_test

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/hub/cluster"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// A member that has as many objects of a kind as it may have is named in the ConfigMap that the
// policy pelago-member-count reads, until it has fewer or may have more.
func TestMemberObjectsAreCounted(t *testing.T) {
	h := hub{apiserver.Connect(t, server.Config(t), pelagov1alpha1.AddToScheme)}
	const namespace = config.DefaultBrokerNamespace
	h.Make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	set := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: config.ClustersetConfigMap},
		Data: map[string]string{config.KeySetMemberObjects: "3"}}
	h.Make(set)
	offered := func(id string, i int) *pelagov1alpha1.ServiceContribution {
		return &pelagov1alpha1.ServiceContribution{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint(id, ".shop.s", i), Labels: map[string]string{submarinerv1.LabelClusterID: id}},
			Spec: pelagov1alpha1.ServiceContributionSpec{Cluster: id, Namespace: "shop", Service: fmt.Sprint("s", i),
				Type: pelagov1alpha1.ContributionHeadless, ExportedAt: metav1.Now()}}
	}
	for i := range 3 {
		h.Make(offered("g1", i))
	}
	h.Make(offered("g2", 0))
	registry := prometheus.NewRegistry()
	apiserver.Manager{Scheme: h.Scheme(), Setup: []func(ctrl.Manager) error{func(mgr ctrl.Manager) error {
		return cluster.SetupObjects(mgr, registry)
	}}}.Run(t, h.Config)

	named := func() string {
		if !h.reads(set) {
			t.Fatal("the ConfigMap is gone")
		}
		return set.Annotations[pelagov1alpha1.AnnotationAtLimit]
	}
	await.Equal(t, "g1/servicecontributions", named)
	if n := testutil.CollectAndCount(registry, "pelago_hub_member_objects"); n != 2 {
		t.Errorf("%d series of pelago_hub_member_objects, want one for each of two members", n)
	}
	for i := range 3 {
		h.Make(offered("g2", i+1))
	}
	await.Equal(t, "g1/servicecontributions,g2/servicecontributions", named)
	if err := h.Delete(t.Context(), offered("g1", 0)); err != nil {
		t.Fatal(err)
	}
	await.Equal(t, "g2/servicecontributions", named)
	set.Data[config.KeySetMemberObjects] = "5"
	if err := h.Update(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	await.Equal(t, "", named)
}
