// Package index makes objects findable by their content in a manager's cache.
package index

import (
	"context"
	"fmt"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Add indexes objects of one kind under field by the values of each. A cache refuses a field of a kind twice, and all
// controllers share one cache: field begins with the name of the controller.
func Add[T client.Object](mgr ctrl.Manager, kind T, field string, values func(T) []string) error {
	err := mgr.GetFieldIndexer().IndexField(context.Background(), kind, field, func(o client.Object) []string {
		return values(o.(T))
	})
	if err != nil {
		return fmt.Errorf("index %T by %s: %w", kind, field, err)
	}
	return nil
}

// Flag is the value under which objects are found for which a statement is true; the others are not in the index.
const Flag = "true"

// AddFlag indexes those objects of one kind for which holds is true, under Flag.
func AddFlag[T client.Object](mgr ctrl.Manager, kind T, field string, holds func(T) bool) error {
	return Add(mgr, kind, field, func(o T) []string {
		if holds(o) {
			return []string{Flag}
		}
		return nil
	})
}
