package execute

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/kube"
)

// statusInterval is the minimum between two status writes of one Work, so that a rollout does not
// flood the hub.
const statusInterval = 100 * time.Millisecond

// found is the result of one manifest.
type found struct {
	*task
	object *unstructured.Unstructured // of the manifest; nil if it cannot be read
	want   *desired                   // nil: nothing is applied
	have   *unstructured.Unstructured // ours in the member; nil: none
	err    error
	// kept keeps the reported state of the object: the member was not read, or has not responded.
	kept    bool
	failure string // "": applied
	dropped []string
	// removed: the Work no longer holds it, and it is to be deleted.
	removed bool
}

// merged is the result of all manifests. The messages of several are numbered.
func merged(all []found) outcome {
	o := outcome{found: all, kept: true}
	var failures []string
	for i, f := range all {
		o.kept = o.kept && f.kept
		at := ""
		if len(all) > 1 && !f.removed {
			at = fmt.Sprintf("manifest %d: ", i)
		}
		if f.failure != "" {
			failures = append(failures, at+f.failure)
		}
		for _, field := range f.dropped {
			o.dropped = append(o.dropped, at+field)
		}
	}
	o.failure = truncate(strings.Join(failures, "; "))
	return o
}

// outcome is the result of a reconcile.
type outcome struct {
	found []found
	// kept keeps the reported state of all objects.
	kept      bool
	failure   string // "": applied
	dropped   []string
	suspended bool
	// scaling is the answer to AnnotationScaling.
	scaling *workv1alpha1.ScalingStatus
	// unschedulable are pods of the object; nil: none.
	unschedulable *workv1alpha1.UnschedulablePods
	// uninterpreted are the errors of rules of the kind; "": none.
	uninterpreted string
}

// statusOf returns the desired status of a Work; observed are the statuses of its objects.
func statusOf(work *workv1alpha1.Work, o outcome, observed []workv1alpha1.ManifestStatus) workv1alpha1.WorkStatus {
	status := *work.Status.DeepCopy()
	status.Scaling, status.Unschedulable = o.scaling, o.unschedulable
	set := func(kind string, holds bool, yes, no, message string) {
		c := metav1.Condition{
			Type: kind, Status: metav1.ConditionTrue, Reason: yes, Message: message, ObservedGeneration: work.Generation,
		}
		if !holds {
			c.Status, c.Reason = metav1.ConditionFalse, no
		}
		meta.SetStatusCondition(&status.Conditions, c)
	}
	if o.suspended {
		set(workv1alpha1.ConditionDispatching, false, "", workv1alpha1.ReasonSuspendDispatching,
			workv1alpha1.MessageSuspendDispatching)
	} else {
		set(workv1alpha1.ConditionDispatching, true, workv1alpha1.ReasonDispatching, "", workv1alpha1.MessageDispatching)
		applied := "the manifest is applied"
		if n := len(work.Spec.Workload.Manifests); n > 1 {
			applied = fmt.Sprintf("all %d manifests are applied", n)
		}
		if o.failure != "" {
			applied = o.failure
		}
		set(workv1alpha1.ConditionApplied, o.failure == "",
			workv1alpha1.ReasonAppliedSuccessful, workv1alpha1.ReasonAppliedFailed, applied)
		if len(o.dropped) > 0 {
			names := slices.Clone(o.dropped)
			slices.Sort(names)
			set(workv1alpha1.ConditionFieldsDropped, true, workv1alpha1.ReasonFieldsDropped, "",
				"the cluster does not know these fields, and runs without them: "+strings.Join(names, ", "))
		} else if o.failure == "" {
			meta.RemoveStatusCondition(&status.Conditions, workv1alpha1.ConditionFieldsDropped)
		}
	}
	switch {
	case o.uninterpreted != "":
		set(workv1alpha1.ConditionInterpreted, false, "", workv1alpha1.ReasonRuleFailed, o.uninterpreted)
	case !o.kept:
		meta.RemoveStatusCondition(&status.Conditions, workv1alpha1.ConditionInterpreted)
	}
	switch {
	case len(observed) > 0:
		status.ManifestStatuses = observed
	case !o.kept:
		status.ManifestStatuses = nil
	}
	return status
}

// report writes the status of the Work if it changes, statusInterval after the last write at the
// earliest. requeue is the time until the next reconcile; 0: the next event.
func (t *task) report(ctx context.Context, o outcome, requeue time.Duration) (reconcile.Result, error) {
	next := reconcile.Result{RequeueAfter: requeue}
	wait := func(left time.Duration) reconcile.Result {
		if requeue == 0 || left < requeue {
			return reconcile.Result{RequeueAfter: left}
		}
		return next
	}
	now := time.Now()
	observed, err := t.reflect(&o)
	if err != nil {
		return next, err
	}
	status := statusOf(t.work, o, observed)
	if equality.Semantic.DeepEqual(status, t.work.Status) {
		return next, nil
	}
	if left := statusInterval - now.Sub(t.statusVersions.LastWrite(t.work.Name)); left > 0 {
		return wait(left), nil
	}
	for i := range observed {
		changed := o.found[observed[i].Identifier.Ordinal].state.changedAt
		if left := t.o.Seen - now.Sub(changed); left > 0 && o.failure == "" && unobserved(&observed[i]) {
			return wait(left), nil
		}
	}
	if t.fresh() != nil {
		return reconcile.Result{RequeueAfter: minRetry}, nil
	}
	// Without the manifest, the largest part of a Work, which the patch does not contain.
	before := &workv1alpha1.Work{ObjectMeta: metav1.ObjectMeta{Namespace: t.work.Namespace, Name: t.work.Name, UID: t.work.UID,
		ResourceVersion: t.work.ResourceVersion}, Status: t.work.Status}
	after := before.DeepCopy()
	after.Status = status
	version, err := t.patch(ctx, before, after)
	switch {
	case apierrors.IsConflict(err):
		// Stale cache: the status is computed again from what it will show, so no outdated one is
		// written.
		return reconcile.Result{RequeueAfter: statusInterval}, nil
	case apierrors.IsNotFound(err):
		return reconcile.Result{}, nil
	case err != nil:
		return next, fmt.Errorf("write the status of Work %s: %w", t.key(), err)
	}
	t.work.ResourceVersion, t.work.Status = version, status
	after.ResourceVersion = version
	t.statuses.put(t.work.Name, after)
	t.statusVersions.Expect(t.work.Name, version, time.Now())
	t.recordEvents(before, o)
	return next, nil
}

// patch writes a status over the version of before and returns the new version. The response does
// not contain the manifest.
func (t *task) patch(ctx context.Context, before, after *workv1alpha1.Work) (version string, err error) {
	change, err := kube.MergeFrom(before).Data(after)
	if err != nil {
		return "", err
	}
	answer := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: before.Namespace, Name: before.Name}}
	answer.SetGroupVersionKind(workv1alpha1.GroupVersion.WithKind("Work"))
	err = t.o.Hub.Status().Patch(ctx, answer, client.RawPatch(types.MergePatchType, change))
	return answer.ResourceVersion, err
}

// unobserved reports whether the member's controller has yet to observe the generation; false for
// kinds without observedGeneration.
func unobserved(observed *workv1alpha1.ManifestStatus) bool {
	if observed.Status == nil {
		return false
	}
	var of struct{ Generation, ObservedGeneration int64 }
	return json.Unmarshal(observed.Status.Raw, &of) == nil && of.ObservedGeneration < of.Generation
}

// recordEvents records Events for changed conditions.
func (t *task) recordEvents(before *workv1alpha1.Work, o outcome) {
	changed := func(kind string) (string, bool) {
		is, was := meta.FindStatusCondition(t.work.Status.Conditions, kind), meta.FindStatusCondition(before.Status.Conditions, kind)
		if is == nil || was != nil && was.Status == is.Status && was.Message == is.Message {
			return "", false
		}
		return is.Message, true
	}
	if message, ok := changed(workv1alpha1.ConditionApplied); ok && o.failure != "" {
		t.o.Recorder.Event(t.work, corev1.EventTypeWarning, workv1alpha2.EventSyncFailed, message)
	} else if ok && t.o.AllEvents {
		t.o.Recorder.Event(t.work, corev1.EventTypeNormal, workv1alpha2.EventSyncSucceed, message)
	}
	if t.o.AllEvents {
		t.recordSuccess(before, o, changed)
	}
	if message, ok := changed(workv1alpha1.ConditionFieldsDropped); ok {
		t.o.Recorder.Event(t.work, corev1.EventTypeWarning, workv1alpha1.ReasonFieldsDropped, message)
	}
	if message, ok := changed(workv1alpha1.ConditionDispatching); ok && (o.suspended || t.o.AllEvents || len(before.Status.Conditions) > 0) {
		t.o.Recorder.Event(t.work, corev1.EventTypeNormal, workv1alpha2.EventWorkDispatching, message)
	}
}

// recordSuccess records Karmada's Events about successes: statuses and health on the Work; what was
// applied and whether it is dispatched on the templates at the hub.
func (t *task) recordSuccess(before *workv1alpha1.Work, o outcome, changed func(condition string) (string, bool)) {
	success := func(on client.Object, reason, message string) {
		t.o.Recorder.Event(on, corev1.EventTypeNormal, reason, message)
	}
	for i := range t.work.Status.ManifestStatuses {
		s := &t.work.Status.ManifestStatuses[i]
		j := slices.IndexFunc(before.Status.ManifestStatuses, func(b workv1alpha1.ManifestStatus) bool {
			return b.Identifier == s.Identifier
		})
		name := s.Identifier.Kind + " " + s.Identifier.Name
		if s.Status != nil && (j < 0 || !equality.Semantic.DeepEqual(s.Status, before.Status.ManifestStatuses[j].Status)) {
			success(t.work, workv1alpha2.EventReflectStatusSucceed, "the status of "+name+" is read")
		}
		if s.Health != workv1alpha1.ResourceUnknown && (j < 0 || s.Health != before.Status.ManifestStatuses[j].Health) {
			success(t.work, workv1alpha2.EventInterpretHealthSucceed, fmt.Sprintf("%s is %s", name, s.Health))
		}
	}
	applied, isNew := changed(workv1alpha1.ConditionApplied)
	dispatching, switched := changed(workv1alpha1.ConditionDispatching)
	for _, f := range o.found {
		if f.object == nil || f.object.GetAnnotations()[workv1alpha2.AnnotationTemplateUID] == "" {
			continue // a user's Work has no template
		}
		template := ofKind(f.object.GroupVersionKind())
		template.SetNamespace(f.object.GetNamespace())
		template.SetName(f.object.GetName())
		template.SetUID(types.UID(f.object.GetAnnotations()[workv1alpha2.AnnotationTemplateUID]))
		if isNew && o.failure == "" && !o.suspended {
			success(template, workv1alpha2.EventSyncSucceed, "cluster "+t.o.Cluster+": "+applied)
		}
		if switched {
			success(template, workv1alpha2.EventWorkDispatching, "cluster "+t.o.Cluster+": "+dispatching)
		}
	}
}

// reflect reads status and health of the objects. If a rule fails, the last reported status is
// kept.
func (t *task) reflect(o *outcome) (all []workv1alpha1.ManifestStatus, err error) {
	var failures []string
	for i, f := range o.found {
		reported := slices.IndexFunc(t.work.Status.ManifestStatuses, func(s workv1alpha1.ManifestStatus) bool {
			return f.object != nil && s.Identifier.Kind == f.object.GetKind() &&
				s.Identifier.Group == f.object.GroupVersionKind().Group && s.Identifier.Namespace == f.object.GetNamespace() && s.Identifier.Name == f.object.GetName()
		})
		var before *workv1alpha1.ManifestStatus
		if reported >= 0 {
			before = t.work.Status.ManifestStatuses[reported].DeepCopy()
			before.Identifier.Ordinal = i
		}
		switch {
		case f.have != nil:
			one, failed, err := t.reflectOne(f.have, i, before)
			if err != nil {
				return nil, err
			}
			all, failures = append(all, one), append(failures, failed...)
		case before != nil && (f.kept || f.removed && f.err != nil):
			all = append(all, *before)
		}
	}
	o.uninterpreted = strings.Join(failures, "; ")
	return all, nil
}

func (t *task) reflectOne(have *unstructured.Unstructured, ordinal int, before *workv1alpha1.ManifestStatus) (
	observed workv1alpha1.ManifestStatus, failures []string, err error,
) {
	kind := have.GroupVersionKind()
	mapping, err := t.member.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return observed, nil, fmt.Errorf("look up %s in cluster %s: %w", kind, t.o.Cluster, err)
	}
	observed.Identifier = workv1alpha1.ResourceIdentifier{
		Ordinal: ordinal, Group: kind.Group, Version: kind.Version, Kind: kind.Kind, Resource: mapping.Resource.Resource,
		Namespace: have.GetNamespace(), Name: have.GetName(),
	}
	if observed.Status, err = t.o.Interpreter.ReflectStatus(have); err != nil {
		if before != nil && before.Identifier == observed.Identifier {
			observed.Status = before.Status
		}
		failures = append(failures, err.Error())
		t.o.Recorder.Event(t.work, corev1.EventTypeWarning, workv1alpha2.EventReflectStatusFailed, truncate(err.Error()))
	}
	health, err := t.o.Interpreter.Health(have)
	if err != nil {
		failures = append(failures, err.Error())
		t.o.Recorder.Event(t.work, corev1.EventTypeWarning, workv1alpha2.EventInterpretHealthFailed, truncate(err.Error()))
	}
	observed.Health = workv1alpha1.ResourceHealth(health)
	return observed, failures, nil
}

// namespaceRetry bounds the backoff while a namespace is missing: its Work may not have been
// applied yet.
const namespaceRetry = 2 * time.Second

// maxMessage bounds the message of a condition, in bytes.
const maxMessage = 2048

// refusal is why we do not write an object; its text names the remedy.
type refusal string

func (r refusal) Error() string { return string(r) }

// errBusy is the error after all attempts of a reconcile have conflicted.
var errBusy = errors.New("the object changes faster than it can be written; tried again")

// errStale is the error of inputs older than staleAfter: the process was suspended, or the member
// is slow.
var errStale = errors.New("what was decided is too old to be written; decided again")

// retryLater requeues the Work after a time; it is no failure.
type retryLater struct {
	time.Duration
	why string
}

func (r retryLater) Error() string { return r.why }

// maybeUnreachable reports whether a request may have failed without a response from the member's
// API server.
func maybeUnreachable(err error) bool {
	var answer apierrors.APIStatus
	var ours refusal
	var later retryLater
	switch {
	case errors.As(err, &answer), errors.As(err, &ours), errors.As(err, &later), meta.IsNoMatchError(err),
		errors.Is(err, errBusy), errors.Is(err, errStale):
		return false
	}
	return true
}

// unanswered reports whether the network or the timeout was the cause.
func unanswered(err error) bool {
	var request *url.Error
	return errors.As(err, &request) || errors.Is(err, context.DeadlineExceeded)
}

// namespaceMissing reports whether the namespace of the object does not exist.
func namespaceMissing(u *unstructured.Unstructured, err error) bool {
	var answer apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &answer) || answer.Status().Details == nil {
		return false
	}
	d := answer.Status().Details
	return d.Kind == "namespaces" && d.Name == u.GetNamespace() && !isNamespace(u)
}

// unreachable is the message of conditions while the member cannot be reached.
func unreachable(cluster, cause string) string {
	return truncate(fmt.Sprintf("cluster %s cannot be reached: %s; the Work waits, and goes on when the cluster is back", cluster, cause))
}

// explain returns the message of a condition for an error: cluster, object, cause and remedy.
func explain(cluster string, u *unstructured.Unstructured, err error) string {
	message := func(what, remedy string) string {
		return truncate(fmt.Sprintf("%s: %s %s: %v; %s", cluster, what, describe(u), err, remedy))
	}
	cluster = "cluster " + cluster
	var ours refusal
	var later retryLater
	switch {
	case errors.As(err, &ours), errors.As(err, &later):
		return truncate(fmt.Sprintf("%s: %s: %v", cluster, describe(u), err))
	case kube.NotServed(err):
		return message("does not serve the kind of", "install its CustomResourceDefinition there, or do not place it there")
	case namespaceMissing(u, err):
		return message("cannot hold", "it is made once its namespace is there")
	case apierrors.HasStatusCause(err, "NamespaceTerminating"):
		return message("cannot hold", "it is made once the namespace is gone and made again")
	case apierrors.IsForbidden(err):
		return message("forbids", "give pelago's account in the cluster the right, or change the policy there that says no")
	case apierrors.IsInvalid(err) && strings.Contains(err.Error(), "immutable"):
		return message("refuses a change of", "the field cannot change in place: take the change back, "+
			"or delete the object in the cluster, then it is made anew")
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return message("refuses", "correct the template or the override")
	case apierrors.IsTooManyRequests(err):
		return message("has too much to do for", "tried again later")
	case unanswered(err):
		return message("did not answer for", "tried again")
	}
	return message("failed with", "tried again")
}

// retryAfter is the time until the next attempt, given the backoff.
func retryAfter(u *unstructured.Unstructured, err error, backoff time.Duration) time.Duration {
	if namespaceMissing(u, err) {
		return min(backoff, namespaceRetry)
	}
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		return max(backoff, time.Duration(seconds)*time.Second)
	}
	return backoff
}

// describe returns Kind namespace/name.
func describe(u *unstructured.Unstructured) string {
	if u == nil {
		return "the object"
	}
	name := u.GetName()
	if ns := u.GetNamespace(); ns != "" {
		name = ns + "/" + name
	}
	return u.GetKind() + " " + name
}

func truncate(s string) string {
	if len(s) > maxMessage {
		return s[:maxMessage]
	}
	return s
}
