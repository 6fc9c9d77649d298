package kinds

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
)

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
