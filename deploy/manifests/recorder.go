package manifests

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pelago-net/pelago/control/config"
)

// KeyProof is the key of submariner-broker-secret that holds the UID of the registration at the
// hub.
const KeyProof = "registration-uid"

// Recorder is a client that records writes instead of sending them; only reads are sent. Reads
// return recorded objects, so that join runs as it does otherwise. Server-side dry runs would not
// work: they refuse objects whose namespace or kind does not exist yet.
type Recorder struct {
	client.Client
	objects []*unstructured.Unstructured // in the order of the first write
}

func (r *Recorder) find(kind schema.GroupVersionKind, key client.ObjectKey) int {
	return slices.IndexFunc(r.objects, func(u *unstructured.Unstructured) bool {
		return u.GroupVersionKind() == kind && client.ObjectKeyFromObject(u) == key
	})
}

// keep stores an object in place of a former one.
func (r *Recorder) keep(obj client.Object) error {
	kind, err := r.GroupVersionKindFor(obj)
	if err != nil {
		return err
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{Object: content}
	u.SetGroupVersionKind(kind)
	if i := r.find(kind, client.ObjectKeyFromObject(u)); i >= 0 {
		r.objects[i] = u
	} else {
		r.objects = append(r.objects, u)
	}
	return nil
}

// Get returns the recorded object, else the cluster's. Objects read from the system namespace
// become part of the result, changed or not.
func (r *Recorder) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	kind, err := r.GroupVersionKindFor(obj)
	if err != nil {
		return err
	}
	if i := r.find(kind, key); i >= 0 {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(r.objects[i].Object, obj); err != nil {
			return err
		}
		if crd, ok := obj.(*apiextensionsv1.CustomResourceDefinition); ok { // served at once
			crd.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue}}
		}
		return nil
	}
	err = r.Client.Get(ctx, key, obj, opts...)
	if meta.IsNoMatchError(err) {
		return apierrors.NewNotFound(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, key.Name)
	}
	if err == nil && key.Namespace == config.SystemNamespace {
		return r.keep(obj)
	}
	return err
}

// Create keeps an object unless it exists.
func (r *Recorder) Create(ctx context.Context, obj client.Object, _ ...client.CreateOption) error {
	key := client.ObjectKeyFromObject(obj)
	if r.Get(ctx, key, obj.DeepCopyObject().(client.Object)) == nil {
		return apierrors.NewAlreadyExists(schema.GroupResource{Resource: Kind(r, obj)}, key.Name)
	}
	return r.keep(obj)
}

// Update keeps an object.
func (r *Recorder) Update(_ context.Context, obj client.Object, _ ...client.UpdateOption) error {
	return r.keep(obj)
}

// Apply keeps an object.
func (r *Recorder) Apply(_ context.Context, applied runtime.ApplyConfiguration, _ ...client.ApplyOption) error {
	text, err := json.Marshal(applied)
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal(text, &u.Object); err != nil {
		return err
	}
	return r.keep(u)
}

// Patch keeps what a merge patch has of the object.
func (r *Recorder) Patch(_ context.Context, obj client.Object, patch client.Patch, _ ...client.PatchOption) error {
	kind, err := r.GroupVersionKindFor(obj)
	if err != nil {
		return err
	}
	text, err := patch.Data(obj)
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal(text, &u.Object); err != nil {
		return err
	}
	u.SetGroupVersionKind(kind)
	u.SetName(obj.GetName())
	u.SetNamespace(obj.GetNamespace())
	return r.keep(u)
}

// Delete forgets an object.
func (r *Recorder) Delete(_ context.Context, obj client.Object, _ ...client.DeleteOption) error {
	kind, err := r.GroupVersionKindFor(obj)
	if i := r.find(kind, client.ObjectKeyFromObject(obj)); err == nil && i >= 0 {
		r.objects = slices.Delete(r.objects, i, i+1)
	}
	return err
}

// DeleteAllOf deletes nothing.
func (r *Recorder) DeleteAllOf(context.Context, client.Object, ...client.DeleteAllOfOption) error {
	return nil
}

// SubResource issues no tokens.
func (r *Recorder) SubResource(string) client.SubResourceClient { return noToken{} }

type noToken struct{ client.SubResourceClient }

func (noToken) Create(context.Context, client.Object, client.Object, ...client.SubResourceCreateOption) error {
	return nil
}

// issuedByServer are the keys of Secrets that join gets from the hub or generates.
var issuedByServer = []string{config.KeyBrokerToken, KeyProof, config.KeyTokenCurrent, config.KeyTokenPrev}

// Print prints the objects that were written, as YAML or JSON, without what the API server sets and
// without what join gets at the hub.
func (r *Recorder) Print(out io.Writer, format string) error {
	list := unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "List"}}
	for _, u := range r.objects {
		for _, field := range []string{"resourceVersion", "uid", "creationTimestamp", "managedFields", "generation", "selfLink"} {
			unstructured.RemoveNestedField(u.Object, "metadata", field)
		}
		delete(u.Object, "status")
		if u.GroupVersionKind() == corev1.SchemeGroupVersion.WithKind("Secret") {
			for _, key := range issuedByServer {
				unstructured.RemoveNestedField(u.Object, "data", key)
			}
		}
		list.Items = append(list.Items, *u)
	}
	if format == "json" {
		text, err := json.MarshalIndent(&list, "", "  ")
		if err != nil {
			return fmt.Errorf("print as json: %w", err)
		}
		_, err = fmt.Fprintf(out, "%s\n", text)
		return err
	}
	for _, u := range list.Items {
		text, err := yaml.Marshal(u.Object)
		if err != nil {
			return fmt.Errorf("print as yaml: %w", err)
		}
		if _, err := fmt.Fprintf(out, "---\n%s", text); err != nil {
			return err
		}
	}
	return nil
}
