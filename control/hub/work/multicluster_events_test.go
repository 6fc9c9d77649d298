package work

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	networkingv1alpha1 "github.com/pelago-net/pelago/api/networking/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

func TestEventsOfMultiClusterServices(t *testing.T) {
	const applied, dispatched = networkingv1alpha1.ConditionServiceApplied, networkingv1alpha1.ConditionEndpointSliceDispatched
	const yes, no = metav1.ConditionTrue, metav1.ConditionFalse
	for name, c := range map[string]struct {
		kind             string
		status           metav1.ConditionStatus
		unknown          bool
		problem, success string
	}{
		"applied":                       {applied, yes, false, "Reason", "SyncServiceSucceed"},
		"applied, but to a cluster":     {applied, yes, true, "ClusterNotFound", ""},
		"not applied":                   {applied, no, false, "SyncServiceFailed", ""},
		"not applied, also to clusters": {applied, no, true, "SyncServiceFailed", ""},
		"dispatched":                    {dispatched, yes, false, "Reason", "DispatchEndpointSliceSucceed"},
		"not dispatched":                {dispatched, no, true, "DispatchEndpointSliceFailed", ""},
		"not accepted: ours":            {policyv1alpha1.ConditionAccepted, no, false, "Reason", ""},
		"accepted":                      {policyv1alpha1.ConditionAccepted, yes, false, "Reason", ""},
	} {
		problem, success := eventOf(metav1.Condition{Type: c.kind, Status: c.status, Reason: "Reason"}, c.unknown)
		if problem != c.problem || success != c.success {
			t.Errorf("%s: %q, %q, want %q, %q", name, problem, success, c.problem, c.success)
		}
	}
}
