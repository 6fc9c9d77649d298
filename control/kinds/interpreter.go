package kinds

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"

	configv1alpha1 "github.com/pelago-net/pelago/api/config/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// Kind holds the operations of one kind. A nil operation is looked up in the next source; the method of Interpreter states its
// default. Only Revise, Prune and Retain change an object, Retain its first one.
type Kind struct {
	Replicas     func(template *unstructured.Unstructured) (int32, *workv1alpha2.ReplicaRequirements, error)
	Revise       func(obj *unstructured.Unstructured, replicas int32) error
	Prune        func(obj *unstructured.Unstructured) error
	Retain       func(desired, observed *unstructured.Unstructured) error
	Reflect      func(observed *unstructured.Unstructured) (map[string]any, error)
	Aggregate    func(template *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (map[string]any, error)
	Healthy      func(observed *unstructured.Unstructured) (bool, error)
	Dependencies func(template *unstructured.Unstructured) ([]DependentReference, error)
}

// or sets the operations that k lacks.
func (k Kind) or(next Kind) Kind {
	into, from := reflect.ValueOf(&k).Elem(), reflect.ValueOf(next)
	for i := range into.NumField() {
		if into.Field(i).IsNil() {
			into.Field(i).Set(from.Field(i))
		}
	}
	return k
}

// Source returns the operations that it has for a kind.
type Source func(schema.GroupVersionKind) Kind

// DependentReference names a dependency of a template, in the form of the annotation resourcebinding.karmada.io/dependencies.
// Either Name or LabelSelector is set.
type DependentReference struct {
	APIVersion    string                `json:"apiVersion"`
	Kind          string                `json:"kind"`
	Namespace     string                `json:"namespace,omitempty"`
	Name          string                `json:"name,omitempty"`
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
}

// Interpreter performs the operations on objects of any kind.
type Interpreter struct {
	kind   Source
	custom *Custom // nil: rules never change
}

// New returns an interpreter that takes each operation from the first of the sources that has it, then from the bundled rules
// and the built-in table.
func New(sources ...Source) *Interpreter {
	return &Interpreter{kind: func(gvk schema.GroupVersionKind) (k Kind) {
		for _, source := range sources {
			k = k.or(source(gvk))
		}
		return k.or(builtIn(gvk))
	}}
}

// builtIn returns the bundled rules of a kind, or its row in the table; no kind has both.
func builtIn(gvk schema.GroupVersionKind) Kind {
	if kind := bundled()[gvk]; kind != nil {
		return kind()
	}
	return kinds[gvk]
}

// Follow calls f each time rules have changed, until ctx ends: results obtained with the former rules may be outdated. f runs in
// the call that replaces the rules and must not block.
func (in *Interpreter) Follow(ctx context.Context, f Changed) {
	if in.custom != nil {
		in.custom.follow(ctx, f)
	}
}

func (in *Interpreter) of(obj *unstructured.Unstructured) Kind {
	return in.kind(obj.GroupVersionKind())
}

// Replicas returns the replicas of a template and what each requests (nil: nothing). By default there are none, and ok is false.
func (in *Interpreter) Replicas(template *unstructured.Unstructured) (n int32, each *workv1alpha2.ReplicaRequirements, ok bool, err error) {
	k := in.of(template)
	if k.Replicas == nil {
		return 0, nil, false, nil
	}
	if n, each, err = k.Replicas(template); err != nil {
		return 0, nil, false, failed("read the replicas of", template, err)
	}
	return n, each, true, nil
}

// Revise sets the number of replicas of the object. By default it changes nothing.
func (in *Interpreter) Revise(obj *unstructured.Unstructured, replicas int32) error {
	if k := in.of(obj); k.Revise != nil {
		if err := k.Revise(obj, replicas); err != nil {
			return failed("set the replicas of", obj, err)
		}
	}
	return nil
}

// Prune removes the fields that are not for members: what the hub's API server set, finalizers, owners and the status. By default
// that is all.
func (in *Interpreter) Prune(obj *unstructured.Unstructured) error {
	pruneCommon(obj)
	if k := in.of(obj); k.Prune != nil {
		if err := k.Prune(obj); err != nil {
			return failed("prune", obj, err)
		}
	}
	return nil
}

// Retain returns the desired object with the fields that the member owns as observed: by default its resourceVersion, finalizers,
// owners, and the labels and annotations that are not ours. Neither argument is changed.
func (in *Interpreter) Retain(desired, observed *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	out := desired.DeepCopy()
	retainCommon(out, observed)
	if k := in.of(desired); k.Retain != nil {
		if err := k.Retain(out, observed); err != nil {
			return nil, failed("retain the member's fields of", desired, err)
		}
	}
	return out, nil
}

// ReflectStatus returns the part of the status of a member's object that the hub receives; nil if it has none. By default it is
// the whole status.
func (in *Interpreter) ReflectStatus(observed *unstructured.Unstructured) (*runtime.RawExtension, error) {
	reflect := in.of(observed).Reflect
	if reflect == nil {
		reflect = wholeStatus
	}
	status, err := reflect(observed)
	if err != nil {
		return nil, failed("reflect the status of", observed, err)
	}
	if status == nil {
		return nil, nil
	}
	raw, err := json.Marshal(status)
	if err != nil {
		return nil, failed("reflect the status of", observed, err)
	}
	return &runtime.RawExtension{Raw: raw}, nil
}

// AggregateStatus returns the status of a template from what its clusters reflect; nil, the default, leaves it unchanged. There is
// an item for each cluster that is expected to report, in the order of their names; one whose Status is nil has not reported.
// The result has the form in which the API server returns it, so a status equal to the template's needs no write.
func (in *Interpreter) AggregateStatus(template *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (map[string]any, error) {
	k := in.of(template)
	if k.Aggregate == nil {
		return nil, nil
	}
	status, err := k.Aggregate(template, items)
	if err != nil {
		return nil, failed("aggregate the status of", template, err)
	}
	return status, nil
}

// Health returns the health of a member's object; an error comes with Unknown. The default is Healthy.
func (in *Interpreter) Health(observed *unstructured.Unstructured) (workv1alpha2.ResourceHealth, error) {
	k := in.of(observed)
	if k.Healthy == nil {
		return workv1alpha2.ResourceHealthy, nil
	}
	healthy, err := k.Healthy(observed)
	switch {
	case err != nil:
		return workv1alpha2.ResourceUnknown, failed("read the health of", observed, err)
	case healthy:
		return workv1alpha2.ResourceHealthy, nil
	}
	return workv1alpha2.ResourceUnhealthy, nil
}

// Dependencies returns the objects that a template refers to, each once, sorted by kind and name. By default there are none.
func (in *Interpreter) Dependencies(template *unstructured.Unstructured) ([]DependentReference, error) {
	k := in.of(template)
	if k.Dependencies == nil {
		return nil, nil
	}
	refs, err := k.Dependencies(template)
	if err != nil {
		return nil, failed("read the dependencies of", template, err)
	}
	return refs, nil
}

func failed(action string, obj *unstructured.Unstructured, err error) error {
	name := obj.GetName()
	if ns := obj.GetNamespace(); ns != "" {
		name = ns + "/" + name
	}
	return fmt.Errorf("%s %s %s: %w", action, obj.GetKind(), name, err)
}

// typed converts an object, or a part of one, to its Go type.
func typed[T any](from map[string]any) (*T, error) {
	out := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(from, out); err != nil {
		return nil, err
	}
	return out, nil
}

// int32At reads a number of replicas.
func int32At(obj *unstructured.Unstructured, otherwise int32, path ...string) (int32, error) {
	n, found, err := unstructured.NestedInt64(obj.Object, path...)
	switch {
	case err != nil:
		return 0, err
	case !found:
		return otherwise, nil
	case n < 0 || n > math.MaxInt32:
		return 0, fmt.Errorf("%v is %d, which is no number of replicas", path, n)
	}
	return int32(n), nil
}

// Custom holds the rules of KindRules and ResourceInterpreterCustomizations, replaceable at any time. Its interpreter blocks until
// rules were set, or Release was called: without them a decision could be a different one.
type Custom struct {
	ready func()
	known <-chan struct{}

	mu       sync.RWMutex
	kinds    map[schema.GroupVersionKind]Kind        // with the built-in operations of these kinds
	sources  map[schema.GroupVersionKind][]*compiled // the rules of each kind, those with precedence first
	compiled map[string]*compiled                    // by origin
	rules    []ruleSet                               // of KindRules
	scripts  []ruleSet                               // of customizations
	// exhausted is notified when a script exceeds its bounds.
	exhausted chan struct{}

	following sync.Mutex
	followers map[*Changed]struct{}
}

// Changed is called with the kinds whose rules were changed or removed.
type Changed func(kinds map[schema.GroupVersionKind]bool)

// ruleSet is a KindRules or a ResourceInterpreterCustomization.
type ruleSet struct {
	metav1.ObjectMeta
	origin  string // kind and name
	kinds   []schema.GroupVersionKind
	rules   []string // those that are set, by their names in KindRules
	compile func(exhausted func(error)) (Kind, []error)
}

// compiled holds the rules of a generation of a ruleSet.
type compiled struct {
	uid        string
	generation int64
	kind       Kind
	errs       []error
	exhausted  atomic.Pointer[string] // the first error of a script that exceeded its bounds
}

// NewCustom returns rules that are not known yet.
func NewCustom() *Custom {
	known := make(chan struct{})
	return &Custom{
		known: known, ready: sync.OnceFunc(func() { close(known) }), followers: map[*Changed]struct{}{}, exhausted: make(chan struct{}, 1),
	}
}

// Interpreter returns an interpreter that prefers these rules to the built-in ones.
func (c *Custom) Interpreter() *Interpreter { return &Interpreter{kind: c.kind, custom: c} }

// kind blocks until rules are known.
func (c *Custom) kind(gvk schema.GroupVersionKind) Kind {
	<-c.known
	c.mu.RLock()
	defer c.mu.RUnlock()
	if k, ok := c.kinds[gvk]; ok {
		return k
	}
	return builtIn(gvk)
}

// Release unblocks the interpreter with the rules known so far.
func (c *Custom) Release() { c.ready() }

// Verdict lists the problems of KindRules or of a customization.
type Verdict struct {
	// Invalid are the rules that do not compile, *RuleError each.
	Invalid []error
	// Conflicts name the kinds for which a rule is not used, and the object whose rule is.
	Conflicts []string
	// Exhausted is the first error of a script that exceeded its bounds; it is still used.
	Exhausted string
}

// Set replaces all KindRules and returns the problems of each, by name. Of two rules for one operation of one kind, that of the
// older object is used. Unchanged generations are not compiled again.
func (c *Custom) Set(all []pelagov1alpha1.KindRules) map[string]Verdict {
	sets := make([]ruleSet, len(all))
	for i := range all {
		spec := all[i].Spec
		sets[i] = ruleSet{ObjectMeta: all[i].ObjectMeta, origin: "KindRules " + all[i].Name, rules: named(spec.Rules)}
		for _, k := range spec.Kinds {
			sets[i].kinds = append(sets[i].kinds, schema.FromAPIVersionAndKind(k.APIVersion, k.Kind))
		}
		sets[i].compile = func(func(error)) (Kind, []error) { return compileRules("KindRules "+all[i].Name, spec.Rules) }
	}
	verdicts := c.replaceSets(&c.rules, sets)
	c.ready()
	return verdicts
}

// SetScripts replaces all customizations, whose rules are used where KindRules have none, and returns the problems of each, by name.
// It does not unblock the interpreter: it is called before Set.
func (c *Custom) SetScripts(all []configv1alpha1.ResourceInterpreterCustomization) map[string]Verdict {
	sets := make([]ruleSet, len(all))
	for i := range all {
		spec, origin := all[i].Spec, "ResourceInterpreterCustomization "+all[i].Name
		sets[i] = ruleSet{
			ObjectMeta: all[i].ObjectMeta, origin: origin, rules: scripted(spec.Customizations),
			kinds: []schema.GroupVersionKind{schema.FromAPIVersionAndKind(spec.Target.APIVersion, spec.Target.Kind)},
			compile: func(exhausted func(error)) (Kind, []error) {
				return compileScripts(origin, spec.Customizations, exhausted)
			},
		}
	}
	return c.replaceSets(&c.scripts, sets)
}

// replaceSets replaces the rules of one source and notifies the followers of the kinds whose rules have changed. It returns the
// problems of the new sets, by name.
func (c *Custom) replaceSets(of *[]ruleSet, sets []ruleSet) map[string]Verdict {
	slices.SortFunc(sets, func(a, b ruleSet) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	c.mu.Lock()
	*of = sets
	verdicts, changed := c.replace(slices.Concat(c.rules, c.scripts))
	c.mu.Unlock()
	select {
	case <-c.known:
		c.notify(changed)
	default: // no result depends on earlier rules
	}
	out := map[string]Verdict{}
	for i := range sets {
		if v, problems := verdicts[sets[i].origin]; problems {
			out[sets[i].Name] = v
		}
	}
	return out
}

// replace replaces all rules, which are sorted by precedence. It returns the problems by origin, and the kinds whose rules have
// changed. c.mu is held.
func (c *Custom) replace(all []ruleSet) (map[string]Verdict, map[schema.GroupVersionKind]bool) {
	type ruleOfKind struct {
		gvk  schema.GroupVersionKind
		rule string
	}
	byOrigin := map[string]*compiled{}
	sources := map[schema.GroupVersionKind][]*compiled{}
	verdicts := map[string]Verdict{}
	first := map[ruleOfKind]string{}
	for i := range all {
		r := &all[i]
		is, known := c.compiled[r.origin]
		if !known || is.uid != string(r.UID) || is.generation != r.Generation || r.Generation == 0 {
			is = &compiled{uid: string(r.UID), generation: r.Generation}
			is.kind, is.errs = r.compile(func(err error) {
				text := err.Error()
				if is.exhausted.CompareAndSwap(nil, &text) {
					notify(c.exhausted)
				}
			})
		}
		byOrigin[r.origin] = is
		v := Verdict{Invalid: is.errs}
		if text := is.exhausted.Load(); text != nil {
			v.Exhausted = *text
		}
		for _, gvk := range r.kinds {
			for _, name := range r.rules {
				if other, conflict := first[ruleOfKind{gvk, name}]; conflict {
					v.Conflicts = append(v.Conflicts, fmt.Sprintf("rule %s for %s %s: that of %s is used",
						name, gvk.GroupVersion(), gvk.Kind, precedes(other, r.origin)))
					continue
				}
				first[ruleOfKind{gvk, name}] = r.origin
			}
			sources[gvk] = append(sources[gvk], is)
		}
		if v.Invalid != nil || v.Conflicts != nil || v.Exhausted != "" {
			verdicts[r.origin] = v
		}
	}
	kinds := map[schema.GroupVersionKind]Kind{}
	changed := map[schema.GroupVersionKind]bool{}
	for gvk, of := range sources {
		for _, is := range of {
			kinds[gvk] = kinds[gvk].or(is.kind)
		}
		kinds[gvk] = kinds[gvk].or(builtIn(gvk))
		changed[gvk] = true
	}
	for gvk := range c.sources {
		changed[gvk] = true
	}
	maps.DeleteFunc(changed, func(gvk schema.GroupVersionKind, _ bool) bool { return slices.Equal(sources[gvk], c.sources[gvk]) })
	c.compiled, c.kinds, c.sources = byOrigin, kinds, sources
	return verdicts, changed
}

// precedes names the object whose rule is used, and why if that is its age.
func precedes(first, second string) string {
	of, _, _ := strings.Cut(first, " ")
	switch {
	case !strings.HasPrefix(second, of+" "):
		return first
	case of == "KindRules":
		return first + ", which are older,"
	}
	return first + ", which is older,"
}

// named lists the rules that are set. The requirements belong to replicas.
func named(r pelagov1alpha1.Rules) []string {
	var out []string
	for _, rule := range []struct {
		name string
		text pelagov1alpha1.Expression
	}{
		{"replicas", r.Replicas}, {"revise", r.Revise}, {"prune", r.Prune}, {"retain", r.Retain}, {"reflect", r.Reflect},
		{"aggregate", r.Aggregate}, {"healthy", r.Healthy}, {"dependencies", r.Dependencies},
	} {
		if rule.text != "" {
			out = append(out, rule.name)
		}
	}
	return out
}

// scripted lists the rules that a customization has, by their names in KindRules.
func scripted(c configv1alpha1.CustomizationRules) []string {
	var out []string
	for _, rule := range []struct {
		name   string
		script *configv1alpha1.Script
	}{
		{"replicas", c.ReplicaResource}, {"revise", c.ReplicaRevision}, {"retain", c.Retention}, {"reflect", c.StatusReflection},
		{"aggregate", c.StatusAggregation}, {"healthy", c.HealthInterpretation}, {"dependencies", c.DependencyInterpretation},
	} {
		if rule.script != nil && rule.script.LuaScript != "" {
			out = append(out, rule.name)
		}
	}
	return out
}

// follow calls f each time rules that may have been used have changed, until ctx ends.
func (c *Custom) follow(ctx context.Context, f Changed) {
	c.following.Lock()
	defer c.following.Unlock()
	c.followers[&f] = struct{}{}
	context.AfterFunc(ctx, func() {
		c.following.Lock()
		defer c.following.Unlock()
		delete(c.followers, &f)
	})
}

func (c *Custom) notify(changed map[schema.GroupVersionKind]bool) {
	if len(changed) == 0 {
		return
	}
	c.following.Lock()
	followers := slices.Collect(maps.Keys(c.followers))
	c.following.Unlock()
	for _, f := range followers {
		(*f)(changed)
	}
}
