package check

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAnalyze(t *testing.T) {
	const deployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: shop, labels: {app: web}}\nspec: {template: {spec: {containers: [{name: c, image: nginx}]}}}\n"
	policy := func(name, selector string) string {
		return "apiVersion: policy.karmada.io/v1alpha1\nkind: PropagationPolicy\nmetadata: {name: " + name + ", namespace: shop}\nspec:\n  resourceSelectors: [" + selector + "]\n"
	}
	override := func(selector, path string) string {
		return "apiVersion: policy.karmada.io/v1alpha1\nkind: OverridePolicy\nmetadata: {name: o, namespace: shop}\nspec:\n  resourceSelectors: [" + selector +
			"]\n  overrideRules: [{targetCluster: {clusterNames: [m1]}, overriders: {plaintext: [{path: " + path + ", operator: replace, value: 2}]}}]\n"
	}
	const web, all = "{apiVersion: apps/v1, kind: Deployment, name: web}", "{apiVersion: apps/v1, kind: Deployment}"
	const export = "apiVersion: multicluster.x-k8s.io/v1beta1\nkind: ServiceExport\nmetadata: {name: web, namespace: shop}\n"
	const service = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\n"
	for name, tt := range map[string]struct {
		documents []string
		want      string // code and verdict; empty: silent
		reason    string
	}{
		"right":                         {[]string{deployment, policy("web", web), override(web, "/spec/template/spec/containers/0/image"), export, service}, "", ""},
		"no YAML":                       {[]string{"a: [b"}, "PLG-A001 error", "yaml"},
		"no kind":                       {[]string{"metadata: {name: x}"}, "PLG-A001 error", "no kind"},
		"an unknown field":              {[]string{deployment, policy("web", web) + "  placment: {}\n"}, "PLG-A001 error", "placment"},
		"a selector of another one":     {[]string{deployment, policy("web", web), policy("x", "{apiVersion: apps/v1, kind: Deployment, namespace: other}")}, "PLG-A002 error", "must be the namespace of the policy"},
		"a policy selects nothing":      {[]string{deployment, policy("web", "{apiVersion: apps/v1, kind: Deployment, name: wbe}")}, "PLG-A003 warning", "none of the 1 objects"},
		"a path that the object lacks":  {[]string{deployment, policy("web", web), override(web, "/spec/replica")}, "PLG-A004 error", "/spec/replica"},
		"two policies with one object":  {[]string{deployment, policy("a", all), policy("b", all)}, "PLG-A005 warning", "PropagationPolicy shop/a gets it"},
		"the more precise policy wins":  {[]string{deployment, policy("a", all), policy("b", web)}, "", ""},
		"an export without its Service": {[]string{export}, "PLG-A006 warning", "no Service"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "all.yaml"), []byte(strings.Join(tt.documents, "---\n")), 0o600); err != nil {
				t.Fatal(err)
			}
			r, err := Analyze([]string{dir})
			if err != nil {
				t.Fatal(err)
			}
			all := r.Findings()
			switch {
			case tt.want == "" && len(all) > 0:
				t.Errorf("findings %+v", all)
			case tt.want != "" && (len(all) == 0 || all[0].Code+" "+string(all[0].Verdict) != tt.want || !strings.Contains(all[0].Reason, tt.reason)):
				t.Errorf("findings %+v", all)
			}
		})
	}
	if _, err := Analyze([]string{filepath.Join(t.TempDir(), "none")}); err == nil {
		t.Error("a directory that does not exist is accepted")
	}
}
