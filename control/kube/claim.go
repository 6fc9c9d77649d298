package kube

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Claim creates obj, whose name is what it claims: the API server lets one of several succeed. If an object of the name
// exists, obj becomes that one, read past the cache: it may be the caller's own, from an attempt whose answer was lost.
// If it has gone since, the error is stale.
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
