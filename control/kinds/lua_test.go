package kinds

import (
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	configv1alpha1 "github.com/pelago-net/pelago/api/config/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

func luaKind(t testing.TB, c configv1alpha1.CustomizationRules) Kind {
	t.Helper()
	k, errs := compileScripts("test", c, nil)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return k
}

func luaScript(text string) *configv1alpha1.Script { return &configv1alpha1.Script{LuaScript: text} }

// rollout is an object with each type of value of JSON.
func rollout() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Rollout", "metadata": map[string]any{"name": "a", "namespace": "shop", "labels": map[string]any{}},
		"spec": map[string]any{
			"replicas": int64(3), "ratio": 0.5, "large": int64(1<<62 + 1), "paused": false, "none": []any{}, "list": []any{map[string]any{"a": "b"}},
			"template": map[string]any{"spec": map[string]any{
				"containers": []any{map[string]any{"name": "c", "image": "i", "resources": map[string]any{"requests": map[string]any{"cpu": "100m"}}}},
				"volumes":    []any{map[string]any{"name": "v", "configMap": map[string]any{"name": "settings"}}},
			}},
		},
		"status": map[string]any{"readyReplicas": int64(2), "conditions": []any{}},
	}}
}

// Every operation, with the functions that scripts for Karmada define.
func TestLuaOperations(t *testing.T) {
	k := luaKind(t, configv1alpha1.CustomizationRules{
		ReplicaResource: luaScript(`
local kube = require("kube")
function GetReplicas(obj)
  return obj.spec.replicas, kube.accuratePodRequirements(obj.spec.template)
end`),
		ComponentResource: luaScript(`function GetComponents(o)
  local workers = {name = "worker", replicas = math.ceil(o.spec.replicas / 2), replicaRequirements = {resourceRequest = {cpu = 1, memory = 0.5}}}
  return {workers, {name = "head", replicas = 1}}
end`),
		ReplicaRevision: luaScript(`function ReviseReplica(obj, n) obj.spec.replicas = n return obj end`),
		Retention: luaScript(`function Retain(desired, observed)
  if observed.spec.paused ~= nil then desired.spec.paused = observed.spec.paused end
  return desired
end`),
		StatusReflection: luaScript(`function ReflectStatus(o)
  if o.status == nil then return nil end
  return {readyReplicas = o.status.readyReplicas, conditions = o.status.conditions}
end`),
		StatusAggregation: luaScript(`function AggregateStatus(desired, items)
  if desired.status == nil then desired.status = {} end
  local ready, names = 0, ""
  for i = 1, #items do
    if items[i].status ~= nil then ready = ready + items[i].status.readyReplicas end
    names = names .. items[i].clusterName .. ","
  end
  desired.status.readyReplicas = ready
  desired.status.clusters = names
  return desired
end`),
		HealthInterpretation: luaScript(`function InterpretHealth(o) return o.status.readyReplicas == o.spec.replicas end`),
		DependencyInterpretation: luaScript(`local kube = require("kube")
function GetDependencies(o) return kube.getPodDependencies(o.spec.template, o.metadata.namespace) end`),
	})
	n, each, err := k.Replicas(rollout())
	if err != nil || n != 3 || each == nil || each.ResourceRequest.Cpu().String() != "100m" || each.Namespace != "shop" {
		t.Errorf("replicas: %d %+v %v", n, each, err)
	}

	all, err := k.Components(rollout())
	want := []any{map[string]any{"name": "head", "replicas": int64(1)}, map[string]any{"name": "worker", "replicas": int64(2),
		"replicaRequirements": map[string]any{"resourceRequest": map[string]any{"cpu": "1", "memory": "500m"}}}}
	if diff := cmp.Diff(want, plain(t, all)); diff != "" || err != nil {
		t.Errorf("components: %v -want +got:\n%s", err, diff)
	}

	// All that a script does not change stays, with its type: empty lists and maps, fractions,
	// numbers above 2^53.
	obj, changed := rollout(), rollout()
	if err := k.Revise(obj, 7); err != nil {
		t.Fatal(err)
	}
	changed.Object["spec"].(map[string]any)["replicas"] = int64(7)
	if diff := cmp.Diff(changed.Object, obj.Object); diff != "" {
		t.Errorf("revise -want +got:\n%s", diff)
	}

	observed, changed := rollout(), rollout()
	observed.Object["spec"].(map[string]any)["paused"] = true
	changed.Object["spec"].(map[string]any)["paused"] = true
	obj = rollout()
	if err := k.Retain(obj, observed); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(changed.Object, obj.Object); diff != "" {
		t.Errorf("retain -want +got:\n%s", diff)
	}

	status, err := k.Reflect(rollout())
	if diff := cmp.Diff(map[string]any{"readyReplicas": int64(2), "conditions": []any{}}, status); diff != "" || err != nil {
		t.Errorf("reflect: %v -want +got:\n%s", err, diff)
	}
	status, err = k.Aggregate(rollout(), []workv1alpha2.AggregatedStatusItem{
		{ClusterName: "m1", Status: &runtime.RawExtension{Raw: []byte(`{"readyReplicas":2}`)}}, {ClusterName: "m2"},
	})
	if diff := cmp.Diff(map[string]any{"readyReplicas": int64(2), "conditions": []any{}, "clusters": "m1,m2,"}, status); diff != "" || err != nil {
		t.Errorf("aggregate: %v -want +got:\n%s", err, diff)
	}
	if healthy, err := k.Healthy(rollout()); healthy || err != nil {
		t.Errorf("health: %v %v", healthy, err)
	}
	refs, err := k.Dependencies(rollout())
	if diff := cmp.Diff([]DependentReference{{APIVersion: "v1", Kind: "ConfigMap", Namespace: "shop", Name: "settings"}}, refs); diff != "" || err != nil {
		t.Errorf("dependencies: %v -want +got:\n%s", err, diff)
	}
}

// A retention may return the observed object, as many scripts for Karmada do: its content is taken,
// and what API servers set is that of the desired object.
func TestLuaRetainsTheObservedObject(t *testing.T) {
	k := luaKind(t, configv1alpha1.CustomizationRules{Retention: luaScript(`function Retain(desired, observed) return observed end`)})
	desired, observed := rollout(), rollout()
	desired.SetResourceVersion("7")
	observed.SetResourceVersion("7")
	observed.SetUID("u1")
	observed.SetGeneration(3)
	observed.Object["metadata"].(map[string]any)["creationTimestamp"] = "2026-01-01T00:00:00Z"
	observed.Object["spec"].(map[string]any)["paused"] = true
	want := rollout()
	want.SetResourceVersion("7")
	want.Object["spec"].(map[string]any)["paused"] = true
	if err := k.Retain(desired, observed); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want.Object, desired.Object); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	other := luaKind(t, configv1alpha1.CustomizationRules{Retention: luaScript(`function Retain(desired, observed) observed.metadata.name = "b" return observed end`)})
	if err := other.Retain(rollout(), observed); err == nil || !strings.Contains(err.Error(), "metadata.name cannot be changed") {
		t.Errorf("another object: %v", err)
	}
	none := luaKind(t, configv1alpha1.CustomizationRules{Retention: luaScript(`function Retain(desired, observed) return {apiVersion = observed.apiVersion} end`)})
	if err := none.Retain(rollout(), observed); err == nil || !strings.Contains(err.Error(), "metadata cannot be removed") {
		t.Errorf("no object: %v", err)
	}
}

// What a script may not do is an error in bounded time, for the value of ReflectStatus.
func TestLuaIsBounded(t *testing.T) {
	for name, tt := range map[string]struct{ body, want string }{
		"a loop without end":            {`while true do end`, "exceeded the limit"},
		"recursion without end":         {`local function f() return 1 + f() end return f()`, "overflow"},
		"tail calls without end":        {`local function f() return f() end return f()`, "exceeded the limit"},
		"a text that doubles":           {`local s = "x" while true do s = s .. s end`, "more than"},
		"texts without end":             {`local t = {} for i = 1, 1e9 do t[#t+1] = string.rep("x", 1000) .. i end`, "exceeded the limit"},
		"a repeated text":               {`return string.rep("x", 1e9)`, "more than"},
		"a repeated text by method":     {`return ("x"):rep(1e9)`, "more than"},
		"a wide format":                 {`return string.format("%999999d", 1)`, "invalid conversion"},
		"a repeated argument":           {`return string.format("%[1]s%[1]s", "x")`, "invalid conversion"},
		"many replacements":             {`return string.gsub(string.rep("x", 1e5), "x", string.rep("y", 1e5))`, "exceeded the limit"},
		"many replacements by function": {`local y = string.rep("y", 1e5) return (string.gsub(string.rep("x", 1e5), "^x", function() return y end))`, ""},
		"a pattern that backtracks":     {`return string.find(string.rep("a", 1000), "a*a*a*a*a*b")`, "exceeded the limit"},
		"an index far away":             {`local t = {} t[60000000] = 1`, "exceeded the limit"},
		"pairs that are looked for":     {`local t = {} t[4e5] = 1 while true do for k in pairs(t) do break end end`, "exceeded the limit"},
		"an index in a constructor":     {`local t = {[60000000] = 1}`, "exceeded the limit"},
		"an insertion far away":         {`local t = {} table.insert(t, 60000000, 1)`, "exceeded the limit"},
		"tables without end":            {`local t = {} while true do t = {t, {}, {}} end`, "exceeded the limit"},
		"a table in itself":             {`local t = {} t.a = t return t`, "nested more than"},
		"a shared table":                {`local t = {a = 1} for i = 1, 60 do t = {x = t, y = t} end return t`, "exceeded the limit"},
		"many results":                  {`return unpack({}, 1, 1e9)`, "exceeded the limit"},
		"more results than the stack":   {`return unpack({}, 1, 1e6)`, "overflow"},
		"many results, often":           {`local function f() end while true do f(unpack({}, 1, 6e4)) end`, "exceeded the limit"},
		"a length that is looked for":   {`local t = {} t[4e5] = 1 t[4e5] = nil while true do local n = #t end`, "exceeded the limit"},
		"a key that is looked for":      {`local t = {} t[4e5] = 1 while true do next(t) end`, "exceeded the limit"},
		"a joined table":                {`local t, s = {}, string.rep("x", 1e4) for i = 1, 1000 do t[i] = s end return table.concat(t)`, "more than"},
		"a list with gaps":              {`return {a = {[1] = 1, [3] = 1}}`, "list without gaps"},
		"a list and map":                {`return {1, a = 1}`, "list without gaps"},
		"a function":                    {`return {f = function() end}`, "no value of an object"},
		"no number":                     {`return {a = 0/0}`, "no number"},
		"an error":                      {`error("so it is")`, "so it is"},
		"a table as error":              {`error({})`, "table"},
		"files":                         {`return io.open("/etc/passwd")`, "non-table object"},
		"processes":                     {`return os.execute("true")`, "non-table object"},
		"modules":                       {`return require("os")`, "only kube"},
		"code":                          {`return loadstring("return 1")()`, "non-function"},
		"protected calls":               {`return pcall(error)`, "non-function"},
		"metatables":                    {`return setmetatable({}, {})`, "non-function"},
		"globals":                       {`return _G`, ""},
		"environments":                  {`return getfenv()`, "non-function"},
		"the debugger":                  {`return debug.getinfo(1)`, "non-table object"},
		"chance":                        {`return {a = math.random()}`, "non-function"},
		"dumps":                         {`return string.dump(function() end)`, "non-function"},
		"a quantity":                    {`return {a = require("kube").getResourceQuantity("x")}`, "quantities must match"},
		"no pod":                        {`return require("kube").accuratePodRequirements({spec = 1})`, ""},
		"a broken pod":                  {`return require("kube").accuratePodRequirements({spec = {containers = 1}})`, "cannot restore slice"},
	} {
		t.Run(name, func(t *testing.T) {
			k := luaKind(t, configv1alpha1.CustomizationRules{StatusReflection: luaScript("function ReflectStatus(o) " + tt.body + " end")})
			goruntime.LockOSThread()
			defer goruntime.UnlockOSThread()
			began := threadTime(t)
			_, err := k.Reflect(rollout())
			if took := threadTime(t) - began; took > 10*time.Second {
				t.Errorf("it took %v of processor time", took)
			}
			if tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%v, want an error with %q", err, tt.want)
			}
		})
	}
}

// threadTime is the processor time that the calling thread has had: unlike time, it does not depend
// on what else runs.
func threadTime(t *testing.T) time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &r); err != nil {
		t.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// The order of pairs is that of the keys: a script that builds a list gives the same one each time.
func TestLuaPairsAreSorted(t *testing.T) {
	k := luaKind(t, configv1alpha1.CustomizationRules{ReplicaRevision: luaScript(`function ReviseReplica(o, n)
  local keys = {}
  for key, _ in pairs(o.spec.map) do table.insert(keys, key) end
  o.spec.text = table.concat(keys)
  return o
end`)})
	for range 100 {
		u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"text": "", "map": map[string]any{
			"g": int64(1), "a": int64(1), "c": int64(1), "b": int64(1), "h": int64(1), "e": int64(1), "d": int64(1), "f": int64(1)}}}}
		if err := k.Revise(u, 1); err != nil {
			t.Fatal(err)
		}
		if text, _, _ := unstructured.NestedString(u.Object, "spec", "text"); text != "abcdefgh" {
			t.Fatalf("pairs gives %s", text)
		}
	}
}

// A result that is another object, or none, leaves the object as it is.
func TestLuaKeepsTheIdentity(t *testing.T) {
	for body, want := range map[string]string{
		`obj.kind = "Secret" return obj`:              "kind cannot be changed",
		`obj.metadata.name = "other" return obj`:      "metadata.name cannot be changed",
		`obj.metadata.namespace = nil return obj`:     "metadata.namespace cannot be changed",
		`obj.metadata = 1 return obj`:                 "metadata.name cannot be changed",
		`return nil`:                                  "has to be the object",
		`return {}`:                                   "apiVersion cannot be changed",
		`obj.spec = function() end return obj`:        "no value of an object",
		`obj.spec.list = {[1] = 1, x = 2} return obj`: "list without gaps",
	} {
		k := luaKind(t, configv1alpha1.CustomizationRules{ReplicaRevision: luaScript("function ReviseReplica(obj, n) " + body + " end")})
		obj := rollout()
		if err := k.Revise(obj, 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", body, err, want)
		}
		if diff := cmp.Diff(rollout().Object, obj.Object); diff != "" {
			t.Errorf("%s changed the object:\n%s", body, diff)
		}
	}
}

// FuzzLua: no script, whatever the object, panics or runs without end.
func FuzzLua(f *testing.F) {
	for _, body := range []string{
		`return {a = o.spec.replicas .. "x"}`, `for k, v in pairs(o) do o[k .. k] = v end return o`, `while true do end`,
		`return {a = string.format("%5.1f", 1), b = string.gsub("abc", "%w", "%0%0")}`, `local t = {} for i = 1, 10 do t[i] = {i} end return {t = t}`,
		`return require("kube").accuratePodRequirements(o.spec.template)`, `return {a = require("kube").resourceAdd("1", "100m")}`,
		`table.sort(o.spec.list, function(a, b) return a.a < b.a end) return {l = table.concat({1, 2}, ",")}`,
	} {
		f.Add("function ReflectStatus(o) " + body + " end")
	}
	f.Fuzz(func(t *testing.T, text string) {
		k, errs := compileScripts("fuzz", configv1alpha1.CustomizationRules{StatusReflection: luaScript(text)}, nil)
		if len(errs) > 0 || k.Reflect == nil {
			return
		}
		obj := rollout()
		first, err := k.Reflect(obj)
		if diff := cmp.Diff(rollout().Object, obj.Object); diff != "" {
			t.Fatalf("the object was changed:\n%s", diff)
		}
		again, errAgain := k.Reflect(obj)
		if (err == nil) != (errAgain == nil) || err == nil && len(first) != len(again) {
			t.Fatalf("two results: %v %v, %v %v", first, err, again, errAgain)
		}
	})
}
