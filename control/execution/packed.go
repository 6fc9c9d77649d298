package execution

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
)

// packedField holds all of an object as JSON, of a type of its own: no field of that name that the object has can be taken for it.
const packedField = "packed"

type packedText string

// pack is what the cache of the member's objects keeps of each (k8s.io/client-go/tools/cache.TransformFunc): by which it is found, by
// which an event leads to its Work, and the rest, without managedFields, as text. As maps an object takes five times as much, and
// the collector has to follow each of them; it is read once or twice in its life.
func pack(in any) (any, error) {
	o, ok := in.(*unstructured.Unstructured)
	if !ok {
		return in, nil // what an informer holds for an object that is gone
	}
	if _, done := o.Object[packedField].(packedText); done {
		return in, nil
	}
	o.SetManagedFields(nil)
	text, err := json.Marshal(o.Object)
	if err != nil {
		return nil, fmt.Errorf("pack %s: %w", called(o), err)
	}
	out := ofKind(o.GroupVersionKind())
	out.SetNamespace(o.GetNamespace())
	out.SetName(o.GetName())
	out.SetUID(o.GetUID())
	out.SetResourceVersion(o.GetResourceVersion())
	work := map[string]string{}
	for _, key := range []string{workv1alpha1.AnnotationWorkNamespace, workv1alpha1.AnnotationWorkName} {
		if value, ok := o.GetAnnotations()[key]; ok {
			work[key] = value
		}
	}
	if len(work) > 0 {
		out.SetAnnotations(work)
	}
	out.Object[packedField] = packedText(text)
	return out, nil
}

// unpack is the object that was packed.
func unpack(o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	text, ok := o.Object[packedField].(packedText)
	if !ok {
		return nil, fmt.Errorf("unpack %s: it was not packed", called(o))
	}
	out := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(text), &out.Object); err != nil {
		return nil, fmt.Errorf("unpack %s: %w", called(o), err)
	}
	return out, nil
}
