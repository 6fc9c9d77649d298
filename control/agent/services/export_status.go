package services

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/hubclient"
)

// Messages by which users and scripts recognize that an export is complete.
const (
	messageReady  = "Service was successfully exported to the broker"
	messageSynced = "ServiceImport was successfully synced to the broker"
)

// maxMessage bounds the message of a condition, in characters. A status with one of more than
// 32,768 is refused as a whole.
const maxMessage = 1024

// outcome is what came of publishing an offer.
type outcome struct {
	offer offer
	// synced reports whether the state of the hub is known at all.
	synced bool
	// published reports whether the hub has the offered contribution and all slices; err is why
	// not.
	published bool
	err       error
	// vip is the condition ClusterSetIP; nil: the export has none.
	vip *metav1.Condition
	// conflicts between all contributions to the service, if this one is among them.
	conflicts []MergeConflict
}

// conditions returns the conditions of an export; present ones stay where nothing new is known.
func conditions(export *mcs.ServiceExport, o outcome) []metav1.Condition {
	status := mcs.ServiceExportStatus{Conditions: append([]metav1.Condition(nil), export.Status.Conditions...)}
	set := func(kind string, ok bool, reason mcs.ServiceExportConditionReason, message string) {
		if runes := []rune(message); len(runes) > maxMessage {
			message = string(runes[:maxMessage-1]) + "…"
		}
		c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: string(reason), Message: message, ObservedGeneration: export.Generation}
		if ok {
			c.Status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&status.Conditions, c)
	}
	set(string(mcs.ServiceExportConditionValid), o.offer.valid.ok, o.offer.valid.reason, o.offer.valid.message)

	wasReady := meta.IsStatusConditionTrue(status.Conditions, string(mcs.ServiceExportConditionReady))
	ok, reason, message, known := readiness(o, wasReady)
	if known {
		set(string(mcs.ServiceExportConditionReady), ok, reason, message)
		if ok {
			message = messageSynced
		}
		set(submarinerv1.ConditionSynced, ok, reason, message)
	}
	if o.synced {
		if o.vip == nil {
			meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionClusterSetIP)
		} else {
			set(o.vip.Type, o.vip.Status == metav1.ConditionTrue, mcs.ServiceExportConditionReason(o.vip.Reason), o.vip.Message)
		}
		if len(o.conflicts) > 0 {
			set(string(mcs.ServiceExportConditionConflict), true, mcs.ServiceExportConditionReason(ConflictReasons(o.conflicts)), ConflictMessages(o.conflicts))
		} else {
			set(string(mcs.ServiceExportConditionConflict), false, mcs.ServiceExportReasonNoConflicts, "all exporting clusters agree")
		}
	}
	return status.Conditions
}

// readiness decides condition Ready; known is false where what was said before stays.
func readiness(o outcome, wasReady bool) (ok bool, reason mcs.ServiceExportConditionReason, message string, known bool) {
	pending := func(why string) (bool, mcs.ServiceExportConditionReason, string, bool) {
		return false, mcs.ServiceExportReasonPending, "AwaitingExport: " + why, true
	}
	switch {
	case !o.offer.valid.ok:
		return pending("the export is not valid")
	case o.offer.contribution == nil:
		return pending(o.offer.waiting)
	case !o.synced && wasReady:
		return false, "", "", false
	case !o.synced:
		return pending("the hub could not be reached since the agent started")
	case !o.published && hubclient.IsUnreachable(o.err):
		return false, mcs.ServiceExportReasonFailed, "ExportFailed: the hub cannot be reached", true
	case !o.published:
		return false, mcs.ServiceExportReasonFailed, "ExportFailed: " + o.err.Error(), true
	case o.offer.waiting != "" && (o.offer.unreachable || !wasReady):
		// an address that an endpoint does not have yet does not make a ready export unready
		return pending(o.offer.waiting)
	}
	return true, mcs.ServiceExportReasonExported, messageReady, true
}
