package execute

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
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
)

// statusPause lies between two writes of one Work's status, so that a Deployment that rolls does not flood the hub.
const statusPause = 100 * time.Millisecond

// outcome is what a look at a Work has found.
type outcome struct {
	want *desired
	have *unstructured.Unstructured // ours in the member; nil: none
	// kept leaves what is known of the object in the status: the member was not asked, or has not answered.
	kept      bool
	failure   string // "": it is as it should be
	dropped   []string
	suspended bool
	// uninterpreted says which rules of the kind fail on the object; "": none.
	uninterpreted string
}

// statusOf is the status that a Work is to have; observed is what is told of its object.
func statusOf(work *workv1alpha1.Work, o outcome, observed *workv1alpha1.ManifestStatus) workv1alpha1.WorkStatus {
	status := *work.Status.DeepCopy()
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
			"dispatching is suspended: the cluster keeps what it has")
	} else {
		set(workv1alpha1.ConditionDispatching, true, workv1alpha1.ReasonDispatching, "", "the Work is dispatched to the cluster")
		applied := "the manifest is applied"
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
	case observed != nil:
		status.ManifestStatuses = []workv1alpha1.ManifestStatus{*observed}
	case !o.kept:
		status.ManifestStatuses = nil
	}
	return status
}

// report writes the status of the Work if it changes, but not too soon after the last time. again is when to look at the Work in
// any case; 0: when something happens.
func (t *task) report(ctx context.Context, o outcome, again time.Duration) (reconcile.Result, error) {
	next := reconcile.Result{RequeueAfter: again}
	wait := func(pause time.Duration) reconcile.Result {
		if again == 0 || pause < again {
			return reconcile.Result{RequeueAfter: pause}
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
	if left := statusPause - now.Sub(t.reported.LastWrite(t.work.Name)); left > 0 {
		return wait(left), nil
	}
	if left := t.o.Seen - now.Sub(t.m.changedAt); left > 0 && o.failure == "" && unseen(observed) {
		return wait(left), nil
	}
	if t.fresh() != nil {
		return reconcile.Result{RequeueAfter: minRetry}, nil
	}
	// Without the manifest, which is the most of a Work and is no part of the patch.
	before := &workv1alpha1.Work{ObjectMeta: metav1.ObjectMeta{Namespace: t.work.Namespace, Name: t.work.Name,
		ResourceVersion: t.work.ResourceVersion}, Status: t.work.Status}
	after := before.DeepCopy()
	after.Status = status
	version, err := t.patch(ctx, before, after)
	switch {
	case apierrors.IsConflict(err):
		// The cache is behind. Everything is computed anew from what it will have, so nothing old is written.
		return reconcile.Result{RequeueAfter: statusPause}, nil
	case apierrors.IsNotFound(err):
		return reconcile.Result{}, nil
	case err != nil:
		return next, fmt.Errorf("write the status of Work %s: %w", t.key(), err)
	}
	t.work.ResourceVersion, t.work.Status = version, status
	t.memory.reported(t.work)
	t.reported.Expect(t.work.Name, t.work.ResourceVersion, time.Now())
	t.tell(before, o)
	return next, nil
}

// patch writes a status, over the version of before, and returns the new one. The manifest does not come back with it either.
func (t *task) patch(ctx context.Context, before, after *workv1alpha1.Work) (version string, err error) {
	change, err := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}).Data(after)
	if err != nil {
		return "", err
	}
	answer := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: before.Namespace, Name: before.Name}}
	answer.SetGroupVersionKind(workv1alpha1.GroupVersion.WithKind("Work"))
	err = t.o.Hub.Status().Patch(ctx, answer, client.RawPatch(types.MergePatchType, change))
	return answer.ResourceVersion, err
}

// unseen says whether the member's controller has yet to look at the object as it is. Of kinds without observedGeneration that is
// not known.
func unseen(observed *workv1alpha1.ManifestStatus) bool {
	if observed == nil || observed.Status == nil {
		return false
	}
	var of struct{ Generation, ObservedGeneration int64 }
	return json.Unmarshal(observed.Status.Raw, &of) == nil && of.ObservedGeneration < of.Generation
}

// tell makes Events of what is new in a status.
func (t *task) tell(before *workv1alpha1.Work, o outcome) {
	changed := func(kind string) (string, bool) {
		is, was := meta.FindStatusCondition(t.work.Status.Conditions, kind), meta.FindStatusCondition(before.Status.Conditions, kind)
		if is == nil || was != nil && was.Status == is.Status && was.Message == is.Message {
			return "", false
		}
		return is.Message, true
	}
	if message, ok := changed(workv1alpha1.ConditionApplied); ok && o.failure != "" {
		t.o.Recorder.Event(t.work, corev1.EventTypeWarning, workv1alpha2.EventSyncFailed, message)
	}
	if message, ok := changed(workv1alpha1.ConditionFieldsDropped); ok {
		t.o.Recorder.Event(t.work, corev1.EventTypeWarning, workv1alpha1.ReasonFieldsDropped, message)
	}
	if message, ok := changed(workv1alpha1.ConditionDispatching); ok && (o.suspended || len(before.Status.Conditions) > 0) {
		t.o.Recorder.Event(t.work, corev1.EventTypeNormal, workv1alpha2.EventWorkDispatching, message)
	}
}

// reflect reads the object's status and health; nil if there is no object. A status that cannot be read stays as it was
// reported last.
func (t *task) reflect(o *outcome) (*workv1alpha1.ManifestStatus, error) {
	if o.have == nil {
		return nil, nil
	}
	kind := o.have.GroupVersionKind()
	mapping, err := t.member.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, fmt.Errorf("look up %s in cluster %s: %w", kind, t.o.Cluster, err)
	}
	observed := &workv1alpha1.ManifestStatus{
		Identifier: workv1alpha1.ResourceIdentifier{
			Group: kind.Group, Version: kind.Version, Kind: kind.Kind, Resource: mapping.Resource.Resource,
			Namespace: o.have.GetNamespace(), Name: o.have.GetName(),
		},
	}
	var failures []string
	if observed.Status, err = t.o.Interpreter.ReflectStatus(o.have); err != nil {
		if before := t.work.Status.ManifestStatuses; len(before) > 0 && before[0].Identifier == observed.Identifier {
			observed.Status = before[0].Status
		}
		failures = append(failures, err.Error())
		t.o.Recorder.Event(t.work, corev1.EventTypeWarning, workv1alpha2.EventReflectStatusFailed, cut(err.Error()))
	}
	health, err := t.o.Interpreter.Health(o.have)
	if err != nil {
		failures = append(failures, err.Error())
		t.o.Recorder.Event(t.work, corev1.EventTypeWarning, workv1alpha2.EventInterpretHealthFailed, cut(err.Error()))
	}
	o.uninterpreted = strings.Join(failures, "; ")
	observed.Health = workv1alpha1.ResourceHealth(health)
	return observed, nil
}

// namespaceRetry bounds the pause while a namespace is missing: its own Work is on its way.
const namespaceRetry = 2 * time.Second

// maxMessage bounds what is put into a condition.
const maxMessage = 2048

// refusal is a reason of ours not to touch an object; its text names the remedy.
type refusal string

func (r refusal) Error() string { return string(r) }

// errBusy: somebody else changes the object all the time.
var errBusy = errors.New("the object changes faster than it can be written; tried again")

// errStale: this process has slept, or the member is slow; what was decided before may be no longer true.
var errStale = errors.New("what was decided is too old to be written; decided again")

// waiting asks for another look after a while; nothing is wrong.
type waiting struct {
	time.Duration
	why string
}

func (w waiting) Error() string { return w.why }

// onTheWay says whether a request may have failed without an answer from the member's API server; then the member is asked whether
// it is there.
func onTheWay(err error) bool {
	var answer apierrors.APIStatus
	var ours refusal
	var pause waiting
	switch {
	case errors.As(err, &answer), errors.As(err, &ours), errors.As(err, &pause), meta.IsNoMatchError(err),
		errors.Is(err, errBusy), errors.Is(err, errStale):
		return false
	}
	return true
}

// unanswered says that it was the network, or the time.
func unanswered(err error) bool {
	var request *url.Error
	return errors.As(err, &request) || errors.Is(err, context.DeadlineExceeded)
}

// namespaceMissing says that there is no namespace to make the object in.
func namespaceMissing(u *unstructured.Unstructured, err error) bool {
	var answer apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &answer) || answer.Status().Details == nil {
		return false
	}
	d := answer.Status().Details
	return d.Kind == "namespaces" && d.Name == u.GetNamespace() && !isNamespace(u)
}

// unreachable is what a Work says while its member cannot be reached.
func unreachable(cluster, cause string) string {
	return cut(fmt.Sprintf("cluster %s cannot be reached: %s; the Work waits, and goes on when the cluster is back", cluster, cause))
}

// explain says in words for a condition what a cluster has against an object, and what helps.
func explain(cluster string, u *unstructured.Unstructured, err error) string {
	say := func(what, remedy string) string {
		return cut(fmt.Sprintf("%s: %s %s: %v; %s", cluster, what, called(u), err, remedy))
	}
	cluster = "cluster " + cluster
	var ours refusal
	var pause waiting
	switch {
	case errors.As(err, &ours), errors.As(err, &pause):
		return cut(fmt.Sprintf("%s: %s: %v", cluster, called(u), err))
	case notServed(err):
		return say("does not serve the kind of", "install its CustomResourceDefinition there, or do not place it there")
	case namespaceMissing(u, err):
		return say("cannot hold", "it is made once its namespace is there")
	case apierrors.HasStatusCause(err, "NamespaceTerminating"):
		return say("cannot hold", "it is made once the namespace is gone and made again")
	case apierrors.IsForbidden(err):
		return say("forbids", "give pelago's account in the cluster the right, or change the policy there that says no")
	case apierrors.IsInvalid(err) && strings.Contains(err.Error(), "immutable"):
		return say("refuses a change of", "the field cannot change in place: take the change back, "+
			"or delete the object in the cluster, then it is made anew")
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return say("refuses", "correct the template or the override")
	case apierrors.IsTooManyRequests(err):
		return say("has too much to do for", "tried again later")
	case unanswered(err):
		return say("did not answer for", "tried again")
	}
	return say("failed with", "tried again")
}

// retryAfter is how long to wait before the next attempt, given the pause that is due by backoff; 0: until something changes.
func retryAfter(u *unstructured.Unstructured, err error, backoff time.Duration) time.Duration {
	if namespaceMissing(u, err) {
		return min(backoff, namespaceRetry)
	}
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		return max(backoff, time.Duration(seconds)*time.Second)
	}
	return backoff
}

// called names an object: Kind namespace/name.
func called(u *unstructured.Unstructured) string {
	if u == nil {
		return "the object"
	}
	name := u.GetName()
	if ns := u.GetNamespace(); ns != "" {
		name = ns + "/" + name
	}
	return u.GetKind() + " " + name
}

func cut(s string) string {
	if len(s) > maxMessage {
		return s[:maxMessage]
	}
	return s
}

// notServed says that the server has answered that it does not know the kind: nothing of it can be there.
func notServed(err error) bool {
	var answer apierrors.APIStatus
	return meta.IsNoMatchError(err) || apierrors.IsMethodNotSupported(err) ||
		errors.As(err, &answer) && answer.Status().Code == http.StatusNotFound && answer.Status().Reason == metav1.StatusReasonNotFound &&
			(answer.Status().Details == nil || answer.Status().Details.Name == "")
}
