package execute

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	toolscache "k8s.io/client-go/tools/cache"
)

// What the cache keeps leads to the Work, and gives the object back as it was, whatever fields it
// has.
func TestPack(t *testing.T) {
	object := func() *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.io/v1", "kind": "Thing",
			"metadata": map[string]any{
				"namespace": "n", "name": "a", "uid": "u", "resourceVersion": "7", "creationTimestamp": "2026-01-02T12:00:00Z",
				"labels":        map[string]any{"karmada.io/managed": "true"},
				"annotations":   map[string]any{"work.karmada.io/name": "w", "work.karmada.io/namespace": "karmada-es-m1", "other": "é\n\"<"},
				"managedFields": []any{map[string]any{"manager": "somebody"}},
			},
			"spec":   map[string]any{"large": int64(1) << 60, "ratio": 0.5, "on": true, "nothing": nil, "list": []any{"x", int64(1)}},
			"packed": "a field of the object", "status": map[string]any{},
		}}
	}
	packed, err := pack(object())
	if err != nil {
		t.Fatal(err)
	}
	again, err := pack(packed) // informers may hand over what they have already
	if err != nil || again != packed {
		t.Errorf("packed again: %v, %v", again, err)
	}
	u, ok := packed.(*unstructured.Unstructured)
	if !ok {
		t.Fatalf("%T", packed)
	}
	if u.GroupVersionKind() != object().GroupVersionKind() || u.GetNamespace() != "n" || u.GetName() != "a" || u.GetUID() != "u" ||
		u.GetResourceVersion() != "7" || u.GetAnnotations()["work.karmada.io/name"] != "w" ||
		u.GetAnnotations()["work.karmada.io/namespace"] != "karmada-es-m1" {
		t.Errorf("it cannot be found by %v", u.Object)
	}
	got, err := unpack(u)
	if err != nil {
		t.Fatal(err)
	}
	want := object()
	want.SetManagedFields(nil)
	if diff := cmp.Diff(want.Object, got.Object); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if _, err := unpack(object()); err == nil {
		t.Error("a field of the object passes for the packed object")
	}
	gone := toolscache.DeletedFinalStateUnknown{Key: "n/a"}
	if got, err := pack(gone); err != nil || got != any(gone) {
		t.Errorf("%v, %v", got, err)
	}
}

// TestLastWrites: our last write of an object is kept until the cache shows it, even if its event
// is ignored as our own.
func TestLastWrites(t *testing.T) {
	object := func(version string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{}}
		u.SetUID("u")
		u.SetResourceVersion(version)
		return u
	}
	var l lastWrites[*unstructured.Unstructured]
	made := object("10")
	l.put("w", made)
	l.cached("w", object("9"))
	if got, ok := l.get("w"); got != made || !ok {
		t.Errorf("the cache shows 9, known is %v", got)
	}
	l.cached("w", object("10"))
	if got, ok := l.get("w"); got != nil || ok || len(l.of) != 0 {
		t.Errorf("the cache shows 10, known is %v; %d are kept", got, len(l.of))
	}
	l.put("w", made)
	other := object("9")
	other.SetUID("v")
	l.cached("w", other)
	if got, ok := l.get("w"); got != nil || ok || len(l.of) != 0 {
		t.Errorf("the cache shows another object, known is %v", got)
	}
	l.put("w", made)
	l.forget("w")
	if len(l.of) != 0 {
		t.Error("the object of a deleted Work is kept")
	}
}
