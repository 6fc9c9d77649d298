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
)

// ErrForeign: an object of the wanted name exists and is somebody else's. It is left alone.
var ErrForeign = errors.New("an object of this name exists that was not made by pelago for this clusterset")

// Set is a kind of objects in one cluster, as its owner writes them.
//
// Every write has a precondition: an update the resourceVersion, a deletion also the UID. The methods go on after an
// error and return all of them, each naming its object.
type ObjectSet[T client.Object] struct {
	Client client.Client
	// Owns says whether a present object may be changed and deleted.
	Owns func(client.Object) bool
	// Copy copies the payload of a wanted object into a present one. Labels and annotations are merged before: those
	// that others added stay.
	Copy func(dst, src T)
}

// Apply creates the wanted objects that are missing, updates those that differ and deletes the owner's others.
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
			errs = append(errs, named("create", w, s.Client.Create(ctx, w)))
		case !s.Owns(h):
			errs = append(errs, named("update", w, ErrForeign))
		default:
			errs = append(errs, named("update", w, s.update(ctx, h, w)))
		}
	}
	return errors.Join(errs...)
}

// Prune deletes the owner's objects that are not wanted.
func (s ObjectSet[T]) Prune(ctx context.Context, have, want []T) error {
	wanted := byName(want)
	var errs []error
	for _, h := range have {
		if _, ok := wanted[client.ObjectKeyFromObject(h)]; ok || !s.Owns(h) || h.GetDeletionTimestamp() != nil {
			continue
		}
		uid, version := h.GetUID(), h.GetResourceVersion()
		err := s.Client.Delete(ctx, h, client.Preconditions{UID: &uid, ResourceVersion: &version})
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

// IsStale reports whether every error in err comes from a stale cache: a StaleCacheError, or the API server's answer to a write
// that was computed from one.
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
