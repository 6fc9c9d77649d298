package work_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/work"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// Karmada: static assignments become ResourceQuotas of their clusters, also of one that
// joins later; the status has what bindings request and what clusters report; what is unassigned,
// or whose FederatedResourceQuota is gone, goes.
func TestFederatedResourceQuota(t *testing.T) {
	h := newServiceHub(t, "quota", "quota-1", "quota-2")
	apiserver.Manager{Scheme: h.Scheme(), Setup: []func(ctrl.Manager) error{work.AddIndexes, func(mgr ctrl.Manager) error {
		return work.SetupQuotas(mgr, "hub", true)
	}}}.Run(t, h.Config)
	cpu := func(n string) corev1.ResourceList { return corev1.ResourceList{"cpu": resource.MustParse(n)} }
	q := &policyv1alpha1.FederatedResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: h.ns, Name: "shop"}, Spec: policyv1alpha1.FederatedResourceQuotaSpec{
		Overall:           corev1.ResourceList{"cpu": resource.MustParse("10"), "requests.memory": resource.MustParse("1Gi"), "limits.cpu": resource.MustParse("20"), "ephemeral-storage": resource.MustParse("1Gi")},
		StaticAssignments: []policyv1alpha1.StaticClusterAssignment{{ClusterName: "quota-1", Hard: cpu("4")}, {ClusterName: "quota-3", Hard: cpu("5")}, {ClusterName: "quota-1", Hard: cpu("9")}}}}
	h.Make(q)
	assigned := func() string {
		h.end()
		var out []string
		for _, w := range h.works() {
			var o struct {
				Kind     string
				Metadata struct{ Name string }
				Spec     struct{ Hard map[string]string }
			}
			if err := json.Unmarshal(w.Spec.Workload.Manifests[0].Raw, &o); err != nil {
				t.Fatal(err)
			}
			out = append(out, fmt.Sprint(strings.TrimPrefix(w.Namespace, "karmada-es-"), " ", o.Kind, " ", o.Metadata.Name, " ", o.Spec.Hard["cpu"]))
		}
		return strings.Join(out, ", ")
	}
	status := func() string {
		if err := h.Get(t.Context(), client.ObjectKeyFromObject(q), q); err != nil {
			t.Fatal(err)
		}
		if n, ok := q.Status.OverallUsed["ephemeral-storage"]; ok {
			t.Errorf("overallUsed has %s of ephemeral-storage, which no workload requests", &n)
		}
		used, memory := q.Status.OverallUsed["cpu"], q.Status.OverallUsed["requests.memory"]
		out := fmt.Sprintf("%s cpu, %s memory", &used, &memory)
		for _, c := range q.Status.AggregatedStatus {
			out += fmt.Sprintf(", %s %s of %s", c.ClusterName, c.Used.Cpu(), c.Hard.Cpu())
		}
		return out
	}
	accepted := func() string {
		status()
		c := meta.FindStatusCondition(q.Status.Conditions, "Accepted")
		if c == nil {
			return ""
		}
		return string(c.Status) + " " + c.Message
	}
	await.Equal(t, "quota-1 ResourceQuota shop 4", assigned)
	await.Equal(t, "0 cpu, 0 memory", status)
	await.Equal(t, "True limits.cpu is not enforced: only requests and pods are; quota-1: only the first of its assignments applies; quota-3: no such cluster has joined", accepted)
	h.join("quota-3")
	await.Equal(t, "quota-1 ResourceQuota shop 4, quota-3 ResourceQuota shop 5", assigned)

	requests := &workv1alpha2.ReplicaRequirements{ResourceRequest: corev1.ResourceList{"cpu": resource.MustParse("500m"), "memory": resource.MustParse("64Mi")}}
	binding := func(name string, change func(*workv1alpha2.ResourceBindingSpec)) *workv1alpha2.ResourceBinding {
		b := &workv1alpha2.ResourceBinding{ObjectMeta: metav1.ObjectMeta{Namespace: h.ns, Name: name}, Spec: workv1alpha2.ResourceBindingSpec{
			Resource: workv1alpha2.ObjectReference{APIVersion: "v1", Kind: "X", Namespace: h.ns, Name: name}}}
		change(&b.Spec)
		return b
	}
	web := binding("web", func(s *workv1alpha2.ResourceBindingSpec) {
		s.ReplicaRequirements, s.Clusters = requests, []workv1alpha2.TargetCluster{{Name: "quota-1", Replicas: 2}, {Name: "quota-2", Replicas: 1}}
	})
	h.Make(web, binding("flink", func(s *workv1alpha2.ResourceBindingSpec) {
		s.Clusters = []workv1alpha2.TargetCluster{{Name: "quota-1"}, {Name: "quota-3"}}
		s.Components = []workv1alpha2.Component{{Name: "manager", Replicas: 1, ReplicaRequirements: requests}, {Name: "worker", Replicas: 3, ReplicaRequirements: requests}}
	}))
	await.Equal(t, "5500m cpu, 704Mi memory", status)
	h.Remove(web)
	await.Equal(t, "4 cpu, 512Mi memory", status)

	report := func(cluster, applied, text string) {
		t.Helper()
		for _, w := range h.works() {
			if w.Namespace != "karmada-es-"+cluster {
				continue
			}
			meta.SetStatusCondition(&w.Status.Conditions, metav1.Condition{Type: workv1alpha1.ConditionApplied, Status: metav1.ConditionStatus(applied), Reason: "Test", Message: "no such namespace"})
			w.Status.ManifestStatuses = []workv1alpha1.ManifestStatus{{Status: &runtime.RawExtension{Raw: []byte(text)},
				Identifier: workv1alpha1.ResourceIdentifier{Version: "v1", Kind: "ResourceQuota", Resource: "resourcequotas", Namespace: h.ns, Name: "shop"}}}
			if err := h.Status().Update(t.Context(), &w); err != nil {
				t.Fatal(err)
			}
		}
	}
	report("quota-1", "True", `{"hard":{"cpu":"4"},"used":{"cpu":"1500m"}}`)
	report("quota-3", "False", `{}`)
	await.Equal(t, "4 cpu, 512Mi memory, quota-1 1500m of 4, quota-3 0 of 0", status)
	await.True(t, "what is not applied is named", func() bool { return strings.Contains(accepted(), "quota-3: no such namespace") })

	q.Spec.StaticAssignments = []policyv1alpha1.StaticClusterAssignment{{ClusterName: "quota-1", Hard: cpu("3")}}
	await.True(t, "the assignments are written", func() bool {
		spec := q.Spec.DeepCopy()
		status()
		q.Spec = *spec
		return h.Update(t.Context(), q) == nil
	})
	await.Equal(t, "quota-1 ResourceQuota shop 3", assigned)
	h.Remove(q)
	await.Equal(t, "", assigned)
	if err := h.DeleteAllOf(context.Background(), &workv1alpha2.ResourceBinding{}, client.InNamespace(h.ns)); err != nil {
		t.Error(err)
	}
}
