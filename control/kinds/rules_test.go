package kinds

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	configv1alpha1 "github.com/pelago-net/pelago/api/config/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/test/await"
)

type rules = pelagov1alpha1.Rules

func TestRulesThatDoNotCompile(t *testing.T) {
	for name, tt := range map[string]struct {
		rules rules
		want  string
	}{
		"no CEL":                      {rules{Healthy: "observed.spec.("}, "rule healthy of x (observed.spec.(): line 1, column 15: Syntax error"},
		"another operation's object":  {rules{Healthy: "desired.a == 1"}, "undeclared reference to 'desired'"},
		"a result of another type":    {rules{Replicas: "'one'"}, "the result has to be int, but is string"},
		"health that is no bool":      {rules{Healthy: "1"}, "the result has to be bool, but is int"},
		"no such function":            {rules{Reflect: "observed.frobnicate()"}, "undeclared reference to 'frobnicate'"},
		"a function of any size":      {rules{Reflect: "{'a': '%.999999999f'.format([1.0])}"}, "the function format is not available: use + and string()"},
		"no regular expression":       {rules{Healthy: "'a'.matches('(')"}, "invalid matches argument"},
		"the second line":             {rules{Healthy: "observed.a == 1 &&\n  observed.b = 2"}, "line 2, column"},
		"the variables of the engine": {rules{Reflect: "{'a': @budget}"}, "Syntax error"},
	} {
		t.Run(name, func(t *testing.T) {
			k, errs := compileRules("x", tt.rules)
			if len(errs) != 1 || !strings.Contains(errs[0].Error(), tt.want) {
				t.Fatalf("%v, want one with %q", errs, tt.want)
			}
			if k.Healthy == nil {
				return
			}
			if _, err := k.Healthy(&unstructured.Unstructured{Object: map[string]any{}}); err == nil || !strings.Contains(err.Error(), "does not compile") {
				t.Errorf("a rule that does not compile says %v", err)
			}
		})
	}
}

func TestRulesThatFail(t *testing.T) {
	object := func() *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Farm", "metadata": map[string]any{"name": "a", "namespace": "shop"},
			"spec": map[string]any{"hens": int64(3), "note": "x"},
		}}
	}
	for name, tt := range map[string]struct {
		rules rules
		do    func(*Interpreter) error
		want  string
	}{
		"a field that is not there": {rules{Healthy: "observed.status.eggs > 0"}, func(in *Interpreter) error {
			_, err := in.Health(object())
			return err
		}, "read the health of Farm shop/a: rule healthy of x (observed.status.eggs > 0): no such key: status"},
		"no number": {rules{Replicas: "object.spec.note"}, func(in *Interpreter) error {
			_, _, _, err := in.Replicas(object())
			return err
		}, "rule replicas of x (object.spec.note): x is no number of replicas"},
		"a negative number": {rules{Replicas: "0 - object.spec.hens"}, func(in *Interpreter) error {
			_, _, _, err := in.Replicas(object())
			return err
		}, "-3 is no number of replicas"},
		"requirements of another form": {rules{Replicas: "1", Requirements: "{'cpu': '1'}"}, func(in *Interpreter) error {
			_, _, _, err := in.Replicas(object())
			return err
		}, `unknown field "cpu"`},
		"components that are no list": {rules{Components: "dyn({})"}, func(in *Interpreter) error {
			_, _, err := in.Components(object())
			return err
		}, "rule components of x (dyn({})): the result has to be a list, but is map"},
		"a component of another form": {rules{Components: "[{'name': 'a', 'replicas': 1, 'cpu': '1'}]"}, func(in *Interpreter) error {
			_, _, err := in.Components(object())
			return err
		}, `component a: strict decoding error: unknown field "cpu"`},
		"a component without a name": {rules{Components: "[{'replicas': 1}]"}, func(in *Interpreter) error {
			_, _, err := in.Components(object())
			return err
		}, "the component map[replicas:1] needs a name of its own"},
		"a component without replicas": {rules{Components: "[{'name': 'a'}]"}, func(in *Interpreter) error {
			_, _, err := in.Components(object())
			return err
		}, "component a: <nil> is no number of replicas"},
		"another object": {rules{Revise: "{'metadata': {'name': 'b'}}"}, func(in *Interpreter) error {
			return in.Revise(object(), 1)
		}, "rule revise of x ({'metadata': {'name': 'b'}}): metadata.name cannot be changed"},
		"another kind": {rules{Prune: "{'kind': null}"}, func(in *Interpreter) error { return in.Prune(object()) }, "kind cannot be changed"},
		"no metadata":  {rules{Retain: "{'metadata': null}"}, func(in *Interpreter) error { _, err := in.Retain(object(), object()); return err }, "metadata cannot be removed"},
		"a reference without a kind": {rules{Dependencies: "[{'apiVersion': 'v1', 'name': 'a'}]"}, func(in *Interpreter) error {
			_, err := in.Dependencies(object())
			return err
		}, "needs apiVersion, kind, and either name or labelSelector"},
		"a status that is no map": {rules{Reflect: "dyn([1])"}, func(in *Interpreter) error {
			_, err := in.ReflectStatus(object())
			return err
		}, "the result has to be a map"},
		"a key that is no string": {rules{Reflect: "{'a': {1: 2}}"}, func(in *Interpreter) error {
			_, err := in.ReflectStatus(object())
			return err
		}, "a map with a key that is no string but int"},
	} {
		t.Run(name, func(t *testing.T) {
			k, errs := compileRules("x", tt.rules)
			if errs != nil {
				t.Fatal(errs)
			}
			err := tt.do(New(func(schema.GroupVersionKind) Kind { return k }))
			var rule *RuleError
			if err == nil || !strings.Contains(err.Error(), tt.want) || !errors.As(err, &rule) {
				t.Errorf("%v, want a RuleError with %q", err, tt.want)
			}
		})
	}
}

const cloneSet, deployment = "apps.kruise.io/v1alpha1 CloneSet", "apps/v1 Deployment"

// kindRules are of kinds that are given as `version kind`.
func kindRules(name string, age time.Duration, r rules, kinds ...string) pelagov1alpha1.KindRules {
	out := pelagov1alpha1.KindRules{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0).Add(-age))}}
	out.Spec.Rules = r
	for _, k := range kinds {
		version, kind, _ := strings.Cut(k, " ")
		out.Spec.Kinds = append(out.Spec.Kinds, pelagov1alpha1.RuledKind{APIVersion: version, Kind: kind})
	}
	return out
}

// A user's rule goes before one that is built in, that before Go; and each by itself.
func TestWhichRuleIsUsed(t *testing.T) {
	custom := NewCustom()
	in := custom.Interpreter()
	ask := func(of string) string {
		version, kind, _ := strings.Cut(of, " ")
		obj := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"replicas": int64(3), "template": map[string]any{"spec": map[string]any{}}}}}
		obj.SetGroupVersionKind(schema.FromAPIVersionAndKind(version, kind))
		obj.SetName("x")
		n, _, _, err := in.Replicas(obj)
		if err != nil {
			t.Fatal(err)
		}
		h, err := in.Health(obj)
		if err != nil {
			t.Fatal(err)
		}
		return string(rune('0'+n)) + " " + string(h)
	}
	for name, tt := range map[string]struct {
		rules                []pelagov1alpha1.KindRules
		cloneSet, deployment string
		conflicts            map[string]Verdict
	}{
		"none":             {nil, "3 Unhealthy", "3 Unhealthy", map[string]Verdict{}},
		"one rule":         {[]pelagov1alpha1.KindRules{kindRules("a", 0, rules{Healthy: "true"}, cloneSet, deployment)}, "3 Healthy", "3 Healthy", map[string]Verdict{}},
		"of two objects":   {[]pelagov1alpha1.KindRules{kindRules("a", 0, rules{Healthy: "true"}, cloneSet), kindRules("b", 0, rules{Replicas: "7"}, cloneSet)}, "7 Healthy", "3 Unhealthy", map[string]Verdict{}},
		"the older of two": {[]pelagov1alpha1.KindRules{kindRules("a", 0, rules{Healthy: "false", Replicas: "5"}, cloneSet), kindRules("b", time.Hour, rules{Healthy: "true"}, cloneSet, deployment)}, "5 Healthy", "3 Healthy", map[string]Verdict{"a": {Conflicts: []string{"rule healthy for apps.kruise.io/v1alpha1 CloneSet: that of KindRules b, which are older, is used"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.conflicts, custom.Set(tt.rules)); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if got := ask(cloneSet); got != tt.cloneSet {
				t.Errorf("CloneSet: %s, want %s", got, tt.cloneSet)
			}
			if got := ask(deployment); got != tt.deployment {
				t.Errorf("Deployment: %s, want %s", got, tt.deployment)
			}
		})
	}
}

// A rule is for all versions of its kind if the hub serves the version that it names; that of the
// object's own version has precedence.
func TestRulesOfOtherVersions(t *testing.T) {
	kind := func(version string) schema.GroupVersionKind {
		return schema.GroupVersionKind{Group: "example.com", Version: version, Kind: "Farm"}
	}
	for name, tt := range map[string]struct {
		rules  map[string]string // by version
		served []string
		want   string // of an object in v1
	}{
		"of its version":                  {map[string]string{"v1": "1"}, []string{"v1"}, "1"},
		"of another version":              {map[string]string{"v1beta1": "2"}, []string{"v1", "v1beta1"}, "2"},
		"of a version that is not served": {map[string]string{"v1beta1": "2"}, []string{"v1"}, "0"},
		"of both":                         {map[string]string{"v1beta1": "2", "v1": "1"}, []string{"v1", "v1beta1"}, "1"},
		"of two others":                   {map[string]string{"v1alpha1": "3", "v2": "4", "v1beta1": "2"}, []string{"v1alpha1", "v1beta1", "v2"}, "4"},
	} {
		t.Run(name, func(t *testing.T) {
			c := NewCustom()
			var all []pelagov1alpha1.KindRules
			for version, n := range tt.rules {
				all = append(all, kindRules(version, 0, rules{Replicas: pelagov1alpha1.Expression(n)}, "example.com/"+version+" Farm"))
			}
			c.Set(all)
			heard := false
			c.Interpreter().Follow(t.Context(), func(of func(schema.GroupVersionKind) bool) {
				heard = of(kind("v1")) && !of(schema.GroupVersionKind{Group: "other.example.com", Version: "v1", Kind: "Farm"})
			})
			served := map[schema.GroupVersionKind]bool{}
			for _, version := range tt.served {
				served[kind(version)] = true
			}
			c.SetServed(served)
			obj := &unstructured.Unstructured{Object: map[string]any{}}
			obj.SetGroupVersionKind(kind("v1"))
			n, _, _, err := c.Interpreter().Replicas(obj)
			if got := strconv.Itoa(int(n)); got != tt.want || err != nil || !heard {
				t.Errorf("%s replicas, %v, followers notified: %t; want %s", got, err, heard, tt.want)
			}
			obj.SetGroupVersionKind(schema.GroupVersionKind{Group: "other.example.com", Version: "v1", Kind: "Farm"})
			if _, _, ok, err := c.Interpreter().Replicas(obj); ok || err != nil {
				t.Errorf("a kind of another group has replicas, %v", err)
			}
		})
	}
}

// What several objects name adds up, in Lua and CEL, in whatever order they were made; it replaces
// what is built in, and is nothing at all if one of them fails.
func TestDependenciesAddUp(t *testing.T) {
	script := func(name, dependency string, age time.Duration) configv1alpha1.ResourceInterpreterCustomization {
		c := configv1alpha1.ResourceInterpreterCustomization{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0).Add(-age))}}
		c.Spec.Target = configv1alpha1.CustomizationTarget{APIVersion: "apps/v1", Kind: "Deployment"}
		c.Spec.Customizations.DependencyInterpretation = luaScript("function GetDependencies(o) return {{apiVersion = 'v1', kind = 'ConfigMap', namespace = 'shop', name = " + dependency + "}} end")
		return c
	}
	secret := kindRules("k", 0, rules{Dependencies: "[{'apiVersion': 'v1', 'kind': 'Secret', 'name': 'key'}]"}, deployment)
	for name, tt := range map[string]struct {
		scripts []configv1alpha1.ResourceInterpreterCustomization
		rules   []pelagov1alpha1.KindRules
		want    string
		err     string
	}{
		"what is built in":    {want: "Secret/pull"},
		"one customization":   {scripts: []configv1alpha1.ResourceInterpreterCustomization{script("a", "'x'", 0)}, want: "ConfigMap/x"},
		"two":                 {scripts: []configv1alpha1.ResourceInterpreterCustomization{script("a", "'y'", 0), script("b", "'x'", time.Hour)}, want: "ConfigMap/x ConfigMap/y"},
		"two, made otherwise": {scripts: []configv1alpha1.ResourceInterpreterCustomization{script("a", "'y'", time.Hour), script("b", "'x'", 0)}, want: "ConfigMap/x ConfigMap/y"},
		"the same twice":      {scripts: []configv1alpha1.ResourceInterpreterCustomization{script("a", "'x'", 0), script("b", "'x'", 0)}, want: "ConfigMap/x"},
		"with KindRules": {
			scripts: []configv1alpha1.ResourceInterpreterCustomization{script("a", "'y'", 0), script("b", "'x'", 0)}, rules: []pelagov1alpha1.KindRules{secret},
			want: "ConfigMap/x ConfigMap/y Secret/key",
		},
		"one fails": {
			scripts: []configv1alpha1.ResourceInterpreterCustomization{script("a", "'y'", 0), script("b", "o.none.at.all", 0)}, rules: []pelagov1alpha1.KindRules{secret},
			err: "ResourceInterpreterCustomization b",
		},
	} {
		t.Run(name, func(t *testing.T) {
			custom := NewCustom()
			if verdicts := custom.SetScripts(tt.scripts); len(verdicts) > 0 {
				t.Errorf("verdicts %v", verdicts)
			}
			if verdicts := custom.Set(tt.rules); len(verdicts) > 0 {
				t.Errorf("verdicts %v", verdicts)
			}
			obj := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": "a", "namespace": "shop"},
				"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"imagePullSecrets": []any{map[string]any{"name": "pull"}}}}},
			}}
			refs, err := custom.Interpreter().Dependencies(obj)
			var got []string
			for _, r := range refs {
				got = append(got, r.Kind+"/"+r.Name)
			}
			if diff := cmp.Diff(tt.want, strings.Join(got, " ")); diff != "" || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want %q; -want +got\n%s", err, tt.err, diff)
			}
		})
	}
}

// Who asks before the rules are known waits until they are, or until the process ends.
func TestRulesAreWaitedFor(t *testing.T) {
	for name, end := range map[string]func(*Custom){"set": func(c *Custom) { c.Set(nil) }, "released": (*Custom).Release} {
		c := NewCustom()
		done := make(chan struct{})
		go func() {
			c.kind(schema.GroupVersionKind{})
			close(done)
		}()
		select {
		case <-done:
			t.Fatalf("%s: it did not wait", name)
		case <-time.After(20 * time.Millisecond):
		}
		end(c)
		<-done
	}
}

// A follower is notified of the kinds whose rules are others, not of what was known when it began
// to read, and no more when it has ended.
func TestRulesAreFollowed(t *testing.T) {
	c := NewCustom()
	in := c.Interpreter()
	var heard []string
	ctx, end := context.WithCancel(t.Context())
	in.Follow(ctx, func(changed func(schema.GroupVersionKind) bool) {
		for _, of := range []string{cloneSet, deployment, "v1 Pod"} {
			version, kind, _ := strings.Cut(of, " ")
			if changed(schema.FromAPIVersionAndKind(version, kind)) {
				heard = append(heard, kind)
			}
		}
	})
	New().Follow(ctx, func(func(schema.GroupVersionKind) bool) { t.Error("what is built in has changed") })
	of := func(name string, generation int64, kinds ...string) pelagov1alpha1.KindRules {
		k := kindRules(name, 0, rules{Healthy: "true"}, kinds...)
		k.UID, k.Generation = "u", generation
		return k
	}
	for _, tt := range []struct {
		what string
		all  []pelagov1alpha1.KindRules
		want []string
	}{
		{"the first ones", []pelagov1alpha1.KindRules{of("a", 1, cloneSet)}, nil},
		{"the same", []pelagov1alpha1.KindRules{of("a", 1, cloneSet)}, nil},
		{"other rules", []pelagov1alpha1.KindRules{of("a", 2, cloneSet)}, []string{"CloneSet"}},
		{"more rules", []pelagov1alpha1.KindRules{of("a", 2, cloneSet), of("b", 1, deployment)}, []string{"Deployment"}},
		{"another order", []pelagov1alpha1.KindRules{of("b", 1, deployment), of("a", 2, cloneSet)}, nil},
		{"a kind moves", []pelagov1alpha1.KindRules{of("b", 2, deployment, cloneSet)}, []string{"CloneSet", "Deployment"}},
		{"no rules", nil, []string{"CloneSet", "Deployment"}},
	} {
		heard = nil
		c.Set(tt.all)
		if diff := cmp.Diff(tt.want, heard); diff != "" {
			t.Errorf("%s: -want +got\n%s", tt.what, diff)
		}
	}
	end()
	await.True(t, "nobody follows", func() bool {
		c.following.Lock()
		defer c.following.Unlock()
		return len(c.followers) == 0
	})
}

// The example that users copy does what it says, and docs/kinds.md shows the same.
func TestExample(t *testing.T) {
	text, err := os.ReadFile("example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("../../docs/kinds.md")
	if err != nil {
		t.Fatal(err)
	}
	comment := regexp.MustCompile(`(?m)^#.*\n`)
	if !strings.Contains(string(readme), comment.ReplaceAllString(string(text), "")) {
		t.Error("docs/kinds.md shows another example")
	}
	all, err := decodeRules(text)
	if err != nil {
		t.Fatal(err)
	}
	c := NewCustom()
	if verdicts := c.Set(all); len(verdicts) > 0 {
		t.Fatal(verdicts)
	}
	in := c.Interpreter()
	farm := func(spec, status map[string]any) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Farm", "spec": spec}}
		o.SetName("a")
		o.SetNamespace("shop")
		o.SetGeneration(2)
		if status != nil {
			o.Object["status"] = status
		}
		return o
	}
	template := farm(map[string]any{"hens": int64(6), "feedFrom": "corn", "template": map[string]any{"spec": map[string]any{"containers": []any{
		map[string]any{"name": "hen", "resources": map[string]any{"requests": map[string]any{"cpu": "50m"}}},
	}}}}, nil)
	n, each, ok, err := in.Replicas(template)
	if n != 6 || !ok || err != nil || each.ResourceRequest.Cpu().String() != "50m" || each.Namespace != "shop" {
		t.Errorf("replicas: %d %+v %v %v", n, each, ok, err)
	}
	revised := template.DeepCopy()
	if err := in.Revise(revised, 2); err != nil || revised.Object["spec"].(map[string]any)["hens"] != int64(2) {
		t.Errorf("revised: %v %v", revised.Object, err)
	}
	observed := farm(map[string]any{"hens": int64(2), "door": "open"}, map[string]any{"hens": int64(2), "eggs": int64(9), "observedGeneration": int64(2), "log": "long"})
	retained, err := in.Retain(revised, observed)
	if err != nil || retained.Object["spec"].(map[string]any)["door"] != "open" {
		t.Errorf("retained: %v %v", retained, err)
	}
	observed.SetAnnotations(map[string]string{workv1alpha2.AnnotationTemplateGeneration: "2"})
	status, err := in.ReflectStatus(observed)
	if want := `{"eggs":9,"generation":2,"hens":2,"observedGeneration":2,"resourceTemplateGeneration":2}`; err != nil || string(status.Raw) != want {
		t.Errorf("reflected: %s %v", status.Raw, err)
	}
	total, err := in.AggregateStatus(template, []workv1alpha2.AggregatedStatusItem{
		{ClusterName: "m1", Status: status}, {ClusterName: "m2", Status: &runtime.RawExtension{Raw: status.Raw}},
	})
	if diff := cmp.Diff(map[string]any{"hens": int64(4), "eggs": int64(18), "observedGeneration": int64(2)}, total); err != nil || diff != "" {
		t.Errorf("aggregated: %v\n%s", err, diff)
	}
	if h, err := in.Health(observed); h != workv1alpha2.ResourceHealthy || err != nil {
		t.Errorf("health: %s %v", h, err)
	}
	refs, err := in.Dependencies(template)
	if diff := cmp.Diff([]DependentReference{{APIVersion: "example.com/v1", Kind: "Field", Namespace: "shop", Name: "corn"}}, refs); err != nil || diff != "" {
		t.Errorf("dependencies: %v\n%s", err, diff)
	}
}
