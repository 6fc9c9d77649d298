package kube_test

import (
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/pelago-net/pelago/control/kube"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	toolscache "k8s.io/client-go/tools/cache"
)

const text = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a","labels":{"app":"web"},"managedFields":[{"manager":"m"}]},
"spec":{"replicas":2,"template":{"spec":{"containers":[{"name":"main","image":"registry.example/app:v1"}]}}}}`

func decoded(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return u
}

// strings are the places in memory of all keys and values, by path.
func places(value any, path string, out map[string]*byte) {
	switch v := value.(type) {
	case string:
		out[path] = unsafe.StringData(v)
	case map[string]any:
		for k, of := range v {
			out[path+"/"+k+" key"] = unsafe.StringData(k)
			places(of, path+"/"+k, out)
		}
	case []any:
		for i, of := range v {
			places(of, fmt.Sprintf("%s/%d", path, i), out)
		}
	}
}

// Two objects of the same content hold it twice before, and once after; the content stays what it
// was. Two strings may have one place in a table and push each other out, which happens in one
// table of a hundred, hardly in three of five.
func TestObjectsShareTheirStrings(t *testing.T) {
	want := decoded(t)
	want.SetManagedFields(nil)
	var twice []string
	shared := 0
	for range 5 {
		table := kube.NewStringTable()
		first, second := decoded(t), decoded(t)
		for _, u := range []*unstructured.Unstructured{first, second} {
			if _, err := table.Transform(u); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want.Object, u.Object); diff != "" {
				t.Errorf("the content has changed:\n%s", diff)
			}
		}
		a, b := map[string]*byte{}, map[string]*byte{}
		places(first.Object, "", a)
		places(second.Object, "", b)
		if len(a) < 15 {
			t.Errorf("%d strings were compared", len(a))
		}
		before := len(twice)
		for path := range a {
			if a[path] != b[path] {
				twice = append(twice, path)
			}
		}
		if len(twice) == before {
			shared++
		}
	}
	if shared < 3 {
		t.Errorf("all is shared in %d of 5 tables; there twice: %v", shared, twice)
	}
}

func TestFilledInFieldsAreKept(t *testing.T) {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Service",
		"metadata": map[string]any{"managedFields": []any{map[string]any{"manager": "kubectl", "operation": "Update", "apiVersion": "v1",
			"fieldsV1": map[string]any{"f:spec": map[string]any{"f:type": map[string]any{}}}}}},
		"spec": map[string]any{"type": "ClusterIP", "clusterIP": "10.0.0.1"}}}
	table := kube.NewStringTable()
	for range 2 { // caches may transform an object again
		if _, err := table.Transform(u); err != nil {
			t.Fatal(err)
		}
		fields := u.GetManagedFields()
		if len(fields) != 1 || string(fields[0].FieldsV1.GetRawBytes()) != `{"f:spec":{"f:clusterIP":{}}}` {
			t.Fatalf("managed fields %v", fields)
		}
	}
}

func TestTypedObjects(t *testing.T) {
	table := kube.NewStringTable()
	var seen []*byte
	for range 2 {
		c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Labels: map[string]string{strings.Clone("key"): strings.Clone("value")}, ManagedFields: []metav1.ManagedFieldsEntry{{}}}}
		if _, err := table.Transform(c); err != nil {
			t.Fatal(err)
		}
		if len(c.ManagedFields) > 0 || c.Labels["key"] != "value" {
			t.Errorf("became %v", c)
		}
		for k, v := range c.Labels {
			seen = append(seen, unsafe.StringData(k), unsafe.StringData(v))
		}
	}
	if seen[0] != seen[2] || seen[1] != seen[3] {
		t.Error("labels are not shared")
	}
	gone := toolscache.DeletedFinalStateUnknown{Key: "a"}
	if out, err := table.Transform(gone); err != nil || out != gone {
		t.Errorf("%v, %v of what is no object", out, err)
	}
}

// The table does not grow, and long strings, which are data, are left alone.
func TestBounds(t *testing.T) {
	table := kube.NewStringTable()
	for i := range 100_000 {
		if s := fmt.Sprint(i); table.String(s) != s {
			t.Fatal("another string came back")
		}
	}
	long := strings.Repeat("x", 5000)
	table.String(long)
	if again := strings.Clone(long); unsafe.StringData(table.String(again)) != unsafe.StringData(again) {
		t.Error("a long string was kept")
	}
}
