package manifests

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/pelago-net/pelago/control/agent/clusterdns"
	"github.com/pelago-net/pelago/deploy"
)

var update = flag.Bool("update", false, "write the derived files of deploy/charts")

// derived begins the templates that are made of manifests.
const derived = "{{- /* Written by `make charts` from "

// chart reports which manifests a chart has, each with the condition of its template.
type chart struct {
	manifests [][2]string // pattern, condition
	crds      []func() ([]*unstructured.Unstructured, error)
}

// TestChartNamesTheConfigMapsOfDNS: the chart gives the agent the rights that join does.
func TestChartNamesTheConfigMapsOfDNS(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "charts", "pelago-member", "templates", "_manifest.tpl"))
	if err != nil {
		t.Fatal(err)
	}
	want := `"CoreDNS" (list (.Values.corednsCustomConfigmap | default "coredns")`
	for _, target := range clusterdns.Targets("")[1:] {
		want += fmt.Sprintf(" %q", target.ConfigMap.Name)
	}
	if !strings.Contains(string(text), want+")") {
		t.Errorf("_manifest.tpl lacks %s", want)
	}
}

// createsNamespace is true without the value as well: `helm upgrade --reuse-values` from a version
// that did not have it would delete the namespace.
const createsNamespace = `ne (toString .Values.createNamespace) "false"`

var charts = map[string]chart{
	"pelago-member": {
		manifests: [][2]string{{"member/namespace.yaml", createsNamespace}, {"member/rbac/*.yaml", ".Values.network"}, {"member/workloads/*.yaml", ".Values.network"},
			{"member/execution/*.yaml", ".Values.workloads"}},
		crds: []func() ([]*unstructured.Unstructured, error){MemberCRDs},
	},
	"pelago-hub": {
		manifests: [][2]string{{"hub/*.yaml", ".Values.broker"}, {"hub/policies/*.yaml", ".Values.broker"}, {"member/namespace.yaml", "and .Values.propagation (" + createsNamespace + ")"},
			{"propagation/*.yaml", ".Values.propagation"}, {"propagation/policies/*.yaml", ".Values.propagation"},
			{"propagation/workloads/*.yaml", "and .Values.propagation .Values.deployHub"}},
		crds: []func() ([]*unstructured.Unstructured, error){HubCRDs, PropagationCRDs},
	},
	"pelago-operator":    {manifests: [][2]string{{"operator/*.yaml", "true"}}, crds: []func() ([]*unstructured.Unstructured, error){OperatorCRDs}},
	"pelago-push-member": {manifests: [][2]string{{"push/*.yaml", "true"}}},
}

// files are the derived files of a chart: templates that are the manifests themselves, whose values
// the template pelago.manifest makes of the chart's, and the definitions.
func (c chart) files(t *testing.T) map[string]string {
	out := map[string]string{}
	for _, m := range c.manifests {
		names, err := fs.Glob(deploy.Files, m[0])
		if err != nil || len(names) == 0 {
			t.Fatalf("%s: %d files, %v", m[0], len(names), err)
		}
		for _, name := range names {
			text, err := deploy.Files.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			out["templates/"+strings.ReplaceAll(name, "/", "-")] = fmt.Sprintf("%sdeploy/%s. */ -}}\n{{- if %s }}\n{{- with include \"pelago.manifest\" . | fromJson }}\n%s{{- end }}\n{{- end }}\n",
				derived, name, m[1], text)
		}
	}
	for _, of := range c.crds {
		crds, err := of()
		if err != nil {
			t.Fatal(err)
		}
		for _, crd := range crds {
			own(crd)
			text, err := yaml.Marshal(crd.Object)
			if err != nil {
				t.Fatal(err)
			}
			out["crds/"+crd.GetName()+".yaml"] = string(text)
		}
	}
	return out
}

// TestChartsAreCurrent compares the charts with the manifests that init, deploy-broker and join
// install; -update writes them.
func TestChartsAreCurrent(t *testing.T) {
	for name, c := range charts {
		t.Run(name, func(t *testing.T) {
			want, root := c.files(t), filepath.Join("..", "charts", name)
			have := map[string]string{}
			err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
				if err != nil || d.IsDir() {
					return err
				}
				text, err := os.ReadFile(path)
				below, _ := filepath.Rel(root, path)
				if bytes.HasPrefix(text, []byte(derived)) || strings.HasPrefix(below, "crds/") {
					have[below] = string(text)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if *update {
				for below := range have {
					if err := os.Remove(filepath.Join(root, below)); err != nil {
						t.Fatal(err)
					}
				}
				for below, text := range want {
					path := filepath.Join(root, below)
					if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				return
			}
			if diff := cmp.Diff(want, have); diff != "" {
				t.Errorf("run make charts: -manifests +chart\n%s", diff)
			}
		})
	}
	t.Run("operator.yaml", func(t *testing.T) {
		crds, errCRDs := OperatorCRDs()
		objs, err := OperatorObjects(MemberOptions{})
		if err := errors.Join(errCRDs, err); err != nil {
			t.Fatal(err)
		}
		var want strings.Builder
		want.WriteString("# Written by `make charts`: kubectl apply -f operator.yaml, after the image is replaced.\n")
		for _, u := range slices.Concat(crds, objs) {
			if u.GetKind() == "CustomResourceDefinition" {
				own(u)
			}
			text, err := yaml.Marshal(u.Object)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&want, "---\n%s", text)
		}
		if *update {
			if err := os.WriteFile("../operator.yaml", []byte(want.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		have, err := os.ReadFile("../operator.yaml")
		if err != nil || string(have) != want.String() {
			t.Errorf("operator.yaml: run make charts (%v)", err)
		}
	})
}
