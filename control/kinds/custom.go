package kinds

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	configv1alpha1 "github.com/pelago-net/pelago/api/config/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
)

// Custom holds the rules of KindRules, ResourceInterpreterCustomizations and webhooks, replaceable
// at any time. Its interpreter blocks until rules were set, or Release was called: without them a
// decision could be a different one.
type Custom struct {
	ready func()
	known <-chan struct{}

	mu sync.RWMutex
	// the operations of all sources together, filled on request
	kinds map[schema.GroupVersionKind]Kind
	// the rules of each kind, those with precedence first
	sources  map[schema.GroupVersionKind][]*compiled
	compiled map[string]*compiled // by origin
	rules    []ruleSet            // of KindRules
	scripts  []ruleSet            // of customizations
	webhooks Source               // used where neither has a rule; nil: none
	served   map[schema.GroupVersionKind]bool
	// exhausted is notified when a script exceeds its bounds.
	exhausted chan struct{}

	following sync.Mutex
	followers map[*Changed]struct{}
}

// Changed is called with a function that reports whether rules of a kind were changed or removed.
type Changed func(of func(schema.GroupVersionKind) bool)

// ruleSet is a KindRules or a ResourceInterpreterCustomization.
type ruleSet struct {
	metav1.ObjectMeta
	origin  string // kind and name
	kinds   []schema.GroupVersionKind
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
		kinds: map[schema.GroupVersionKind]Kind{},
	}
}

// Interpreter returns an interpreter that prefers these rules to the built-in ones.
func (c *Custom) Interpreter() *Interpreter { return &Interpreter{kind: c.kind, custom: c} }

// kind blocks until rules are known.
func (c *Custom) kind(gvk schema.GroupVersionKind) Kind {
	<-c.known
	c.mu.RLock()
	k, ok := c.kinds[gvk]
	c.mu.RUnlock()
	if ok {
		return k
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var dependencies []dependenciesOf
	for _, of := range c.sourcesOf(gvk) {
		k = k.or(of.kind)
		if of.kind.Dependencies != nil {
			dependencies = append(dependencies, of.kind.Dependencies)
		}
	}
	if len(dependencies) > 1 {
		k.Dependencies = union(dependencies)
	}
	if c.webhooks != nil {
		k = k.or(c.webhooks(gvk))
	}
	k = k.withBuiltIn(gvk)
	c.kinds[gvk] = k
	return k
}

// sourcesOf are the rules for a kind: those of its version, then those of other versions that the
// hub serves, the more stable first. Which version an object is read in depends on what others
// write, such as a policy, and must not switch rules off. c.mu is held.
func (c *Custom) sourcesOf(gvk schema.GroupVersionKind) []*compiled {
	out := slices.Clone(c.sources[gvk])
	var others []schema.GroupVersionKind
	for other := range c.sources {
		if other != gvk && other.GroupKind() == gvk.GroupKind() && c.served[other] {
			others = append(others, other)
		}
	}
	slices.SortFunc(others, func(a, b schema.GroupVersionKind) int {
		return version.CompareKubeAwareVersionStrings(b.Version, a.Version)
	})
	for _, other := range others {
		for _, of := range c.sources[other] {
			if !slices.Contains(out, of) {
				out = append(out, of)
			}
		}
	}
	return out
}

// SetServed sets the kinds of rules that the hub serves in their version: these rules are used for
// the other versions of the kind, too.
func (c *Custom) SetServed(served map[schema.GroupVersionKind]bool) {
	c.mu.Lock()
	if maps.Equal(c.served, served) {
		c.mu.Unlock()
		return
	}
	before := c.served
	c.served, c.kinds = maps.Clone(served), map[schema.GroupVersionKind]Kind{}
	c.mu.Unlock()
	c.notify(func(gvk schema.GroupVersionKind) bool {
		for _, one := range []map[schema.GroupVersionKind]bool{before, served} {
			for of := range one {
				if of.GroupKind() == gvk.GroupKind() && before[of] != served[of] {
					return true
				}
			}
		}
		return false
	})
}

// dependenciesOf is the operation of that name.
type dependenciesOf = func(template *unstructured.Unstructured) ([]DependentReference, error)

// union adds up dependencies, as Karmada does: each of several teams names what it knows of. If one
// rule fails there is no result, since a partial one would remove dependencies.
func union(all []dependenciesOf) dependenciesOf {
	return func(template *unstructured.Unstructured) ([]DependentReference, error) {
		var out []DependentReference
		for _, of := range all {
			refs, err := of(template)
			if err != nil {
				return nil, err
			}
			out = append(out, refs...)
		}
		return sortedOnce(out), nil
	}
}

// SetWebhooks replaces the webhooks, which are used where neither KindRules nor customizations have
// a rule. changed reports whether those of a kind are others than before. It does not unblock the
// interpreter: it is called before Set.
func (c *Custom) SetWebhooks(webhooks Source, changed func(schema.GroupVersionKind) bool) {
	c.mu.Lock()
	c.webhooks, c.kinds = webhooks, map[schema.GroupVersionKind]Kind{}
	c.mu.Unlock()
	c.notify(changed)
}

// Exhausted is notified when a script has exceeded its bounds: the verdicts of Set and SetScripts
// have changed.
func (c *Custom) Exhausted() <-chan struct{} { return c.exhausted }

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

// Set replaces all KindRules and returns the problems of each, by name. Of two rules for one
// operation of one kind, that of the older object is used; dependencies add up. Unchanged
// generations are not compiled again.
func (c *Custom) Set(all []pelagov1alpha1.KindRules) map[string]Verdict {
	sets := make([]ruleSet, len(all))
	for i := range all {
		spec := all[i].Spec
		sets[i] = ruleSet{ObjectMeta: all[i].ObjectMeta, origin: "KindRules " + all[i].Name}
		for _, k := range spec.Kinds {
			sets[i].kinds = append(sets[i].kinds, schema.FromAPIVersionAndKind(k.APIVersion, k.Kind))
		}
		sets[i].compile = func(func(error)) (Kind, []error) { return compileRules("KindRules "+all[i].Name, spec.Rules) }
	}
	verdicts := c.replaceSets(&c.rules, sets)
	c.ready()
	return verdicts
}

// SetScripts replaces all customizations, whose rules are used where KindRules have none, and
// returns the problems of each, by name. It does not unblock the interpreter: it is called before
// Set.
func (c *Custom) SetScripts(all []configv1alpha1.ResourceInterpreterCustomization) map[string]Verdict {
	sets := make([]ruleSet, len(all))
	for i := range all {
		spec, origin := all[i].Spec, "ResourceInterpreterCustomization "+all[i].Name
		sets[i] = ruleSet{
			ObjectMeta: all[i].ObjectMeta, origin: origin,
			kinds: []schema.GroupVersionKind{schema.FromAPIVersionAndKind(spec.Target.APIVersion, spec.Target.Kind)},
			compile: func(exhausted func(error)) (Kind, []error) {
				return compileScripts(origin, spec.Customizations, exhausted)
			},
		}
	}
	return c.replaceSets(&c.scripts, sets)
}

// replaceSets replaces the rules of one source and notifies the followers of the kinds whose rules
// have changed. It returns the problems of the new sets, by name.
func (c *Custom) replaceSets(of *[]ruleSet, sets []ruleSet) map[string]Verdict {
	slices.SortFunc(sets, func(a, b ruleSet) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	c.mu.Lock()
	*of = sets
	verdicts, changed := c.replace(slices.Concat(c.rules, c.scripts))
	c.mu.Unlock()
	if len(changed) > 0 {
		of := map[schema.GroupKind]bool{} // in all versions
		for gvk := range changed {
			of[gvk.GroupKind()] = true
		}
		c.notify(func(gvk schema.GroupVersionKind) bool { return of[gvk.GroupKind()] })
	}
	out := map[string]Verdict{}
	for i := range sets {
		if v, problems := verdicts[sets[i].origin]; problems {
			out[sets[i].Name] = v
		}
	}
	return out
}

// replace replaces all rules, which are sorted by precedence. It returns the problems by origin,
// and the kinds whose rules have changed. c.mu is held.
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
				if !is.exhausted.CompareAndSwap(nil, &text) {
					return
				}
				select {
				case c.exhausted <- struct{}{}:
				default: // already notified
				}
			})
		}
		byOrigin[r.origin] = is
		v := Verdict{Invalid: is.errs}
		if text := is.exhausted.Load(); text != nil {
			v.Exhausted = *text
		}
		for _, gvk := range r.kinds {
			for _, name := range is.kind.operations() {
				if name == "dependencies" {
					continue // they add up
				}
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
	changed := map[schema.GroupVersionKind]bool{}
	for gvk := range sources {
		changed[gvk] = true
	}
	for gvk := range c.sources {
		changed[gvk] = true
	}
	maps.DeleteFunc(changed, func(gvk schema.GroupVersionKind, _ bool) bool { return slices.Equal(sources[gvk], c.sources[gvk]) })
	c.compiled, c.kinds, c.sources = byOrigin, map[schema.GroupVersionKind]Kind{}, sources
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

func (c *Custom) notify(changed func(schema.GroupVersionKind) bool) {
	select {
	case <-c.known:
	default:
		return // no result depends on earlier rules
	}
	c.following.Lock()
	followers := slices.Collect(maps.Keys(c.followers))
	c.following.Unlock()
	for _, f := range followers {
		(*f)(changed)
	}
}
