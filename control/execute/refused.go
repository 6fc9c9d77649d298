package execute

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

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
