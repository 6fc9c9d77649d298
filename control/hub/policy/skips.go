package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// namedSkips bounds how many objects the condition of a policy names.
const namedSkips = 10

// Skips collects the rules of override policies that were skipped since an object lacks their path.
// The controllers that render Works report them; the controllers of policies write them as
// ConditionRulesSkipped. The zero value is ready.
type Skips struct {
	mu      sync.Mutex
	of      map[client.ObjectKey]map[string][]string // policy → reporter → reasons
	changed []func(client.ObjectKey)
}

// Report replaces the skipped rules of one reporter: a binding or a Namespace.
func (s *Skips) Report(reporter string, skipped []SkippedRule) {
	now := map[client.ObjectKey][]string{}
	for _, r := range skipped {
		key := client.ObjectKey{Namespace: r.Namespace, Name: r.Policy}
		if !slices.Contains(now[key], r.Reason) { // the same for several clusters
			now[key] = append(now[key], r.Reason)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, reporters := range s.of {
		if _, before := reporters[reporter]; before && now[key] == nil {
			if delete(reporters, reporter); len(reporters) == 0 {
				delete(s.of, key)
			}
			s.notify(key)
		}
	}
	for key, reasons := range now {
		if slices.Equal(s.of[key][reporter], reasons) {
			continue
		}
		if s.of == nil {
			s.of = map[client.ObjectKey]map[string][]string{}
		}
		if s.of[key] == nil {
			s.of[key] = map[string][]string{}
		}
		s.of[key][reporter] = reasons
		s.notify(key)
	}
}

// notify calls the followers. s.mu is held.
func (s *Skips) notify(policy client.ObjectKey) {
	for _, f := range s.changed {
		f(policy)
	}
}

// follow calls f with each policy whose skipped rules change. f must not block.
func (s *Skips) follow(f func(client.ObjectKey)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = append(s.changed, f)
}

// message lists the skipped rules of a policy; "" if no rule was skipped.
func (s *Skips) message(policy client.ObjectKey) string {
	s.mu.Lock()
	reporters := s.of[policy]
	var all []string
	for _, reporter := range slices.Sorted(maps.Keys(reporters)) {
		if len(all) == namedSkips {
			all = append(all, fmt.Sprintf("and %d more objects", len(reporters)-namedSkips))
			break
		}
		all = append(all, strings.Join(reporters[reporter], "; "))
	}
	s.mu.Unlock()
	return strings.Join(all, "; ")
}

// skip sets ConditionRulesSkipped in the status, or removes it if the message is empty. It reports
// whether that changed anything.
func skip(status *policyv1alpha1.PolicyStatus, generation int64, text string) (changed bool) {
	if text == "" {
		return meta.RemoveStatusCondition(&status.Conditions, policyv1alpha1.ConditionRulesSkipped)
	}
	return meta.SetStatusCondition(&status.Conditions, metav1.Condition{Type: policyv1alpha1.ConditionRulesSkipped,
		Status: metav1.ConditionTrue, Reason: policyv1alpha1.ReasonPathMissing, ObservedGeneration: generation, Message: clip(text)})
}
