// Package script runs tests that an operator can read: testdata/*.txtar, objects in, objects out,
// all as YAML. No API server runs.
//
// A script begins with words on the rule that it shows. Each section is a step whose name reports
// what happens, followed by a section `want` with what the package under test makes of it. `go test
// -update` writes the sections `want`.
//
//	-- a Deployment, and a policy that places it in two clusters --
//	apiVersion: apps/v1
//	…
//	-- want --
//	…
//	-- the policy names one of them --
//	…
//
// A document of a step creates an object. If there is one of that kind and name it is a merge patch
// (RFC 7386) of it, and with `$delete: true` it deletes it.
package script

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"
)

// update is the flag with which goldens are written.
var update = flag.Bool("update", false, "write the golden files")

// want is the name of the sections with goldens.
const want = "want"

// World is where one script runs: the objects of its steps.
type World struct {
	client.Client
	t *testing.T
}

// Run runs every script in testdata as a subtest of its name, with a clock of its own that jumps
// over every sleep (testing/synctest). start makes what a script is run against from an empty
// world, and returns a step: it returns what follows from the objects that are in the world by
// then.
func Run(t *testing.T, scheme *runtime.Scheme, build func(*fake.ClientBuilder), start func(*testing.T, *World) (step func() string)) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts in testdata: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := fake.NewClientBuilder().WithScheme(scheme)
				if build != nil {
					build(b)
				}
				w := &World{b.Build(), t}
				runFile(t, file, w, start(t, w))
			})
		})
	}
}

func runFile(t *testing.T, file string, w *World, step func() string) {
	t.Helper()
	a, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	out := &txtar.Archive{Comment: a.Comment}
	for i, section := range a.Files {
		if section.Name == want {
			continue
		}
		w.apply(section.Name, section.Data)
		got := step()
		out.Files = append(out.Files, section, txtar.File{Name: want, Data: []byte(got)})
		if *update {
			continue
		}
		if i+1 == len(a.Files) || a.Files[i+1].Name != want {
			t.Fatalf("step %q has no section %s: run go test -update", section.Name, want)
		}
		if diff := cmp.Diff(string(a.Files[i+1].Data), got); diff != "" {
			t.Errorf("%s, step %q, -want +got:\n%s", file, section.Name, diff)
		}
	}
	if *update {
		if err := os.WriteFile(file, txtar.Format(out), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// apply creates, patches and deletes the objects of a step.
func (w *World) apply(step string, text []byte) {
	w.t.Helper()
	r := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		doc, err := r.Read()
		if errors.Is(err, io.EOF) {
			return
		}
		if err == nil && len(bytes.TrimSpace(doc)) > 0 {
			err = w.applyOne(doc)
		}
		if err != nil {
			w.t.Fatalf("step %q: %v", step, err)
		}
	}
}

func (w *World) applyOne(doc []byte) error {
	patch, err := yaml.YAMLToJSONStrict(doc)
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{}
	// a section of comments alone
	if err := json.Unmarshal(patch, &u.Object); err != nil || u.Object == nil {
		return err
	}
	remove, _ := u.Object["$delete"].(bool)
	old := w.empty(u)
	err = w.Get(w.t.Context(), client.ObjectKeyFromObject(u), old)
	switch {
	case remove:
		return errors.Join(err, w.Delete(w.t.Context(), old))
	case apierrors.IsNotFound(err):
		o, err := w.decode(patch)
		if err != nil {
			return err
		}
		return w.Create(w.t.Context(), o)
	case err != nil:
		return err
	}
	raw, err := json.Marshal(old)
	if err != nil {
		return err
	}
	if raw, err = jsonpatch.MergePatch(raw, patch); err != nil {
		return err
	}
	o, err := w.decode(raw)
	if err != nil {
		return err
	}
	o.GetObjectKind().SetGroupVersionKind(u.GroupVersionKind())
	return w.Update(w.t.Context(), o)
}

// empty is an object of the Go type of u's kind, or an unstructured one if the kind has none.
func (w *World) empty(u *unstructured.Unstructured) client.Object {
	if o, err := w.Scheme().New(u.GroupVersionKind()); err == nil {
		if typed, ok := o.(client.Object); ok && !isUnstructured(typed) {
			return typed
		}
	}
	o := &unstructured.Unstructured{} // the fake client registers kinds without a type as such
	o.SetGroupVersionKind(u.GroupVersionKind())
	return o
}

func isUnstructured(o client.Object) bool {
	_, ok := o.(*unstructured.Unstructured)
	return ok
}

// decode makes an object of its Go type, or an unstructured one of a kind that has none. A field
// that the type lacks is an error.
func (w *World) decode(raw []byte) (client.Object, error) {
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(raw); err != nil {
		return nil, err
	}
	out := w.empty(u)
	if isUnstructured(out) {
		return u, nil
	}
	_, _, err := serializer.NewCodecFactory(w.Scheme(), serializer.EnableStrict).UniversalDeserializer().Decode(raw, nil, out)
	return out, err
}

// List returns the objects of a list's type, in the order of their names.
func (w *World) List(list client.ObjectList, by ...client.ListOption) {
	w.t.Helper()
	if err := w.Client.List(w.t.Context(), list, by...); err != nil {
		w.t.Fatal(err)
	}
}

// YAML prints values as documents, without what every object has: empty status and times.
func YAML(t testing.TB, values ...any) string {
	t.Helper()
	var out []string
	for _, v := range values {
		raw, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var x any
		if err := json.Unmarshal(raw, &x); err != nil {
			t.Fatal(err)
		}
		if m, ok := x.(map[string]any); ok {
			if status, ok := m["status"].(map[string]any); ok && len(status) == 0 {
				delete(m, "status")
			}
		}
		prune(x)
		text, err := yaml.Marshal(x)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(text))
	}
	return strings.Join(out, "---\n")
}

// prune removes null from a value.
func prune(v any) {
	switch v := v.(type) {
	case []any:
		for i := range v {
			prune(v[i])
		}
	case map[string]any:
		for key, field := range v {
			if field == nil {
				delete(v, key)
			} else {
				prune(field)
			}
		}
	}
}
