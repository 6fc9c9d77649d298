package work_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/work"
	"github.com/pelago-net/pelago/control/kinds"
)

// A cluster in which both names of the Work are taken stops the ResourceQuotas of no other cluster,
// neither new nor changed nor stale ones.
func TestOneClusterStopsNoQuota(t *testing.T) {
	name := types.NamespacedName{Namespace: "shop", Name: "limits"}
	ref := workv1alpha2.ObjectReference{APIVersion: "v1", Kind: "ResourceQuota", Namespace: name.Namespace, Name: name.Name}
	q := &policyv1alpha1.FederatedResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name, UID: "q1"}}
	assign := func(cpu string, clusters ...string) {
		q.Spec.StaticAssignments = nil
		for _, c := range clusters {
			q.Spec.StaticAssignments = append(q.Spec.StaticAssignments,
				policyv1alpha1.StaticClusterAssignment{ClusterName: c, Hard: corev1.ResourceList{"cpu": resource.MustParse(cpu)}})
		}
	}
	ids := 0
	in := &work.QuotaInput{
		Interpreter: kinds.New(), HubID: "hub", Name: name, Quota: q, Clusters: map[string]*clusterv1alpha1.Cluster{},
		Names: work.Names{Of: ref, Taken: map[types.NamespacedName]bool{}},
		NewID: func() string { ids++; return fmt.Sprint("w", ids) },
	}
	for _, c := range []string{"m1", "m2", "m3", "m4"} {
		in.Clusters[c] = &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: c}}
	}
	assign("1", "m1", "m4")
	in.Works = work.DesiredQuotaWorks(in).Create
	for _, taken := range []string{workv1alpha2.WorkName(ref), workv1alpha2.AlternateWorkName(ref)} {
		in.Names.Taken[types.NamespacedName{Namespace: "karmada-es-m2", Name: taken}] = true
	}
	assign("2", "m2", "m1", "m3")
	plan := work.DesiredQuotaWorks(in)
	clusters := func(works []*workv1alpha1.Work) string {
		var out []string
		for _, w := range works {
			out = append(out, strings.TrimPrefix(w.Namespace, "karmada-es-"))
		}
		return strings.Join(out, " ")
	}
	got := fmt.Sprintf("create %s, update %s, delete %s", clusters(plan.Create), clusters(plan.Update), clusters(plan.Delete))
	if want := "create m3, update m1, delete m4"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	want := "make the Work of the ResourceQuota shop/limits for cluster m2: name the Work: "
	if err := plan.Err(); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("the failure is %v, want it to begin with %q", err, want)
	}
}
