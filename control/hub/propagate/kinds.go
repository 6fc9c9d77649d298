package propagate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/control/hub/policy"
	"github.com/pelago-net/pelago/control/kube"
)

// errNotSynced: the first list of a kind has not arrived.
var errNotSynced = errors.New("its kind has not been listed yet")

// templateKinds are the kinds of templates that are watched: those that a policy names, as far as
// the API server serves them. Of several versions of a kind the newest one named is watched, as an
// object must not be reconciled twice.
type templateKinds struct {
	cache     cache.Cache
	live      client.Reader
	discovery discovery.ServerResourcesInterface
	handler   toolscache.ResourceEventHandler // of templates

	mu      sync.RWMutex
	watched map[schema.GroupKind]watch
	// asked are the kinds that set has been asked for last, served or not.
	asked wanted
}

// watch is an informer of one kind.
type watch struct {
	version  string
	informer cache.Informer
}

// wanted collects kinds, with the versions by which they are named.
type wanted map[schema.GroupKind][]string

func (w wanted) add(gvk schema.GroupVersionKind) {
	gk := gvk.GroupKind()
	if !policy.OwnKind(gk) && !slices.Contains(w[gk], gvk.Version) {
		w[gk] = append(w[gk], gvk.Version)
	}
}

// has reports whether a kind is watched in the version.
func (k *templateKinds) has(gvk schema.GroupVersionKind) bool {
	k.mu.RLock()
	defer k.mu.RUnlock()
	w, ok := k.watched[gvk.GroupKind()]
	return ok && w.version == gvk.Version
}

// unasked reports whether a kind is neither watched nor one that set looks for anyway: at intervals,
// and when a CRD changes.
func (k *templateKinds) unasked(gvk schema.GroupVersionKind) bool {
	if k.has(gvk) {
		return false
	}
	k.mu.RLock()
	defer k.mu.RUnlock()
	return !slices.Contains(k.asked[gvk.GroupKind()], gvk.Version)
}

// current is the kind in the version that is watched; the kind itself if it is not watched.
func (k *templateKinds) current(gvk schema.GroupVersionKind) schema.GroupVersionKind {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if w, ok := k.watched[gvk.GroupKind()]; ok {
		gvk.Version = w.version
	}
	return gvk
}

// set watches the kinds that are wanted and served, and no others. If the API server gives no
// answer for a kind, its watch is unchanged.
func (k *templateKinds) set(ctx context.Context, want wanted) error {
	served, unknown, err := k.served(want)
	errs := []error{err}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked = want
	for gk, w := range k.watched {
		if served[gk] == w.version || unknown[schema.GroupVersion{Group: gk.Group, Version: w.version}] && len(want[gk]) > 0 {
			continue
		}
		if err := k.cache.RemoveInformer(ctx, example(gk.WithVersion(w.version))); err != nil {
			errs = append(errs, fmt.Errorf("stop watching %s: %w", gk, err))
			continue
		}
		delete(k.watched, gk)
	}
	for gk, v := range served {
		if _, ok := k.watched[gk]; ok {
			continue
		}
		informer, err := k.cache.GetInformer(ctx, example(gk.WithVersion(v)), cache.BlockUntilSynced(false))
		if err == nil {
			_, err = informer.AddEventHandler(k.handler)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("watch %s: %w", gk, err))
			continue
		}
		k.watched[gk] = watch{version: v, informer: informer}
	}
	return errors.Join(errs...)
}

// served returns the version in which each wanted kind is served, and the versions of groups for
// which there was no answer.
func (k *templateKinds) served(want wanted) (map[schema.GroupKind]string, map[schema.GroupVersion]bool, error) {
	answers := map[schema.GroupVersion][]metav1.APIResource{}
	unknown := map[schema.GroupVersion]bool{}
	out := map[schema.GroupKind]string{}
	var errs []error
	for gk, versions := range want {
		slices.SortFunc(versions, func(a, b string) int { return version.CompareKubeAwareVersionStrings(b, a) })
		for _, v := range versions {
			gv := schema.GroupVersion{Group: gk.Group, Version: v}
			if _, asked := answers[gv]; !asked {
				list, err := k.discovery.ServerResourcesForGroupVersion(gv.String())
				switch {
				case apierrors.IsNotFound(err):
					list = &metav1.APIResourceList{}
				case err != nil:
					unknown[gv] = true
					errs = append(errs, fmt.Errorf("ask what %s serves: %w", gv, err))
					list = &metav1.APIResourceList{}
				}
				answers[gv] = list.APIResources
			}
			if _, chosen := out[gk]; !chosen && slices.ContainsFunc(answers[gv], func(r metav1.APIResource) bool {
				return r.Kind == gk.Kind && slices.Contains(r.Verbs, "watch") && slices.Contains(r.Verbs, "list")
			}) {
				out[gk] = v
			}
		}
	}
	return out, unknown, errors.Join(errs...)
}

// get reads a template, from the cache if its kind is watched. It returns nil if the template does
// not exist or its kind is not served.
func (k *templateKinds) get(ctx context.Context, key Key) (*unstructured.Unstructured, error) {
	obj := example(key.GVK)
	name := client.ObjectKey{Namespace: key.Namespace, Name: key.Name}
	err := k.read(key.GVK, func(r client.Reader) error { return r.Get(ctx, name, obj) })
	switch {
	case absent(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	return obj, nil
}

// list returns the templates of a kind, in a namespace if one is given. They are not to be changed.
func (k *templateKinds) list(ctx context.Context, gvk schema.GroupVersionKind, namespace string,
	by labels.Selector) ([]unstructured.Unstructured, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
	err := k.read(gvk, func(r client.Reader) error {
		return r.List(ctx, list, client.InNamespace(namespace), client.MatchingLabelsSelector{Selector: by}, client.UnsafeDisableDeepCopy)
	})
	switch {
	case absent(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list %s: %w", gvk.GroupKind(), err)
	}
	return list.Items, nil
}

// read calls f with the cache or, for a kind that is not watched, with the API server. The lock
// keeps a kind from being removed meanwhile: a cache that is asked for an unknown one begins to
// watch it.
func (k *templateKinds) read(gvk schema.GroupVersionKind, f func(client.Reader) error) error {
	k.mu.RLock()
	defer k.mu.RUnlock()
	w, ok := k.watched[gvk.GroupKind()]
	switch {
	case !ok || w.version != gvk.Version:
		return f(k.live)
	case !w.informer.HasSynced():
		return errNotSynced
	}
	return f(k.cache)
}

func example(gvk schema.GroupVersionKind) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(gvk)
	return u
}

func newKinds(c cache.Cache, live client.Reader, d discovery.ServerResourcesInterface, h toolscache.ResourceEventHandler) *templateKinds {
	return &templateKinds{cache: c, live: live, discovery: d, handler: h, watched: map[schema.GroupKind]watch{}}
}

// absent reports whether a read has found no object, the kind not being served included: end tells
// the two apart.
func absent(err error) bool { return apierrors.IsNotFound(err) || kube.NotServed(err) }
