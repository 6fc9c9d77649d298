package work

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/placement"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/scheduler"
)

// QuotaInput is all that the Works and the status of one FederatedResourceQuota are computed from.
type QuotaInput struct {
	Interpreter *kinds.Interpreter
	HubID       string
	Name        types.NamespacedName
	// Quota is nil if it does not exist or is being deleted.
	Quota *policyv1alpha1.FederatedResourceQuota
	// Clusters are those of static assignments that exist and are not being deleted, by name.
	Clusters map[string]*clusterv1alpha1.Cluster
	// Works that hold a ResourceQuota of this name, those of bindings included.
	Works []*workv1alpha1.Work
	Names Names
	// NewID makes a permanent id.
	NewID func() string
}

// QuotaPlan is what is to be written, in the order of the assignments, and what is reported.
type QuotaPlan struct {
	Writes
	Delete []*workv1alpha1.Work
	// Assigned are the Works of the FederatedResourceQuota that exist, by cluster.
	Assigned map[string]*workv1alpha1.Work
	// Notes are the assignments that have no effect, with the reason.
	Notes []string
}

// DesiredQuotaWorks gives each cluster with a static assignment a ResourceQuota. Works of bindings
// stay as they are: a policy has placed a ResourceQuota of that name there.
func DesiredQuotaWorks(in *QuotaInput) QuotaPlan {
	plan := QuotaPlan{Assigned: map[string]*workv1alpha1.Work{}}
	placed := map[string]bool{}
	for _, w := range in.Works {
		if cluster, ok := workv1alpha2.ClusterOfNamespace(w.Namespace); ok && OfBinding(w) {
			placed[cluster] = true
		} else if ok {
			plan.Assigned[cluster] = w
		}
	}
	works := assigner{interpreter: in.Interpreter, hubID: in.HubID, newID: in.NewID}
	seen := map[string]bool{}
	for _, a := range in.assignments() {
		switch cluster := a.ClusterName; {
		case in.Clusters[cluster] == nil:
			plan.Notes = append(plan.Notes, cluster+": no such cluster has joined")
		case placed[cluster]:
			plan.Notes = append(plan.Notes, cluster+": a policy has placed a ResourceQuota of this name there: remove it from the policy")
		case seen[cluster]:
			plan.Notes = append(plan.Notes, cluster+": only the first of its assignments applies")
		default:
			seen[cluster] = true
			works.assign("the ResourceQuota "+in.Name.String(), cluster, plan.Assigned[cluster], in.Names,
				func() (RenderInput, error) { return in.input(a) })
		}
	}
	plan.Writes = works.Writes
	for _, cluster := range slices.Sorted(maps.Keys(plan.Assigned)) {
		if !seen[cluster] {
			plan.Delete = append(plan.Delete, plan.Assigned[cluster])
		}
	}
	return plan
}

func (in *QuotaInput) assignments() []policyv1alpha1.StaticClusterAssignment {
	if in.Quota == nil {
		return nil
	}
	return in.Quota.Spec.StaticAssignments
}

// input is what the Work of an assignment is made of.
func (in *QuotaInput) input(a policyv1alpha1.StaticClusterAssignment) (RenderInput, error) {
	obj, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: in.Name.Namespace, Name: in.Name.Name, UID: in.Quota.UID},
		Spec:       corev1.ResourceQuotaSpec{Hard: a.Hard}})
	if err != nil {
		return RenderInput{}, err
	}
	delete(obj, "status")
	u := &unstructured.Unstructured{Object: obj}
	u.SetGroupVersionKind(quotaKind)
	return RenderInput{Object: u, Cluster: in.Clusters[a.ClusterName]}, nil
}

// DesiredQuotaStatus is the status of a FederatedResourceQuota: what the bindings of its namespace
// request, and what clusters report of their ResourceQuotas. failure is why a Work could not be
// made or written, nil if all are.
func DesiredQuotaStatus(q *policyv1alpha1.FederatedResourceQuota, bindings []workv1alpha2.ResourceBinding, plan QuotaPlan,
	failure error) policyv1alpha1.FederatedResourceQuotaStatus {
	var used scheduler.Load
	for i := range bindings {
		used.Add(placement.Total(&bindings[i].Spec), 1)
	}
	notes := slices.Clone(plan.Notes)
	status := *q.Status.DeepCopy()
	status.Overall, status.OverallUsed, status.AggregatedStatus = q.Spec.Overall, corev1.ResourceList{}, nil
	for name := range q.Spec.Overall {
		of, ok := placement.Counted(name)
		switch n := used.Amount(of); {
		case !ok:
			notes = append(notes, string(name)+" is not enforced: only requests and pods are")
		case n != 0: // what no workload requests is left out, as in Karmada
			status.OverallUsed[name] = placement.Quantity(of, n)
		}
	}
	for _, cluster := range slices.Sorted(maps.Keys(plan.Assigned)) {
		w := plan.Assigned[cluster]
		if applied := meta.FindStatusCondition(w.Status.Conditions, workv1alpha1.ConditionApplied); applied != nil && applied.Status == metav1.ConditionFalse {
			notes = append(notes, cluster+": "+applied.Message)
		}
		s := policyv1alpha1.ClusterQuotaStatus{ClusterName: cluster}
		if m := w.Status.ManifestStatuses; len(m) == 1 && m[0].Status != nil && json.Unmarshal(m[0].Status.Raw, &s.ResourceQuotaStatus) == nil {
			status.AggregatedStatus = append(status.AggregatedStatus, s)
		}
	}
	slices.Sort(notes)
	accepted := metav1.Condition{Type: policyv1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: policyv1alpha1.ReasonAccepted,
		Message: strings.Join(notes, "; "), ObservedGeneration: q.Generation}
	if failure != nil {
		accepted.Status, accepted.Reason, accepted.Message = metav1.ConditionFalse, policyv1alpha1.ReasonInvalid, failure.Error()
	}
	meta.SetStatusCondition(&status.Conditions, accepted)
	return status
}
