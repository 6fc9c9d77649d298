package kube

import (
	"context"
	"fmt"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Add indexes objects of one kind under field by the values of each. A cache refuses a field of a kind twice, and all
// controllers share one cache: field begins with the name of the controller.
func AddIndex[T client.Object](mgr ctrl.Manager, kind T, field string, values func(T) []string) error {
	err := mgr.GetFieldIndexer().IndexField(context.Background(), kind, field, func(o client.Object) []string {
		return values(o.(T))
	})
	if err != nil {
		return fmt.Errorf("index %T by %s: %w", kind, field, err)
	}
	return nil
}

// Flag is the value under which objects are found for which a statement is true; the others are not in the index.
const IndexFlag = "true"

// AddFlag indexes those objects of one kind for which holds is true, under Flag.
func AddFlagIndex[T client.Object](mgr ctrl.Manager, kind T, field string, holds func(T) bool) error {
	return AddIndex(mgr, kind, field, func(o T) []string {
		if holds(o) {
			return []string{IndexFlag}
		}
		return nil
	})
}
