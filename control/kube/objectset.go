// Package kube holds what pelago adds to controller-runtime, one noun per file: ObjectSet (apply a
// set of owned objects), Claim (create-once names), Owner (ownership labels), Expectations and
// StaleCaches (own writes that a cache does not show yet), Result and rate limiters, Fence (refuse
// writes without the leader lease), indexes, StringTable and the stream cache (memory and CPU of
// large caches), Main, Connect and Liveness (a program with a manager).
//
// It knows no policy of any controller. Agents, hub and CLI import it; it imports only api.
package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
)

// ErrForeign: an object of the wanted name exists and has another owner. It is not changed.
var ErrForeign = errors.New("an object of this name exists that was not made by pelago for this clusterset")

// ObjectSet is a kind of objects in one cluster, as its owner writes them.
//
// Every write has a precondition: an update the resourceVersion, a deletion also the UID. The
// methods go on after an error and return all of them, each naming its object.
type ObjectSet[T client.Object] struct {
	Client client.Client
	// Owns reports whether a present object may be changed and deleted.
	Owns func(client.Object) bool
	// Copy copies the payload of a wanted object into a present one. Labels and annotations are
	// merged before: those that others added stay.
	Copy func(dst, src T)
}

// Apply creates the wanted objects that are missing, updates those that differ and deletes the
// owner's others.
func (s ObjectSet[T]) Apply(ctx context.Context, have, want []T) error {
	return errors.Join(s.Ensure(ctx, have, want), s.Prune(ctx, have, want))
}

// Ensure creates and updates, and deletes nothing.
func (s ObjectSet[T]) Ensure(ctx context.Context, have, want []T) error {
	present := byName(have)
	var errs []error
	for _, w := range want {
		h, ok := present[client.ObjectKeyFromObject(w)]
		switch {
		case !ok:
			errs = append(errs, s.create(ctx, w))
		case !s.Owns(h):
			errs = append(errs, named("update", w, ErrForeign))
		default:
			errs = append(errs, named("update", w, s.update(ctx, h, w)))
		}
	}
	return errors.Join(errs...)
}

// create creates an object. One that exists is updated if it is the owner's: it was not among the
// present ones because another client removed a label by which they are listed.
func (s ObjectSet[T]) create(ctx context.Context, want T) error {
	err := s.Client.Create(ctx, want)
	if !apierrors.IsAlreadyExists(err) {
		return named("create", want, err)
	}
	have, ok := reflect.New(reflect.TypeOf(want).Elem()).Interface().(T)
	if !ok || s.Client.Get(ctx, client.ObjectKeyFromObject(want), have) != nil {
		return named("create", want, err) // the cache does not show it yet
	}
	if !s.Owns(have) {
		return named("update", want, ErrForeign)
	}
	return named("update", want, s.update(ctx, have, want))
}

// Prune deletes the owner's objects that are not wanted.
func (s ObjectSet[T]) Prune(ctx context.Context, have, want []T) error {
	wanted := byName(want)
	var errs []error
	for _, h := range have {
		if _, ok := wanted[client.ObjectKeyFromObject(h)]; ok || !s.Owns(h) || h.GetDeletionTimestamp() != nil {
			continue
		}
		err := s.Client.Delete(ctx, h, Exactly(h))
		errs = append(errs, named("delete", h, client.IgnoreNotFound(err)))
	}
	return errors.Join(errs...)
}

func (s ObjectSet[T]) update(ctx context.Context, have, want T) error {
	next := have.DeepCopyObject().(T)
	next.SetLabels(merged(have.GetLabels(), want.GetLabels()))
	next.SetAnnotations(merged(have.GetAnnotations(), want.GetAnnotations()))
	s.Copy(next, want)
	if equality.Semantic.DeepEqual(have, next) {
		return nil
	}
	return s.Client.Update(ctx, next)
}

// IsStale reports whether every error in err comes from a stale cache: a StaleCacheError, or the
// API server's answer to a write that was computed from one.
func IsStale(err error) bool {
	if err == nil {
		return false
	}
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		for _, e := range joined.Unwrap() {
			if !IsStale(e) {
				return false
			}
		}
		return true
	}
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || errors.As(err, new(*StaleCacheError))
}

// Pointers returns a pointer to each item of a list.
func Pointers[T any](items []T) []*T {
	out := make([]*T, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out
}

func merged(have, want map[string]string) map[string]string {
	if len(want) == 0 {
		return have
	}
	out := maps.Clone(have)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, want)
	return out
}

func byName[T client.Object](objs []T) map[client.ObjectKey]T {
	m := make(map[client.ObjectKey]T, len(objs))
	for _, o := range objs {
		m[client.ObjectKeyFromObject(o)] = o
	}
	return m
}

func named(action string, obj client.Object, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s %s: %w", action, reflect.TypeOf(obj).Elem().Name(), client.ObjectKeyFromObject(obj), err)
}

// Claim creates obj, whose name is what it claims: the API server lets one of several succeed. If
// an object of the name exists, obj becomes that one, read past the cache: it may be the caller's
// own, from an attempt whose answer was lost. If it has gone since, the error is stale.
func Claim(ctx context.Context, to client.Client, live client.Reader, obj client.Object) error {
	taken := to.Create(ctx, obj)
	if !apierrors.IsAlreadyExists(taken) {
		return taken
	}
	err := live.Get(ctx, client.ObjectKeyFromObject(obj), obj)
	if apierrors.IsNotFound(err) {
		return taken
	}
	return err
}

// Owner is the clusterset on whose behalf objects are made. Nothing without its label and
// annotation is changed or deleted.
type Owner struct{ HubID string }

// Mark adds the owner's label and annotation to an object.
func (o Owner) Mark(obj client.Object) {
	labels := obj.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[v1alpha1.LabelManagedBy] = v1alpha1.ManagedBy
	obj.SetLabels(labels)
	annotations := obj.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[v1alpha1.AnnotationHubID] = o.HubID
	obj.SetAnnotations(annotations)
}

// Owns reports whether the object has the owner's label and annotation.
func (o Owner) Owns(obj client.Object) bool {
	return obj.GetLabels()[v1alpha1.LabelManagedBy] == v1alpha1.ManagedBy && obj.GetAnnotations()[v1alpha1.AnnotationHubID] == o.HubID
}

// PatchStatus writes the fields of a status that differ between two states of an object. An object
// that is gone is no error.
func PatchStatus(ctx context.Context, to client.Client, have, want client.Object) error {
	if equality.Semantic.DeepEqual(have, want) {
		return nil
	}
	return named("write the status of", want, client.IgnoreNotFound(to.Status().Patch(ctx, want, client.MergeFrom(have))))
}

// MergeFrom is a merge patch from an object, with the precondition that the object has not changed
// since it was read.
func MergeFrom(o client.Object) client.Patch {
	return client.MergeFromWithOptions(o, client.MergeFromWithOptimisticLock{})
}

// Exactly is the precondition of a deletion: this object, in this state.
func Exactly(o client.Object) client.Preconditions {
	uid, version := o.GetUID(), o.GetResourceVersion()
	return client.Preconditions{UID: &uid, ResourceVersion: &version}
}
