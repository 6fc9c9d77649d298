package api_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	install "github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/test/apiserver"
)

// kubectl runs a command and returns what it has said.
type kubectl func(args ...string) (said string, err error)

// TestKubectl is what users see: kubectl, and an API server as `pelago init` leaves it.
func TestKubectl(t *testing.T) {
	config := apiserver.Start(t)
	installer, err := install.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := install.Propagation(t.Context(), installer, install.PropagationOptions{}, t.Logf); err != nil {
		t.Fatal(err)
	}
	c, run := apiserver.Connect(t, config), kubectl(apiserver.Kubectl(t, config))
	t.Run("examples", func(t *testing.T) { examples(t, c, run) })
	t.Run("invalid", func(t *testing.T) { invalid(t, run) })
	t.Run("policies", func(t *testing.T) { policies(t, run) })
}

// apply is the command by which users apply a folder or a file.
func apply(path string) []string { return []string{"apply", "--validate=strict", "-f", path} }

// folders are those of examples, by kind.
func folders(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob("../../api/examples/*")
	if err != nil || len(all) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	return all
}

// A folder of manifests for each kind is applied as it is; applied again it changes nothing, which
// GitOps tools request.
func examples(t *testing.T, c *apiserver.Cluster, kubectl kubectl) {
	shown := map[string]bool{}
	for _, path := range append(folders(t), "testdata/accepted") {
		t.Run(path, func(t *testing.T) {
			said, err := kubectl(apply(path)...)
			if err != nil {
				t.Fatalf("%v\n%s", err, said)
			}
			objects := manifests(t, path+"/*.yaml")
			if done := strings.Count(said, " created\n"); done != len(objects) {
				t.Errorf("%d of %d objects created:\n%s", done, len(objects), said)
			}
			before := generations(t, c, objects)
			if said, err := kubectl(apply(path)...); err != nil {
				t.Fatalf("again: %v\n%s", err, said)
			}
			for name, generation := range generations(t, c, objects) {
				if before[name] != generation {
					t.Errorf("%s changed when it was applied again: generation %d, then %d", name, before[name], generation)
				}
			}
			for _, o := range objects {
				if filepath.Base(path) == strings.ToLower(o.GetKind()) {
					shown[o.GetKind()] = true
				}
			}
		})
	}
	crds := new(apiextensionsv1.CustomResourceDefinitionList)
	list(t, c, crds)
	for _, crd := range crds.Items {
		if kind := crd.Spec.Names.Kind; strings.HasSuffix(crd.Spec.Group, "karmada.io") && !shown[kind] {
			t.Errorf("api/examples/%s has no %s", strings.ToLower(kind), kind)
		}
	}
}

func generations(t *testing.T, c *apiserver.Cluster, objects []*unstructured.Unstructured) map[string]int64 {
	t.Helper()
	out := map[string]int64{}
	for _, o := range objects {
		have := new(unstructured.Unstructured)
		have.SetGroupVersionKind(o.GroupVersionKind())
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), have); err != nil {
			t.Fatal(err)
		}
		out[o.GetKind()+" "+o.GetName()] = have.GetGeneration()
	}
	return out
}

// field is the path of a field, or the name, which stands next to spec.
var field = regexp.MustCompile(`\b(spec|metadata|name)\b`)

// Folders of invalid manifests, one for each kind: each file is refused, and the answer names the
// field.
func invalid(t *testing.T, kubectl kubectl) {
	root, before := t.TempDir(), t.TempDir()
	byFile := map[string]refusal{}
	for _, r := range refused(t) {
		if r.Long != "" {
			continue // kubectl keeps what it applies in an annotation, where it has no room
		}
		dir := filepath.Join(root, strings.ToLower(r.Kind))
		file := filepath.Join(dir, r.Name+".yaml")
		byFile[file] = r
		write(t, file, r.object(r.spec()))
		if r.Before != nil {
			write(t, filepath.Join(before, r.Kind+"-"+r.Name+".yaml"), r.object(r.Before))
		}
	}
	if said, err := kubectl(apply(before)...); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	dirs, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		t.Run(dir.Name(), func(t *testing.T) {
			said, err := kubectl(apply(filepath.Join(root, dir.Name()))...)
			if err == nil {
				t.Fatalf("applied:\n%s", said)
			}
			for file, r := range byFile {
				if filepath.Base(filepath.Dir(file)) != dir.Name() {
					continue
				}
				answer, ok := answerFor(said, file, r.Name)
				switch {
				case !ok:
					t.Errorf("%s was not refused:\n%v", filepath.Base(file), r.object(r.spec()).Object)
				case !says(answer, r.Want):
					t.Errorf("refused with\n%s\nwant\n%s", answer, r.Want)
				case !field.MatchString(answer):
					t.Errorf("the answer names no field:\n%s", answer)
				}
			}
			if t.Failed() {
				t.Log(said)
			}
		})
	}
}

// answerFor finds in kubectl's output for a folder the part for one manifest: it names the file
// or, if that is the only one that was refused, the object.
func answerFor(said, file, object string) (answer string, ok bool) {
	for _, answer := range strings.Split("\n"+said, "\nError from server") {
		if strings.Contains(answer, file) || strings.Contains(answer, `"`+object+`" is invalid`) {
			return answer, true
		}
	}
	return "", false
}

func write(t *testing.T, file string, o *unstructured.Unstructured) {
	t.Helper()
	text, err := o.MarshalJSON() // which is YAML, too
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// What schemas and rules cannot see is refused by the admission policies, in words that name the
// label.
func policies(t *testing.T, kubectl kubectl) {
	const id = "propagationpolicy.karmada.io/permanent-id"
	labelled := func(label, value string) string {
		file := filepath.Join(t.TempDir(), "policy.yaml")
		o := refusal{Kind: "PropagationPolicy", Name: "marked"}.object(map[string]any{
			"resourceSelectors": []any{map[string]any{"apiVersion": "v1", "kind": "Pod"}}})
		o.SetLabels(map[string]string{label: value})
		write(t, file, o)
		return file
	}
	const protected = "resourcetemplate.karmada.io/deletion-protected"
	for _, step := range []struct {
		args []string
		want string // "": it is done
	}{
		{apply(labelled(id, "one")), ""},
		{apply(labelled(id, "two")), id},
		{[]string{"label", "pp", "marked", protected + "=Always"}, ""},
		{[]string{"delete", "pp", "marked"}, protected},
		{[]string{"label", "pp", "marked", protected + "-"}, ""},
		{[]string{"delete", "pp", "marked"}, ""},
	} {
		said, err := kubectl(step.args...)
		if (err == nil) != (step.want == "") || !strings.Contains(said, step.want) {
			t.Errorf("kubectl %s: %v\n%s\nwant %q", fmt.Sprint(step.args), err, said, step.want)
		}
	}
}
