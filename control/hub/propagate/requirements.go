package propagate

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	"github.com/pelago-net/pelago/control/hub/binding"
)

// detaching returns how long to wait for parent bindings that are gone, since they may be
// recreated.
func (r *reconciler) detaching(ctx context.Context, s subject) (time.Duration, error) {
	key := s.key
	gone := false
	if s.have.Exists() {
		for _, by := range s.have.Spec.RequiredBy {
			other := binding.New(client.ObjectKey{Namespace: by.Namespace, Name: by.Name})
			err := r.cache.Get(ctx, client.ObjectKeyFromObject(other), other.Object)
			if err != nil && !apierrors.IsNotFound(err) {
				return 0, fmt.Errorf("read binding %s, which requires %s: %w", by.Name, key, err)
			}
			gone = gone || err != nil
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !gone {
		delete(r.missing, key)
		return 0, nil
	}
	since, ok := r.missing[key]
	if !ok {
		since = time.Now()
		r.missing[key] = since
	}
	if wait := detachAfter - time.Since(since); wait > 0 {
		return wait, nil
	}
	delete(r.missing, key)
	return 0, nil
}

// requirements are what a policy refers to.
type requirements struct {
	// priority is that of the policy's priority class.
	priority *int32
	// missing names an object that does not exist, and without which the policy has no effect; "":
	// none.
	missing string
}

// requirements reads what a policy refers to.
func (r *reconciler) requirements(ctx context.Context, p *propagationPolicy) (need requirements, err error) {
	if p == nil {
		return need, nil
	}
	name, err := r.missingOverride(ctx, p)
	if err != nil {
		return need, err
	}
	if name != "" {
		need.missing = fmt.Sprintf("%s waits for the override policy %s, which its dependentOverrides name: create it", p, name)
		return need, nil
	}
	var found bool
	if need.priority, found, err = r.priority(ctx, p); err != nil {
		return requirements{}, err
	}
	if !found {
		class := p.Spec.SchedulePriority.PriorityClassName
		need.missing = fmt.Sprintf("%s names the PriorityClass %s, which the hub does not have: create it", p, class)
	}
	return need, nil
}

// missingOverride returns the name of an override policy that a policy depends on and that does not
// exist; "" if all exist.
func (r *reconciler) missingOverride(ctx context.Context, p *propagationPolicy) (string, error) {
	for _, name := range p.Spec.DependentOverrides {
		var o client.Object = &policyv1alpha1.OverridePolicy{}
		if p.clusterWide {
			o = &policyv1alpha1.ClusterOverridePolicy{}
		}
		err := r.live.Get(ctx, client.ObjectKey{Namespace: p.GetNamespace(), Name: name}, o)
		switch {
		case apierrors.IsNotFound(err):
			return name, nil
		case err != nil:
			return "", fmt.Errorf("read override policy %s, on which %s depends: %w", name, p, err)
		}
	}
	return "", nil
}
