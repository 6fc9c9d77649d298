package execute

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

func parse(t *testing.T, text string) any {
	t.Helper()
	u := &unstructured.Unstructured{}
	raw := must(yaml.YAMLToJSON([]byte("{apiVersion: v1, kind: X, v: " + text + "}")))
	if err := u.UnmarshalJSON(raw); err != nil {
		t.Fatal(err)
	}
	return u.Object["v"]
}

// TestUndeclared: the words of structured-merge-diff, and the fields that they mean.
func TestUndeclared(t *testing.T) {
	err := errors.New(`failed to create typed patch object (ns/x; apps/v1, Kind=Deployment): errors:
  .spec.newer: field not declared in schema
  .spec.containers[name="a b"].alsoNew: field not declared in schema
  .spec.ports[containerPort=80,protocol="TCP"].odd: field not declared in schema`)
	object := parse(t, `{spec: {newer: 1, kept: 1, containers: [{name: x, alsoNew: 1}, {name: a b, alsoNew: 1, image: i}],
		ports: [{containerPort: 80, protocol: UDP, odd: 1}, {containerPort: 80, odd: 1}]}}`).(map[string]any)
	for _, path := range undeclared(err) {
		if !dropField(object, path) {
			t.Errorf("%s: not found", path)
		}
	}
	want := parse(t, `{spec: {kept: 1, containers: [{name: x, alsoNew: 1}, {name: a b, image: i}],
		ports: [{containerPort: 80, protocol: UDP, odd: 1}, {containerPort: 80}]}}`)
	if diff := cmp.Diff(want, any(object)); diff != "" {
		t.Error(diff)
	}
	for _, path := range []string{".spec.none", `.spec.containers[name="z"].image`, ".spec.containers["} {
		if dropField(object, path) {
			t.Errorf("%s: dropped what is not there", path)
		}
	}
}

// TestKeep: fields of pelago.io/member-owned.
func TestKeep(t *testing.T) {
	for _, c := range []struct{ name, ours, theirs, pointer, want string }{
		{"a value", "{a: 1}", "{a: 2}", "/a", "{a: 2}"},
		{"one that the member has removed", "{a: 1, b: 1}", "{b: 2}", "/a", "{b: 1}"},
		{"one that only the member has", "{b: 1}", "{a: {x: 1}, b: 2}", "/a/x", "{a: {x: 1}, b: 1}"},
		{"escaped", "{a/b~c: 1}", "{a/b~c: 2}", "/a~1b~0c", "{a/b~c: 2}"},
		{"an element goes by its name",
			"{l: [{name: x, i: 1}]}", "{l: [{name: side, i: 7}, {name: x, i: 2}]}", "/l/0/i", "{l: [{name: x, i: 2}]}"},
		{"an element without name goes by its place", "{l: [1, 2]}", "{l: [3, 4]}", "/l/1", "{l: [1, 4]}"},
		{"no such element", "{l: [{name: x, i: 1}]}", "{l: []}", "/l/0/i", "{l: [{name: x, i: 1}]}"},
		{"nothing below", "{a: 1}", "{a: 1}", "/b/c", "{a: 1}"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ours := &unstructured.Unstructured{Object: parse(t, c.ours).(map[string]any)}
			setMemberOwned(ours, &unstructured.Unstructured{Object: parse(t, c.theirs).(map[string]any)}, &desired{owned: []string{c.pointer}}, false)
			if diff := cmp.Diff(parse(t, c.want), any(ours.Object)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestContains: what is there as wanted; in doubt it is not.
func TestContains(t *testing.T) {
	for _, c := range []struct {
		name, want, have string
		holds            bool
	}{
		{"defaults of the server", "{a: {b: 1}}", "{a: {b: 1, c: 2}, d: 3}", true},
		{"another value", "{a: 1}", "{a: 2}", false},
		{"missing", "{a: 1}", "{}", false},
		{"null is nothing", "{a: null}", "{}", true},
		{"an element more", "{l: [{n: 1}]}", "{l: [{n: 1}, {n: 2}]}", false},
		{"elements with defaults", "{l: [{n: 1}]}", "{l: [{n: 1, m: 2}]}", true},
		{"a key more where the whole map is one value", "{nodeSelector: {a: b}}", "{nodeSelector: {a: b, c: d}}", false},
		{"a selector that selects less", "{podSelector: {}}", "{podSelector: {matchLabels: {a: b}}}", false},
		{"another type", "{a: {b: 1}}", "{a: x}", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := contains(parse(t, c.want), parse(t, c.have)); got != c.holds {
				t.Errorf("%v", got)
			}
		})
	}
}

// TestAdopted: whose fields move.
func TestAdopted(t *testing.T) {
	entry := func(manager string, op metav1.ManagedFieldsOperationType, sub, field string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{
			Manager: manager, Operation: op, Subresource: sub, APIVersion: "v1", FieldsType: "FieldsV1",
			FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:` + field + `":{}}}`),
		}
	}
	const update, apply = metav1.ManagedFieldsOperationUpdate, metav1.ManagedFieldsOperationApply
	fields, moved, err := adopted([]metav1.ManagedFieldsEntry{
		entry("kubectl", update, "", "a"), entry("kubectl", apply, "", "b"), entry("pelago", update, "", "c"),
		entry("pelago", apply, "", "d"), entry("kube-controller-manager", update, "", "e"), entry("hpa", update, "scale", "f"),
	}, anyManager)
	if err != nil || !moved {
		t.Fatal(moved, err)
	}
	got := map[string]string{}
	for _, f := range fields {
		got[f.Manager+" "+string(f.Operation)] = f.FieldsV1.GetRawString()
	}
	want := map[string]string{
		"pelago Apply":                   `{"f:spec":{"f:a":{},"f:b":{},"f:c":{},"f:d":{}}}`,
		"kube-controller-manager Update": `{"f:spec":{"f:e":{}}}`,
		"hpa Update":                     `{"f:spec":{"f:f":{}}}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, moved, err := adopted(fields, anyManager); moved || err != nil {
		t.Errorf("again: %v %v", moved, err)
	}
}

// TestRevert: a fight slows down.
func TestRevert(t *testing.T) {
	k := &task{state: &workState{reverts: 20, revertedAt: time.Now()}}
	var pause retryLater
	if err := k.mayRevert(); !errors.As(err, &pause) || pause.Duration < 20*time.Second || pause.Duration > maxRevert {
		t.Errorf("after 20 changes: %v", err)
	}
	k.state.revertedAt = time.Now().Add(-quietRevert - time.Second)
	if err := k.mayRevert(); err != nil || k.state.reverts != 0 {
		t.Errorf("after a quiet time: %v", err)
	}
}

// TestKinds: a kind that no Work names any more is not watched.
func TestKinds(t *testing.T) {
	m, err := newMember(Options{Cluster: "m", Member: apiserver.Start(t), Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); m.run(ctx, func() {}) }()
	defer func() { cancel(); <-done }()
	k := newKinds(m.managed, forOldAndNew(func(client.Object) {}))
	kind := schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	for _, work := range []string{"a", "b", "a"} {
		w, err := k.use(ctx, work, kind)
		if err != nil {
			t.Fatal(err)
		}
		await.True(t, "the list is there", w.synced)
	}
	watched := func() bool {
		var missing *cache.ErrResourceNotCached
		err := m.managed.Get(ctx, client.ObjectKey{Namespace: "default", Name: "none"}, ofKind(kind))
		return !errors.As(err, &missing)
	}
	if err := k.release(ctx, "a"); err != nil || !watched() {
		t.Errorf("with a Work left: %v", err)
	}
	if _, err := k.use(ctx, "b", schema.GroupVersionKind{Version: "v1", Kind: "Secret"}); err != nil || watched() {
		t.Errorf("without: %v", err)
	}
}
