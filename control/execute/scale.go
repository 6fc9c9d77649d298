package execute

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// autoscaler is the kind that scales objects in members, whoever has made it there.
var autoscaler = schema.GroupVersionKind{Group: "autoscaling", Version: "v2", Kind: "HorizontalPodAutoscaler"}

// autoscalerWork is the user of the kind in the list of those watched; no Work is called so.
const autoscalerWork = "/autoscalers"

// scaled says whether an autoscaler of the member decides on the replicas of an object.
func (t *task) scaled(ctx context.Context, want *unstructured.Unstructured) (bool, error) {
	if _, found, err := unstructured.NestedFieldNoCopy(want.Object, "spec", "replicas"); err != nil || !found {
		return false, err
	}
	w, err := t.scalers.use(ctx, autoscalerWork, autoscaler)
	if err != nil {
		return false, fmt.Errorf("watch the autoscalers: %w", err)
	}
	if !w.synced() {
		return t.scaledBy(ctx, t.member.client, want)
	}
	return t.scaledBy(ctx, t.member.scalers, want)
}

// scaledMeanwhile asks the member itself where other replicas would be written: what has set them may be an autoscaler that the
// cache does not show yet.
func (t *task) scaledMeanwhile(ctx context.Context, want, have *unstructured.Unstructured) (bool, error) {
	wanted, found, err := unstructured.NestedFieldNoCopy(want.Object, "spec", "replicas")
	if err != nil || !found {
		return false, err
	}
	if there, _, err := unstructured.NestedFieldNoCopy(have.Object, "spec", "replicas"); err != nil || there == wanted {
		return false, err
	}
	return t.scaledBy(ctx, t.member.client, want)
}

func (t *task) scaledBy(ctx context.Context, from client.Reader, want *unstructured.Unstructured) (bool, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(autoscaler.GroupVersion().WithKind(autoscaler.Kind + "List"))
	if err := from.List(ctx, list, client.InNamespace(want.GetNamespace())); err != nil {
		return false, fmt.Errorf("list the autoscalers of namespace %s: %w", want.GetNamespace(), err)
	}
	for i := range list.Items {
		if target, ok := targetOf(&list.Items[i]); ok && target == keyOf(want) && list.Items[i].GetDeletionTimestamp() == nil {
			return true, nil
		}
	}
	return false, nil
}

// targetOf is what an autoscaler scales.
func targetOf(hpa *unstructured.Unstructured) (objectKey, bool) {
	ref, found, err := unstructured.NestedStringMap(hpa.Object, "spec", "scaleTargetRef")
	if err != nil || !found {
		return objectKey{}, false
	}
	gv, err := schema.ParseGroupVersion(ref["apiVersion"])
	if err != nil {
		return objectKey{}, false
	}
	return objectKey{schema.GroupKind{Group: gv.Group, Kind: ref["kind"]}, hpa.GetNamespace(), ref["name"]}, true
}

// onScaler: the Work of what an autoscaler scales is looked at again.
func (e *Execution) onScaler(o client.Object) {
	if hpa, ok := o.(*unstructured.Unstructured); ok {
		if target, ok := targetOf(hpa); ok {
			e.kick(e.memory.workOf(target))
		}
	}
}
