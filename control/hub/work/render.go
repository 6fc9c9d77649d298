package work

import (
	"encoding/json"
	"fmt"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/policy"
	"github.com/pelago-net/pelago/control/kinds"
)

// RenderInput is what a Work is made of.
type RenderInput struct {
	// Object is the hub's, with the cluster's share of replicas. It is not changed.
	Object    *unstructured.Unstructured
	Cluster   *clusterv1alpha1.Cluster
	Overrides policy.OverridePolicies
	// Name and ID of the Work; HubID of the hub.
	Name, ID, HubID string
	// Labels and Annotations go onto the Work and onto the object in it: the binding's and the
	// policy's.
	Labels, Annotations map[string]string
	// Conflict is the policy's; the object's own annotation goes before it. Empty: abort.
	Conflict policyv1alpha1.ConflictResolution
	// Template is the hash of the object that the Work is made of, where one is kept; it goes onto
	// the Work alone.
	Template string
	// Revision and Kept are AnnotationRevision and AnnotationKeptRevision of the Work; empty: it has
	// none.
	Revision, Kept string
	// MemberOwned are the fields that the policy leaves to the member, as AnnotationMemberOwned
	// lists them; those of the object are added.
	MemberOwned string
	// Applied are the annotations of overrides that Object has already.
	Applied map[string]string
	// SuspendDispatching and PreserveResourcesOnDeletion are those of the Work.
	SuspendDispatching, PreserveResourcesOnDeletion *bool
}

// OverrideError reports that the overrides cannot be applied; it names policy, rule and field.
type OverrideError struct{ Err error }

func (e *OverrideError) Error() string { return "apply the overrides: " + e.Err.Error() }
func (e *OverrideError) Unwrap() error { return e.Err }

// Render makes the Work of one cluster, and returns the override rules that were skipped. An
// *OverrideError comes from an override policy, any other from the interpreter.
func Render(interpreter *kinds.Interpreter, in RenderInput) (*workv1alpha1.Work, []policy.SkippedRule, error) {
	obj, applied, err := policy.ApplyOverrides(in.Object, in.Cluster, in.Overrides)
	if err != nil {
		return nil, nil, &OverrideError{err}
	}
	left, err := interpreter.PruneOverridden(obj, in.Object)
	if err != nil {
		return nil, nil, err
	}
	leave(obj, left)
	work := &workv1alpha1.Work{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: workv1alpha2.ExecutionNamespace(in.Cluster.Name), Name: in.Name,
			Labels: maps.Clone(in.Labels), Finalizers: []string{workv1alpha1.FinalizerExecution},
		},
		Spec: workv1alpha1.WorkSpec{
			SuspendDispatching: in.SuspendDispatching, PreserveResourcesOnDeletion: in.PreserveResourcesOnDeletion,
		},
	}
	if work.Labels == nil {
		work.Labels = map[string]string{}
	}
	work.Labels[workv1alpha1.LabelWorkID] = in.ID
	if work.Annotations, err = applied.Annotations(); err != nil {
		return nil, nil, err
	}
	maps.Copy(work.Annotations, in.Applied)
	maps.Copy(work.Annotations, in.Annotations)
	if in.MemberOwned != "" {
		work.Annotations[policyv1alpha1.AnnotationMemberOwned] = in.MemberOwned
	}
	if in.Template != "" {
		work.Annotations[workv1alpha2.AnnotationTemplate] = in.Template
	}
	if in.Revision != "" {
		work.Annotations[workv1alpha2.AnnotationRevision] = in.Revision
	}
	if in.Kept != "" {
		work.Annotations[workv1alpha2.AnnotationKeptRevision] = in.Kept
	}
	mark(obj, work, in)
	raw, err := json.Marshal(obj.Object)
	if err != nil {
		return nil, nil, fmt.Errorf("write the manifest of %s %s: %w", obj.GetKind(), obj.GetName(), err)
	}
	work.Spec.Workload.Manifests = []workv1alpha1.Manifest{{RawExtension: runtime.RawExtension{Raw: raw}}}
	return work, applied.Skipped, nil
}
