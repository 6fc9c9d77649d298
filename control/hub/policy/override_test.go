package policy

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

const web = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop, labels: {app: web, tier: front}}
spec:
  replicas: 2
  template:
    spec:
      initContainers: [{name: init, image: "tools:1"}]
      containers:
      - {name: web, image: "nginx:1.26", command: [nginx, -g, daemon off;]}
      - {name: side, image: "registry.example/side:3", args: [--verbose]}
`

const settings = `
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: shop}
data:
  app.json: '{"db":{"host":"one"},"debug":true}'
  app.yaml: |
    db: {host: one}
    list: [a, b]
`

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	out := &unstructured.Unstructured{}
	if err := yaml.UnmarshalStrict([]byte(text), &out.Object); err != nil {
		t.Fatal(err)
	}
	return out
}

// overriders reads the overriders of a rule, as a user writes them.
func overriders(t *testing.T, text string) policyv1alpha1.Overriders {
	t.Helper()
	var out policyv1alpha1.Overriders
	if err := yaml.UnmarshalStrict([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func ownPolicy(name string, o policyv1alpha1.Overriders, selectors ...policyv1alpha1.ResourceSelector) policyv1alpha1.OverridePolicy {
	return policyv1alpha1.OverridePolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec:       policyv1alpha1.OverrideSpec{ResourceSelectors: selectors, OverrideRules: []policyv1alpha1.RuleWithCluster{{Overriders: o}}},
	}
}

var member = &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "m1", Labels: map[string]string{"env": "prod"}}}

// TestOverriders applies one rule and compares the changed fields; a path with nothing behind it is
// gone.
func TestOverriders(t *testing.T) {
	const spec = "spec.template.spec."
	for name, c := range map[string]struct {
		of, rule string
		want     map[string]any // by path
		fail     string
	}{
		"image of all containers, not of init containers": {of: web, rule: `imageOverrider: [{component: Registry, operator: replace, value: mirror.example}]`,
			want: map[string]any{spec + "containers.0.image": "mirror.example/nginx:1.26", spec + "containers.1.image": "mirror.example/side:3", spec + "initContainers.0.image": "tools:1"}},
		"image of a CronJob": {of: `{apiVersion: batch/v1, kind: CronJob, metadata: {name: a, namespace: shop}, spec: {jobTemplate: {spec: {template: {spec: {containers: [{name: c, image: "nginx:1"}]}}}}}}`,
			rule: `imageOverrider: [{component: Registry, operator: replace, value: mirror.example}]`, want: map[string]any{"spec.jobTemplate.spec.template.spec.containers.0.image": "mirror.example/nginx:1"}},
		"image of a ReplicationController": {of: `{apiVersion: v1, kind: ReplicationController, metadata: {name: a, namespace: shop}, spec: {template: {spec: {containers: [{name: c, image: "nginx:1"}]}}}}`,
			rule: `imageOverrider: [{component: Tag, operator: replace, value: "2"}]`, want: map[string]any{spec + "containers.0.image": "nginx:2"}},
		"image of a PodTemplate": {of: `{apiVersion: v1, kind: PodTemplate, metadata: {name: a, namespace: shop}, template: {spec: {containers: [{name: c, image: "nginx:1"}]}}}`,
			rule: `imageOverrider: [{component: Tag, operator: replace, value: "2"}]`, want: map[string]any{"template.spec.containers.0.image": "nginx:2"}},
		"one image by its path": {of: web, rule: `imageOverrider: [{predicate: {path: /spec/template/spec/initContainers/0/image}, component: Tag, operator: replace, value: "2"}]`,
			want: map[string]any{spec + "initContainers.0.image": "tools:2", spec + "containers.0.image": "nginx:1.26"}},
		"an image path to nothing":       {of: web, rule: `imageOverrider: [{predicate: {path: /spec/containers/0/image}, component: Tag, operator: replace, value: "2"}]`, fail: "imageOverrider[0]: predicate.path /spec/containers/0/image: nothing is at step 2"},
		"an image path past a list":      {of: web, rule: `imageOverrider: [{predicate: {path: /spec/template/spec/containers/7/image}, component: Tag, operator: replace, value: "2"}]`, fail: `has no element "7"`},
		"images of a kind without any":   {of: settings, rule: `imageOverrider: [{component: Tag, operator: remove}]`, want: map[string]any{"metadata.name": "settings"}},
		"a command is added to":          {of: web, rule: `commandOverrider: [{containerName: web, operator: add, value: [-q]}]`, want: map[string]any{spec + "containers.0.command": []any{"nginx", "-g", "daemon off;", "-q"}}},
		"a command is made":              {of: web, rule: `commandOverrider: [{containerName: side, operator: add, value: [run]}]`, want: map[string]any{spec + "containers.1.command": []any{"run"}}},
		"arguments are removed":          {of: web, rule: `argsOverrider: [{containerName: side, operator: remove, value: [--verbose]}]`, want: map[string]any{spec + "containers.1.args": nil}},
		"a container that is not there":  {of: web, rule: `argsOverrider: [{containerName: none, operator: add, value: [x]}]`, want: map[string]any{spec + "containers.0.args": nil}},
		"labels":                         {of: web, rule: `labelsOverrider: [{operator: add, value: {zone: a, app: shop}}, {operator: replace, value: {tier: back, none: x}}, {operator: remove, value: {zone: ""}}]`, want: map[string]any{"metadata.labels": map[string]any{"app": "shop", "tier": "back"}}},
		"annotations":                    {of: web, rule: `annotationsOverrider: [{operator: add, value: {a: b}}, {operator: replace, value: {c: d}}]`, want: map[string]any{"metadata.annotations": map[string]any{"a": "b"}}},
		"the last annotation is removed": {of: web, rule: `annotationsOverrider: [{operator: add, value: {a: b}}, {operator: remove, value: {a: ""}}]`, want: map[string]any{"metadata.annotations": nil}},
		"a field with JSON": {of: settings, rule: `fieldOverrider: [{fieldPath: /data/app.json, json: [{subPath: /db/host, operator: replace, value: two}, {subPath: /debug, operator: remove}]}]`,
			want: map[string]any{"data.app_json": `{"db":{"host":"two"}}`}},
		"a field with YAML": {of: settings, rule: `fieldOverrider: [{fieldPath: /data/app.yaml, yaml: [{subPath: /list/-, operator: add, value: c}]}]`,
			want: map[string]any{"data.app_yaml": "db:\n  host: one\nlist:\n- a\n- b\n- c\n"}},
		"a field that is no JSON":          {of: web, rule: `fieldOverrider: [{fieldPath: /metadata/name, json: [{subPath: /a, operator: add, value: 1}]}]`, fail: "fieldOverrider[0]: fieldPath /metadata/name"},
		"a field that is no text":          {of: web, rule: `fieldOverrider: [{fieldPath: /spec/replicas, json: [{subPath: /a, operator: add, value: 1}]}]`, fail: "is no string"},
		"plaintext":                        {of: web, rule: `plaintext: [{path: /spec/replicas, operator: replace, value: 7}, {path: /metadata/labels/tier, operator: remove}]`, want: map[string]any{"spec.replicas": int64(7), "metadata.labels": map[string]any{"app": "web"}}},
		"plaintext at a path to nothing":   {of: web, rule: `plaintext: [{path: /spec/none/x, operator: add, value: 1}]`, fail: "plaintext: "},
		"plaintext that makes another one": {of: web, rule: `plaintext: [{path: /metadata/name, operator: replace, value: other}]`, fail: "cannot be overridden"},
		"order inside a rule": {of: web, rule: `{plaintext: [{path: /metadata/labels/app, operator: replace, value: last}], labelsOverrider: [{operator: replace, value: {app: first}}]}`,
			want: map[string]any{"metadata.labels.app": "last"}},
	} {
		t.Run(name, func(t *testing.T) {
			before := object(t, c.of)
			kind := policyv1alpha1.ResourceSelector{APIVersion: before.GetAPIVersion(), Kind: before.GetKind()}
			p := ownPolicy("p", overriders(t, c.rule), kind)
			got, applied, err := ApplyOverrides(before, member, OverridePolicies{Namespaced: []policyv1alpha1.OverridePolicy{p}})
			if c.fail != "" {
				if err == nil || !strings.Contains(err.Error(), c.fail) || !strings.HasPrefix(err.Error(), "OverridePolicy shop/p: overrideRules[0].overriders.") {
					t.Fatalf("error %v, want %q in it", err, c.fail)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for path, want := range c.want {
				if diff := cmp.Diff(want, at(got.Object, strings.Split(path, "."))); diff != "" {
					t.Errorf("%s: -want +got\n%s", path, diff)
				}
			}
			if len(applied.Namespaced) != 1 || len(applied.Cluster) != 0 {
				t.Errorf("applied %+v", applied)
			}
			if diff := cmp.Diff(object(t, c.of), before); diff != "" {
				t.Errorf("the template was changed: %s", diff)
			}
		})
	}
}

// Images of init containers are changed if the policy says so; otherwise those that stay are named.
func TestInitContainers(t *testing.T) {
	const cronJob = `{apiVersion: batch/v1, kind: CronJob, metadata: {name: web, namespace: shop}, spec: {jobTemplate: {spec: {template: {spec: {
		initContainers: [{name: init, image: "tools:1"}], containers: [{name: c, image: "nginx:1"}]}}}}}}`
	const mirror = `imageOverrider: [{component: Registry, operator: replace, value: mirror.example}]`
	for name, tt := range map[string]struct{ of, rule, value, want, skipped string }{
		"not":                     {web, mirror, "", "tools:1", "Deployment shop/web: overrideRules[0]: the images of the init containers init stay; they are changed if the policy has the annotation pelago.io/init-containers=true"},
		"yes":                     {web, mirror, "true", "mirror.example/tools:1", ""},
		"yes, before other rules": {web, `{imageOverrider: [{component: Tag, operator: add, value: -a}], plaintext: [{path: /spec/template/spec/initContainers/0/image, operator: replace, value: last}]}`, "true", "last", ""},
		"a CronJob":               {cronJob, mirror, "true", "mirror.example/tools:1", ""},
		"by its path":             {web, `imageOverrider: [{predicate: {path: /spec/template/spec/containers/0/image}, component: Tag, operator: replace, value: "2"}]`, "", "tools:1", ""},
		"no change":               {web, `imageOverrider: [{component: Tag, operator: replace, value: "1"}]`, "", "tools:1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			obj := object(t, tt.of)
			p := ownPolicy("p", overriders(t, tt.rule), policyv1alpha1.ResourceSelector{APIVersion: obj.GetAPIVersion(), Kind: obj.GetKind()})
			p.Annotations = map[string]string{policyv1alpha1.AnnotationInitContainers: tt.value}
			got, applied, err := ApplyOverrides(obj, member, OverridePolicies{Namespaced: []policyv1alpha1.OverridePolicy{p}})
			if err != nil {
				t.Fatal(err)
			}
			path := "spec.template.spec.initContainers.0.image"
			if obj.GetKind() == "CronJob" {
				path = "spec.jobTemplate." + path
			}
			var skipped []string
			for _, s := range applied.Skipped {
				skipped = append(skipped, s.Reason)
			}
			if is := at(got.Object, strings.Split(path, ".")); is != tt.want || strings.Join(skipped, "; ") != tt.skipped {
				t.Errorf("image %v, want %s; skipped %q, want %q", is, tt.want, skipped, tt.skipped)
			}
		})
	}
}

// at follows a path; a dot in a key is written as _.
func at(value any, path []string) any {
	for _, step := range path {
		switch x := value.(type) {
		case map[string]any:
			if v, ok := x[step]; ok {
				value = v
			} else {
				value = x[strings.ReplaceAll(step, "_", ".")]
			}
		case []any:
			value = x[int(step[0]-'0')]
		}
	}
	return value
}

// The most precise and last policy wins, and the namespace's over the cluster-wide ones.
func TestOrder(t *testing.T) {
	deployment := policyv1alpha1.ResourceSelector{APIVersion: "apps/v1", Kind: "Deployment"}
	named, labelled := deployment, deployment
	named.Name = "web"
	labelled.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	other := deployment
	other.Name = "other"
	add := func(v string) policyv1alpha1.Overriders {
		return policyv1alpha1.Overriders{ImageOverrider: []policyv1alpha1.ImageOverrider{{Component: policyv1alpha1.Tag, Operator: policyv1alpha1.OverriderOpAdd, Value: v}}}
	}
	wide := func(name string, s ...policyv1alpha1.ResourceSelector) policyv1alpha1.ClusterOverridePolicy {
		return policyv1alpha1.ClusterOverridePolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: ownPolicy(name, add("-"+name), s...).Spec}
	}
	own := func(name string, s ...policyv1alpha1.ResourceSelector) policyv1alpha1.OverridePolicy {
		return ownPolicy(name, add("-"+name), s...)
	}
	elsewhere := own("no")
	elsewhere.Namespace = "other"
	former := own("former")
	former.Spec.Overriders, former.Spec.OverrideRules = &former.Spec.OverrideRules[0].Overriders, nil
	all := OverridePolicies{
		Cluster:    []policyv1alpha1.ClusterOverridePolicy{wide("w3", named), wide("w2"), wide("w1"), wide("no", other)},
		Namespaced: []policyv1alpha1.OverridePolicy{own("n1", named), own("n3", labelled), own("n2", labelled), elsewhere, former},
	}
	got, applied, err := ApplyOverrides(object(t, web), member, all)
	if err != nil {
		t.Fatal(err)
	}
	const want = "nginx:1.26-w1-w2-w3-former-n2-n3-n1"
	if image := at(got.Object, strings.Split("spec.template.spec.containers.0.image", ".")); image != want {
		t.Errorf("image %s, want %s", image, want)
	}
	notes, err := applied.Annotations()
	if err != nil {
		t.Fatal(err)
	}
	const first = `[{"policyName":"former","overriders":{"imageOverrider":[{"component":"Tag","operator":"add","value":"-former"}]}},{"policyName":"n2"`
	if note := notes["policy.karmada.io/applied-overrides"]; !strings.HasPrefix(note, first) || strings.Count(note, "policyName") != 4 {
		t.Errorf("annotation %s", note)
	}
	if note := notes["policy.karmada.io/applied-cluster-overrides"]; strings.Count(note, "policyName") != 3 {
		t.Errorf("annotation %s", note)
	}
}

func TestTargets(t *testing.T) {
	p := ownPolicy("p", overriders(t, `labelsOverrider: [{operator: add, value: {here: "yes"}}]`))
	here := func() (any, error) {
		got, applied, err := ApplyOverrides(object(t, web), member, OverridePolicies{Namespaced: []policyv1alpha1.OverridePolicy{p}})
		if err != nil {
			return nil, err
		}
		if notes, err := applied.Annotations(); err != nil || (len(notes) == 0) != (len(applied.Namespaced) == 0) {
			t.Errorf("annotations %v of %+v: %v", notes, applied, err)
		}
		return at(got.Object, []string{"metadata", "labels", "here"}), nil
	}
	for name, c := range map[string]struct {
		target policyv1alpha1.ClusterAffinity
		want   any
	}{
		"by name":      {policyv1alpha1.ClusterAffinity{ClusterNames: []string{"m1"}}, "yes"},
		"another name": {policyv1alpha1.ClusterAffinity{ClusterNames: []string{"m2"}}, nil},
		"excluded":     {policyv1alpha1.ClusterAffinity{ExcludeClusters: []string{"m1"}}, nil},
		"by label":     {policyv1alpha1.ClusterAffinity{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}}, "yes"},
	} {
		p.Spec.OverrideRules[0].TargetCluster = &c.target
		if got, err := here(); err != nil || got != c.want {
			t.Errorf("%s: %v, %v; want %v", name, got, err, c.want)
		}
	}
	p.Spec.OverrideRules[0].TargetCluster = &policyv1alpha1.ClusterAffinity{LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}}}
	if _, err := here(); err == nil || !strings.HasPrefix(err.Error(), "OverridePolicy shop/p: overrideRules[0].targetCluster: labelSelector") {
		t.Errorf("error %v", err)
	}
}
