package execute

import (
	stdjson "encoding/json"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
)

// packedField holds all of an object as JSON, of a type of its own: no field of that name that the object has can be taken for it.
const packedField = "packed"

type packedText string

// pack makes of an object what the cache keeps of it (k8s.io/client-go/tools/cache.TransformFunc), unless that was done: see packText.
func pack(in any) (any, error) {
	o, ok := in.(*unstructured.Unstructured)
	if !ok {
		return in, nil // what an informer holds for an object that is gone
	}
	if _, done := o.Object[packedField].(packedText); done {
		return in, nil
	}
	text, err := json.Marshal(o.Object)
	if err != nil {
		return nil, fmt.Errorf("pack %s: %w", called(o), err)
	}
	return packText(text)
}

// packText is what the cache of the member's objects keeps of each: by which it is found, by which an event leads to its Work, and the
// rest, without managedFields, as text. As maps an object takes five times as much, and the collector has to follow each of them; it is
// read once or twice in its life. It is a control/kube.Options.Untyped.
func packText(text []byte) (*unstructured.Unstructured, error) {
	var fields, metadata map[string]stdjson.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, fmt.Errorf("pack an object: %w", err)
	}
	if err := json.Unmarshal(fields["metadata"], &metadata); err != nil {
		return nil, fmt.Errorf("pack an object, its metadata: %w", err)
	}
	delete(metadata, "managedFields")
	var known metav1.PartialObjectMetadata
	short, err := json.Marshal(metadata)
	if err == nil {
		fields["metadata"] = short
		text, err = json.Marshal(fields)
	}
	err = errors.Join(err, json.Unmarshal(short, &known.ObjectMeta), json.Unmarshal(fields["kind"], &known.Kind),
		json.Unmarshal(fields["apiVersion"], &known.APIVersion))
	if err != nil {
		return nil, fmt.Errorf("pack %s %s/%s: %w", known.Kind, known.Namespace, known.Name, err)
	}
	out := ofKind(known.GroupVersionKind())
	out.SetNamespace(known.Namespace)
	out.SetName(known.Name)
	out.SetUID(known.UID)
	out.SetResourceVersion(known.ResourceVersion)
	work := map[string]string{}
	for _, key := range []string{workv1alpha1.AnnotationWorkNamespace, workv1alpha1.AnnotationWorkName} {
		if value, ok := known.Annotations[key]; ok {
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
