package services

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
)

func TestConditions(t *testing.T) {
	valid := validity{ok: true, reason: "Valid", message: "the Service can be exported"}
	offered := offer{valid: valid, contribution: &v1alpha1.ServiceContribution{}}
	waits := offer{valid: valid, waiting: "no address"}
	partly := offer{valid: valid, contribution: &v1alpha1.ServiceContribution{}, waiting: "1 of 2 pods"}
	unreachable := offer{valid: valid, contribution: &v1alpha1.ServiceContribution{}, waiting: "none of 1", unreachable: true}
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "endpointslices"}, "g2.web", errors.New("outside of the ranges"))
	wasReady := []metav1.Condition{{Type: "Ready", Status: "True", Reason: "Exported", Message: "before"}}

	tests := map[string]struct {
		before  []metav1.Condition
		outcome outcome
		want    []string
	}{
		"published": {nil, outcome{offer: offered, synced: true, published: true}, []string{
			"Valid=True/Valid: the Service can be exported",
			"Ready=True/Exported: Service was successfully exported to the broker",
			"Synced=True/Exported: ServiceImport was successfully synced to the broker",
			"Conflict=False/NoConflicts: all exporting clusters agree",
		}},
		"no Service": {wasReady, outcome{offer: offer{valid: validity{reason: "NoService", message: "none"}}, synced: true, published: true}, []string{
			"Ready=False/Pending: AwaitingExport: the export is not valid",
			"Valid=False/NoService: none",
			"Synced=False/Pending: AwaitingExport: the export is not valid",
			"Conflict=False/NoConflicts: all exporting clusters agree",
		}},
		"waits for its address": {nil, outcome{offer: waits, synced: true, published: true}, []string{
			"Valid=True/Valid: the Service can be exported",
			"Ready=False/Pending: AwaitingExport: no address",
			"Synced=False/Pending: AwaitingExport: no address",
			"Conflict=False/NoConflicts: all exporting clusters agree",
		}},
		"first pods wait for addresses": {nil, outcome{offer: partly, synced: true, published: true}, []string{
			"Valid=True/Valid: the Service can be exported",
			"Ready=False/Pending: AwaitingExport: 1 of 2 pods",
			"Synced=False/Pending: AwaitingExport: 1 of 2 pods",
			"Conflict=False/NoConflicts: all exporting clusters agree",
		}},
		"a later pod takes nothing away": {wasReady, outcome{offer: partly, synced: true, published: true}, []string{
			"Ready=True/Exported: Service was successfully exported to the broker",
			"Valid=True/Valid: the Service can be exported",
			"Synced=True/Exported: ServiceImport was successfully synced to the broker",
			"Conflict=False/NoConflicts: all exporting clusters agree",
		}},
		"no endpoint is reachable any more": {wasReady, outcome{offer: unreachable, synced: true, published: true}, []string{
			"Ready=False/Pending: AwaitingExport: none of 1",
			"Valid=True/Valid: the Service can be exported",
			"Synced=False/Pending: AwaitingExport: none of 1",
			"Conflict=False/NoConflicts: all exporting clusters agree",
		}},
		"hub unknown since the start": {nil, outcome{offer: offered}, []string{
			"Valid=True/Valid: the Service can be exported",
			"Ready=False/Pending: AwaitingExport: the hub could not be reached since the agent started",
			"Synced=False/Pending: AwaitingExport: the hub could not be reached since the agent started",
		}},
		"hub unknown since the start, ready before": {wasReady, outcome{offer: offered}, []string{
			"Ready=True/Exported: before",
			"Valid=True/Valid: the Service can be exported",
		}},
		"hub away": {nil, outcome{offer: offered, synced: true, err: errors.New("read tcp 127.0.0.1:54321: broken")}, []string{
			"Valid=True/Valid: the Service can be exported",
			"Ready=False/Failed: ExportFailed: the hub cannot be reached",
			"Synced=False/Failed: ExportFailed: the hub cannot be reached",
			"Conflict=False/NoConflicts: all exporting clusters agree",
		}},
		"refused by the hub": {nil, outcome{offer: offered, synced: true, err: fmt.Errorf("create EndpointSlice: %w", refused)}, []string{
			"Valid=True/Valid: the Service can be exported",
			`Ready=False/Failed: ExportFailed: create EndpointSlice: endpointslices "g2.web" is forbidden: outside of the ranges`,
			`Synced=False/Failed: ExportFailed: create EndpointSlice: endpointslices "g2.web" is forbidden: outside of the ranges`,
			"Conflict=False/NoConflicts: all exporting clusters agree",
		}},
		"conflicts": {nil, outcome{offer: offered, synced: true, published: true, conflicts: []MergeConflict{
			{Reason: "TypeConflict", Message: "type"}, {Reason: "PortConflict", Message: "ports"}}}, []string{
			"Valid=True/Valid: the Service can be exported",
			"Ready=True/Exported: Service was successfully exported to the broker",
			"Synced=True/Exported: ServiceImport was successfully synced to the broker",
			"Conflict=True/TypeConflict,PortConflict: type; ports",
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			e := exported()
			e.Status.Conditions = tt.before
			var got []string
			for _, c := range conditions(e, tt.outcome) {
				got = append(got, fmt.Sprintf("%s=%s/%s: %s", c.Type, c.Status, c.Reason, c.Message))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// A message that the API server refuses as too long would hide all conditions.
func TestLongMessages(t *testing.T) {
	long := strings.Repeat("é", 40_000)
	e := exported()
	e.Spec.ExportedLabels = map[string]string{"tier": "secret" + long}
	for i := range 2000 {
		e.Spec.ExportedLabels[fmt.Sprintf("-%d", i)] = ""
	}
	offers := []offer{
		plain.desired(state{export: e, service: service("10.77.0.5")}),
		{valid: validity{ok: true, reason: "Valid"}, waiting: long},
		{valid: validity{ok: true, reason: "Valid"}, contribution: &v1alpha1.ServiceContribution{}},
	}
	if offers[0].valid.ok || strings.Contains(offers[0].valid.message, "secret") {
		t.Errorf("Valid is %t, %.200q…", offers[0].valid.ok, offers[0].valid.message)
	}
	for _, o := range offers {
		for _, c := range conditions(e, outcome{
			offer: o, synced: true, err: errors.New(long), conflicts: []MergeConflict{{Reason: "TypeConflict", Message: long}},
			vip: &metav1.Condition{Type: "ClusterSetIP", Status: metav1.ConditionFalse, Reason: "Exhausted", Message: long},
		}) {
			if n := utf8.RuneCountInString(c.Message); n > 1024 || n == 1024 && !strings.HasSuffix(c.Message, "…") {
				t.Errorf("%s: %d characters, %.40q…", c.Type, n, c.Message)
			}
		}
	}
}

func TestConditionsCarryTheGenerationThatTheySpeakOf(t *testing.T) {
	for _, c := range conditions(exported(), outcome{offer: offer{valid: validity{ok: true, reason: "Valid"}}, synced: true}) {
		if c.ObservedGeneration != 3 || c.LastTransitionTime.IsZero() {
			t.Errorf("condition %+v", c)
		}
	}
}
