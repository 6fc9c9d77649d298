package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// NotServed reports whether a request failed because the API server does not serve the kind in this
// version; that does not concern the object, which may exist in another version. A RESTMapper
// keeps the mappings that it has seen, so a request for a version that is no longer served still
// reaches the API server. The 404 has no Status in its body, and client-go makes it a NotFound with
// this cause.
func NotServed(err error) bool {
	return meta.IsNoMatchError(err) || apierrors.IsMethodNotSupported(err) ||
		apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// ServedVersion returns the preferred version in which an API server serves a kind, "" if in none.
// An incomplete response about the group is an error.
func ServedVersion(ctx context.Context, d discovery.ServerResourcesInterfaceWithContext, kind schema.GroupKind) (string, error) {
	_, lists, err := d.ServerGroupsAndResourcesWithContext(ctx)
	var failed *discovery.ErrGroupDiscoveryFailed
	switch {
	case errors.As(err, &failed):
		for gv := range failed.Groups {
			if gv.Group == kind.Group {
				return "", fmt.Errorf("discover the versions of %s: %w", kind, err)
			}
		}
	case err != nil:
		return "", fmt.Errorf("discover the versions of %s: %w", kind, err)
	case len(lists) == 0:
		// client-go ignores a 404 of discovery, which only something in between responds with
		return "", fmt.Errorf("discover the versions of %s: the server has no kinds at all: check the address and the proxies on the way", kind)
	}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return "", fmt.Errorf("discover the versions of %s: %w", kind, err)
		}
		if gv.Group == kind.Group && slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Kind == kind.Kind }) {
			return gv.Version, nil
		}
	}
	return "", nil
}
