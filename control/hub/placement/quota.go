package placement

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/scheduler"
)

// Quota bounds what the bindings of a namespace request in all clusters together.
type Quota struct {
	Name string
	Hard corev1.ResourceList
}

// QuotaError is a decision that would exceed a quota. It was not made.
type QuotaError struct {
	Quota    string
	Resource corev1.ResourceName
	// More is what the decision requests in addition, Hard the bound.
	More, Hard resource.Quantity
}

// Error names no momentary use: it would change with each decision in the namespace.
func (e *QuotaError) Error() string {
	return fmt.Sprintf("quota %s: exceeded by %s more %s, of at most %s: raise spec.overall of the FederatedResourceQuota, or scale down (its status has the use)",
		e.Quota, &e.More, e.Resource, &e.Hard)
}

// Counted is the resource of a workload that a name in a quota bounds; ok is false for names that
// nothing counts, such as limits.
func Counted(name corev1.ResourceName) (of corev1.ResourceName, ok bool) {
	of = corev1.ResourceName(strings.TrimPrefix(string(name), corev1.DefaultResourceRequestsPrefix))
	return of, !strings.HasPrefix(string(of), "limits.") && !strings.HasPrefix(string(of), "count/")
}

// Quantity is an amount of a load.
func Quantity(of corev1.ResourceName, n int64) resource.Quantity {
	switch of {
	case corev1.ResourceCPU:
		return *resource.NewMilliQuantity(n, resource.DecimalSI)
	case corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourceStorage:
		return *resource.NewQuantity(n, resource.BinarySI)
	}
	return *resource.NewQuantity(n, resource.DecimalSI)
}

// ComponentsLoad is what the components of a workload request together.
func ComponentsLoad(all []workv1alpha2.Component) (l scheduler.Load) {
	for _, c := range all {
		if c.Replicas > 0 { // a load has no amounts of 0
			l.Add(sizeOf(c.ReplicaRequirements), int64(c.Replicas))
		}
	}
	return l
}

// SizeOf is Observation.Size of a binding.
func SizeOf(s *workv1alpha2.ResourceBindingSpec) scheduler.Load {
	if len(s.Components) > 0 {
		return ComponentsLoad(s.Components)
	}
	return sizeOf(s.ReplicaRequirements)
}

// Total is what a binding requests in these clusters.
func Total(s *workv1alpha2.ResourceBindingSpec) scheduler.Load {
	return total(s.ReplicaRequirements, len(s.Components), ComponentsLoad(s.Components), s.Clusters)
}

func total(of *workv1alpha2.ReplicaRequirements, components int, together scheduler.Load, clusters []workv1alpha2.TargetCluster) (l scheduler.Load) {
	if components > 0 {
		l.Add(together, int64(len(clusters)))
		return l
	}
	var replicas int64
	for _, c := range clusters {
		replicas += int64(c.Replicas)
	}
	l.Add(sizeOf(of), replicas)
	return l
}

// SetQuotas replaces the quotas of a namespace.
func (r *Cache) SetQuotas(namespace string, quotas []Quota) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(quotas) == 0 {
		delete(r.quotas, namespace)
		return
	}
	r.quotas[namespace] = quotas
}

// exceeds returns a QuotaError if the binding of a key would request more of a resource than now,
// and more than a quota allows. Requests for the same or less are always allowed: a quota that is
// lowered below current usage removes nothing. r.mu is held.
func (r *Cache) exceeds(key string, next scheduler.Load) error {
	namespace := namespaceOf(key)
	quotas := r.quotas[namespace]
	if len(quotas) == 0 {
		return nil
	}
	var used, own scheduler.Load
	for other, b := range r.spaces[namespace] {
		if other == key {
			own = b.total
		} else {
			used.Add(b.requested(), 1)
		}
	}
	for _, q := range quotas {
		names := make([]corev1.ResourceName, 0, len(q.Hard))
		for name := range q.Hard {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			of, ok := Counted(name)
			hard := q.Hard[name]
			asked := clusterv1alpha1.Plus(used.Amount(of), next.Amount(of), 1)
			if more := next.Amount(of) - own.Amount(of); ok && more > 0 && asked > clusterv1alpha1.AmountOf(of, hard) {
				return &QuotaError{q.Name, name, Quantity(of, more), hard}
			}
		}
	}
	return nil
}

// Resize counts the replicas that a binding has as those of its next spec, unless each would
// request more than before and all of them more than a quota allows (*QuotaError). The caller
// writes next.
func (r *Cache) Resize(key string, have, next *workv1alpha2.ResourceBindingSpec) error {
	if sameSize(SizeOf(have), SizeOf(next)) {
		return nil
	}
	after := *next
	after.Clusters = slices.Clone(have.Clusters)
	left := next.Replicas // fewer may run, more are decided on
	for i := range after.Clusters {
		c := &after.Clusters[i]
		c.Replicas = min(c.Replicas, left)
		if next.Placement.Divided() {
			left -= c.Replicas
		}
	}
	total := Total(&after)
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.bindings[key]
	if b == nil {
		return nil // the decision is the first one
	}
	if err := r.exceeds(key, total); err != nil {
		return err
	}
	b.total = total
	return nil
}

// requested is what a binding requests; the larger amounts while a write has not ended.
func (b *bindingUsage) requested() scheduler.Load {
	if b.reserved == nil {
		return b.total
	}
	out := b.reserved.total.Clone()
	out.Pods = max(out.Pods, b.total.Pods)
	for _, a := range b.total.Amounts {
		if more := a.N - out.Amount(a.Of); more > 0 {
			out.Add(scheduler.Load{Amounts: []scheduler.Amount{{Of: a.Of, N: more}}}, 1)
		}
	}
	return out
}
