package kinds

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// Kind is what is known of one kind. What is nil is asked of the next source; what none knows has a default, which each method of
// Interpreter states. No function but Revise, Prune and Retain (its first object) changes an object.
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

// Source tells what it knows of a kind; the zero Kind: nothing.
type Source func(schema.GroupVersionKind) Kind

// DependentReference names what a template refers to, in the form of the annotation resourcebinding.karmada.io/dependencies.
// Either Name or LabelSelector is set.
type DependentReference struct {
	APIVersion    string                `json:"apiVersion"`
	Kind          string                `json:"kind"`
	Namespace     string                `json:"namespace,omitempty"`
	Name          string                `json:"name,omitempty"`
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
}

// Interpreter answers for objects of any kind.
type Interpreter struct {
	sources []Source
	custom  *Custom // nil: rules never change
}

// New returns an interpreter that asks the given sources in their order, then the rules for kinds of other projects that are
// built in, then what is built in for those of Kubernetes.
func New(before ...Source) *Interpreter {
	return &Interpreter{sources: append(append([]Source(nil), before...), thirdParty, native)}
}

// Follow calls f each time when rules of kinds have changed, until ctx ends: what was read by them may have to be read again. f is
// called where the rules are exchanged, and must not wait for anything.
func (in *Interpreter) Follow(ctx context.Context, f Changed) {
	if in.custom != nil {
		in.custom.follow(ctx, f)
	}
}

// kind merges what the sources know; the first one that knows an operation is the one that is asked.
func (in *Interpreter) kind(obj *unstructured.Unstructured) Kind {
	var k Kind
	for _, source := range in.sources {
		k = k.or(source(obj.GroupVersionKind()))
	}
	return k
}

// or fills in what k does not know.
func (k Kind) or(next Kind) Kind {
	if k.Replicas == nil {
		k.Replicas = next.Replicas
	}
	if k.Revise == nil {
		k.Revise = next.Revise
	}
	if k.Prune == nil {
		k.Prune = next.Prune
	}
	if k.Retain == nil {
		k.Retain = next.Retain
	}
	if k.Reflect == nil {
		k.Reflect = next.Reflect
	}
	if k.Aggregate == nil {
		k.Aggregate = next.Aggregate
	}
	if k.Healthy == nil {
		k.Healthy = next.Healthy
	}
	if k.Dependencies == nil {
		k.Dependencies = next.Dependencies
	}
	return k
}

// Replicas returns how many replicas a template asks for and what each of them asks for (nil: nothing). By default there are none,
// and ok is false.
func (in *Interpreter) Replicas(template *unstructured.Unstructured) (n int32, each *workv1alpha2.ReplicaRequirements, ok bool, err error) {
	k := in.kind(template)
	if k.Replicas == nil {
		return 0, nil, false, nil
	}
	if n, each, err = k.Replicas(template); err != nil {
		return 0, nil, false, failed("read the replicas of", template, err)
	}
	return n, each, true, nil
}

// Revise gives the object, which it changes, a number of replicas. By default it changes nothing.
func (in *Interpreter) Revise(obj *unstructured.Unstructured, replicas int32) error {
	if k := in.kind(obj); k.Revise != nil {
		if err := k.Revise(obj, replicas); err != nil {
			return failed("set the replicas of", obj, err)
		}
	}
	return nil
}

// Prune removes from the object, which it changes, what is not for members: what the hub's API server filled in, finalizers, owners
// and the status. By default that is all.
func (in *Interpreter) Prune(obj *unstructured.Unstructured) error {
	pruneCommon(obj)
	if k := in.kind(obj); k.Prune != nil {
		if err := k.Prune(obj); err != nil {
			return failed("prune", obj, err)
		}
	}
	return nil
}

// Retain returns the desired object with what is the member's in the observed one: by default its resourceVersion, finalizers,
// owners, and the labels and annotations that are not ours. Neither argument is changed.
func (in *Interpreter) Retain(desired, observed *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	out := desired.DeepCopy()
	retainCommon(out, observed)
	if k := in.kind(desired); k.Retain != nil {
		if err := k.Retain(out, observed); err != nil {
			return nil, failed("retain the member's fields of", desired, err)
		}
	}
	return out, nil
}

// ReflectStatus returns what of the status of a member's object the hub is told; nil if it has none. By default it is all of it.
func (in *Interpreter) ReflectStatus(observed *unstructured.Unstructured) (*runtime.RawExtension, error) {
	reflect := in.kind(observed).Reflect
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

// AggregateStatus returns the status of a template, made of what its clusters reflect; nil: it stays as it is, which is the default.
// The items are those of all clusters from which an answer is due, in the order of their names; a Status of nil says that there is
// none yet. The form is that in which the API server returns it, so what is equal to the template's need not be written.
func (in *Interpreter) AggregateStatus(template *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (map[string]any, error) {
	k := in.kind(template)
	if k.Aggregate == nil {
		return nil, nil
	}
	status, err := k.Aggregate(template, items)
	if err != nil {
		return nil, failed("aggregate the status of", template, err)
	}
	return status, nil
}

// Health says whether a member's object does what it is for; Unknown comes with an error. By default it is Healthy.
func (in *Interpreter) Health(observed *unstructured.Unstructured) (workv1alpha2.ResourceHealth, error) {
	k := in.kind(observed)
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

// Dependencies returns what a template refers to, each once, sorted by kind and name. By default there is nothing.
func (in *Interpreter) Dependencies(template *unstructured.Unstructured) ([]DependentReference, error) {
	k := in.kind(template)
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

// typed reads an object, or a part of one, as its Go type.
func typed[T any](from map[string]any) (*T, error) {
	out := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(from, out); err != nil {
		return nil, err
	}
	return out, nil
}

// int32At reads a number of an object.
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

// Custom holds the rules that users write, and can be given others at any time. Until it is given some, or released, whoever
// asks waits: what is decided without them would be decided otherwise.
type Custom struct {
	ready func()
	known <-chan struct{}

	mu    sync.RWMutex
	kinds map[schema.GroupVersionKind]Kind
	from  map[schema.GroupVersionKind][]*compiled // what the rules of a kind are made from, the older one first
	made  map[string]*compiled                    // by name

	following sync.Mutex
	followers map[*Changed]struct{}
}

// Changed is called with kinds whose rules are others now, or gone.
type Changed func(kinds map[schema.GroupVersionKind]bool)

// compiled is what was made of KindRules of a generation.
type compiled struct {
	uid        string
	generation int64
	kind       Kind
	errs       []error
}

// NewCustom returns rules that are not known yet.
func NewCustom() *Custom {
	known := make(chan struct{})
	return &Custom{known: known, ready: sync.OnceFunc(func() { close(known) }), followers: map[*Changed]struct{}{}}
}

// Interpreter asks these rules first.
func (c *Custom) Interpreter() *Interpreter {
	in := New(c.source)
	in.custom = c
	return in
}

// Release ends the wait, with the rules that are known. Nothing more is decided: the process ends.
func (c *Custom) Release() { c.ready() }

// Verdict is what is wrong with KindRules, nil if nothing is.
type Verdict struct {
	// Invalid are the rules that do not compile, *RuleError each.
	Invalid []error
	// Conflicts say for which kind a rule is not used, and which KindRules have the one that is.
	Conflicts []string
}

// Set replaces all rules. It returns what is wrong with which, by name. Of two rules for one operation of one kind that of the
// older KindRules is used. What has not changed since the last call is not compiled again.
func (c *Custom) Set(all []pelagov1alpha1.KindRules) map[string]Verdict {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b pelagov1alpha1.KindRules) int {
		if at := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); at != 0 {
			return at
		}
		return strings.Compare(a.Name, b.Name)
	})
	verdicts, changed := c.exchange(all)
	select {
	case <-c.known:
		c.tell(changed)
	default: // nobody has read anything without these rules
		c.ready()
	}
	return verdicts
}

// exchange replaces all rules, sorted by age. It returns the kinds whose rules are others than before.
func (c *Custom) exchange(all []pelagov1alpha1.KindRules) (map[string]Verdict, map[schema.GroupVersionKind]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	made := map[string]*compiled{}
	kinds := map[schema.GroupVersionKind]Kind{}
	from := map[schema.GroupVersionKind][]*compiled{}
	verdicts := map[string]Verdict{}
	first := map[taken]string{}
	for i := range all {
		r := &all[i]
		is, done := c.made[r.Name]
		if !done || is.uid != string(r.UID) || is.generation != r.Generation || r.Generation == 0 {
			is = &compiled{uid: string(r.UID), generation: r.Generation}
			is.kind, is.errs = compileRules("KindRules "+r.Name, r.Spec.Rules)
		}
		made[r.Name] = is
		v := Verdict{Invalid: is.errs}
		for _, k := range r.Spec.Kinds {
			gvk := schema.FromAPIVersionAndKind(k.APIVersion, k.Kind)
			for _, name := range named(r.Spec.Rules) {
				if older, there := first[taken{gvk, name}]; there {
					v.Conflicts = append(v.Conflicts, fmt.Sprintf("rule %s for %s %s: that of KindRules %s, which are older, is used",
						name, k.APIVersion, k.Kind, older))
					continue
				}
				first[taken{gvk, name}] = r.Name
			}
			kinds[gvk] = kinds[gvk].or(is.kind)
			from[gvk] = append(from[gvk], is)
		}
		if v.Invalid != nil || v.Conflicts != nil {
			verdicts[r.Name] = v
		}
	}
	changed := map[schema.GroupVersionKind]bool{}
	for gvk := range maps.Keys(from) {
		changed[gvk] = true
	}
	for gvk := range maps.Keys(c.from) {
		changed[gvk] = true
	}
	maps.DeleteFunc(changed, func(gvk schema.GroupVersionKind, _ bool) bool { return slices.Equal(from[gvk], c.from[gvk]) })
	c.made, c.kinds, c.from = made, kinds, from
	return verdicts, changed
}

// taken is a rule of a kind.
type taken struct {
	gvk  schema.GroupVersionKind
	rule string
}

// named lists the rules that there are; requirements come with replicas.
func named(r pelagov1alpha1.Rules) []string {
	var out []string
	for _, x := range []struct {
		name string
		text pelagov1alpha1.Expression
	}{
		{"replicas", r.Replicas}, {"revise", r.Revise}, {"prune", r.Prune}, {"retain", r.Retain}, {"reflect", r.Reflect},
		{"aggregate", r.Aggregate}, {"healthy", r.Healthy}, {"dependencies", r.Dependencies},
	} {
		if x.text != "" {
			out = append(out, x.name)
		}
	}
	return out
}

// source waits until rules are known.
func (c *Custom) source(gvk schema.GroupVersionKind) Kind {
	<-c.known
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.kinds[gvk]
}

// follow calls f each time when rules of kinds have changed that somebody may have used, until ctx ends.
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

func (c *Custom) tell(changed map[schema.GroupVersionKind]bool) {
	if len(changed) == 0 {
		return
	}
	c.following.Lock()
	all := slices.Collect(maps.Keys(c.followers))
	c.following.Unlock()
	for _, f := range all {
		(*f)(changed)
	}
}
