package policy

import (
	"encoding/json"
	"reflect"
	"regexp"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// FuzzApply: whatever the overriders of a tenant's policy hold, Apply returns an error or a valid
// object of the same identity, the same one for the same input, and leaves the template as it is.
func FuzzApply(f *testing.F) {
	const deployment = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"namespace":"ns","name":"web","labels":{"a":"b"}},
		"spec":{"replicas":1,"template":{"spec":{"containers":[{"name":"c","image":"registry.example/app:v1","command":["x"]}]}}}}`
	const configMap = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"ns","name":"web"},
		"data":{"json":"{\"a\":[1,{\"b\":2}]}","yaml":"a: &x [1, 2]\nb: *x\n"}}`
	for _, overriders := range []string{
		`{"plaintext":[{"path":"/spec/replicas","operator":"replace","value":3},{"path":"/metadata/labels","operator":"remove"}]}`,
		`{"plaintext":[{"path":"/metadata/name","operator":"replace","value":"other"}]}`,
		`{"plaintext":[{"path":"/spec/template/spec/containers/-","operator":"add","value":{"name":"d"}}]}`,
		`{"imageOverrider":[{"component":"Registry","operator":"replace","value":"mirror:5000"},
			{"predicate":{"path":"/spec/template/spec/containers/0/image"},"component":"Tag","operator":"add","value":"-arm"}]}`,
		`{"commandOverrider":[{"containerName":"c","operator":"add","value":["y"]}],"argsOverrider":[{"containerName":"c","operator":"remove","value":["y"]}]}`,
		`{"labelsOverrider":[{"operator":"add","value":{"x":"y"}}],"annotationsOverrider":[{"operator":"remove","value":{"x":""}}]}`,
		`{"fieldOverrider":[{"fieldPath":"/data/json","json":[{"subPath":"/a/1/b","operator":"replace","value":9}]}]}`,
		`{"fieldOverrider":[{"fieldPath":"/data/yaml","yaml":[{"subPath":"/a/-","operator":"add","value":{"c":[1]}}]}]}`,
	} {
		f.Add([]byte(deployment), []byte(overriders))
		f.Add([]byte(configMap), []byte(overriders))
	}
	cluster := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "m1"}}
	f.Fuzz(func(t *testing.T, template, overriders []byte) {
		if len(template)+len(overriders) > 1<<16 {
			return
		}
		obj := &unstructured.Unstructured{}
		if obj.UnmarshalJSON(template) != nil || obj.IsList() {
			return // no template: the API server has accepted those
		}
		var o policyv1alpha1.Overriders
		if json.Unmarshal(overriders, &o) != nil {
			return
		}
		policies := OverridePolicies{Cluster: []policyv1alpha1.ClusterOverridePolicy{{ObjectMeta: metav1.ObjectMeta{Name: "p"},
			Spec: policyv1alpha1.OverrideSpec{OverrideRules: []policyv1alpha1.RuleWithCluster{{Overriders: o}}}}}}
		before := obj.DeepCopy()
		got, applied, err := ApplyOverrides(obj, cluster, policies)
		if !reflect.DeepEqual(obj, before) {
			t.Fatal("the template has changed")
		}
		if err != nil {
			if got != nil {
				t.Fatalf("an object beside the error %v", err)
			}
			return
		}
		if got.GroupVersionKind() != obj.GroupVersionKind() || got.GetNamespace() != obj.GetNamespace() || got.GetName() != obj.GetName() {
			t.Errorf("%s %s/%s became %s %s/%s", obj.GroupVersionKind(), obj.GetNamespace(), obj.GetName(), got.GroupVersionKind(),
				got.GetNamespace(), got.GetName())
		}
		text, err := got.MarshalJSON()
		if err != nil {
			t.Fatalf("the result is no JSON: %v", err)
		}
		if limit := 1<<20 + 64*(len(template)+len(overriders)); len(text) > limit {
			t.Errorf("%d bytes of template and policy became %d", len(template)+len(overriders), len(text))
		}
		if err := new(unstructured.Unstructured).UnmarshalJSON(text); err != nil {
			t.Errorf("the result is no object: %v", err)
		}
		if _, err := applied.Annotations(); err != nil {
			t.Error(err)
		}
		if again, _, err := ApplyOverrides(obj, cluster, policies); err != nil || !reflect.DeepEqual(again, got) {
			t.Errorf("the second result differs: %v", err)
		}
	})
}

// reference is the grammar of image references (github.com/distribution/reference), without the
// parts of IPv6.
var reference = regexp.MustCompile(`^(?:(?:localhost|[a-zA-Z0-9-]+(?:\.[a-zA-Z0-9-]+)+(?::[0-9]+)?|[a-zA-Z0-9-]+:[0-9]+)/)?` +
	`[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*` +
	`(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@[a-z0-9]+:[0-9a-f]{32,})?$`)

// FuzzImage: a reference in parts is the same reference, and what replaces a part of a valid one
// leaves it valid.
func FuzzImage(f *testing.F) {
	const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for _, ref := range []string{"nginx", "nginx:1.27", "localhost/a/b:c", "registry:5000/app@" + digest, "registry.example/app:v1@" + digest, ":@/", "a.b/", ""} {
		for _, value := range []string{"", "v2", digest, "mirror.example:5000", "library/app"} {
			f.Add(ref, value)
		}
	}
	tag, registry := regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`), regexp.MustCompile(`^[a-z0-9]+\.[a-z0-9]+(:[0-9]+)?$`)
	f.Fuzz(func(t *testing.T, ref, value string) {
		if got := parseImage(ref).String(); got != ref {
			t.Errorf("%q became %q", ref, got)
		}
		for _, component := range []policyv1alpha1.ImageComponent{policyv1alpha1.Registry, policyv1alpha1.Repository, policyv1alpha1.Tag} {
			for _, operator := range []policyv1alpha1.OverriderOperator{policyv1alpha1.OverriderOpAdd, policyv1alpha1.OverriderOpReplace, policyv1alpha1.OverriderOpRemove} {
				changed := changeImage(ref, policyv1alpha1.ImageOverrider{Component: component, Operator: operator, Value: value})
				valid := operator == policyv1alpha1.OverriderOpRemove && component != policyv1alpha1.Repository ||
					operator == policyv1alpha1.OverriderOpReplace && (component == policyv1alpha1.Tag && tag.MatchString(value) ||
						component == policyv1alpha1.Registry && registry.MatchString(value))
				if reference.MatchString(ref) && valid && !reference.MatchString(changed) {
					t.Errorf("%s %s %q of %q: %q is no reference", operator, component, value, ref, changed)
				}
			}
		}
	})
}
