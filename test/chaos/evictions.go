package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/test/chaos/check"
	"github.com/pelago-net/pelago/test/hubset"
)

// The template that is evicted, with a ConfigMap that follows it.
const (
	evictedNamespace = "chaos-evicted"
	evictedName      = "evicted"
	evictedReplicas  = 50
	stateLabel       = "chaos.pelago.io/ready"
	evictingTaint    = "chaos.pelago.io/broken"
)

// evicted is a template that runs in one of the simulated members and leaves it: the application
// fails there, or the cluster is tainted, or it is cut off from the hub. With purge mode Directly
// it must never run in two, and the number of ready replicas goes along as a label.
type evicted struct {
	stage   *stage
	members []string

	mu    sync.Mutex
	left  string // the member that it is leaving, or has left last
	state string // the label that it must begin with elsewhere
	moves int
	found []check.Violation
}

// newEvicted makes the template, and waits until it runs.
func newEvicted(ctx context.Context, s *stage) (*evicted, error) {
	e := &evicted{stage: s}
	for _, m := range s.set.Members {
		if m.Simulated == nil {
			continue
		}
		e.members = append(e.members, m.Name)
		if err := e.observe(ctx, m); err != nil {
			return nil, err
		}
	}
	if len(e.members) < 2 {
		return nil, fmt.Errorf("evictions need two simulated members, there are %d: set -simulated 2", len(e.members))
	}
	preserve := &policyv1alpha1.StatePreservation{Rules: []policyv1alpha1.StatePreservationRule{{AliasLabelName: stateLabel, JSONPath: "{.readyReplicas}"}}}
	meta, labels := metav1.ObjectMeta{Namespace: evictedNamespace, Name: evictedName}, map[string]string{"app": evictedName}
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: evictedNamespace}},
		&policyv1alpha1.PropagationPolicy{ObjectMeta: meta, Spec: policyv1alpha1.PropagationSpec{PropagateDeps: true,
			ResourceSelectors: []policyv1alpha1.ResourceSelector{{APIVersion: "apps/v1", Kind: "Deployment", Name: evictedName}},
			Placement: policyv1alpha1.Placement{ClusterAffinity: &policyv1alpha1.ClusterAffinity{ClusterNames: e.members},
				SpreadConstraints: []policyv1alpha1.SpreadConstraint{{SpreadByField: policyv1alpha1.SpreadByFieldCluster, MinGroups: 1, MaxGroups: 1}}},
			Failover: &policyv1alpha1.FailoverBehavior{
				Application: &policyv1alpha1.ApplicationFailoverBehavior{PurgeMode: policyv1alpha1.PurgeModeDirectly, StatePreservation: preserve,
					DecisionConditions: policyv1alpha1.DecisionConditions{TolerationSeconds: ptr.To[int32](1)}},
				Cluster: &policyv1alpha1.ClusterFailoverBehavior{PurgeMode: policyv1alpha1.PurgeModeDirectly, StatePreservation: preserve},
			}}},
		&corev1.ConfigMap{ObjectMeta: meta},
		&appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](evictedReplicas),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "c", Image: "registry.example/app:v1"}},
				Volumes: []corev1.Volume{{Name: "conf", VolumeSource: corev1.VolumeSource{
					ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: evictedName}}}}},
			}}}},
	} {
		if err := s.churn.insist(ctx, s.churn.making(o)); err != nil {
			return nil, fmt.Errorf("create %s: %w", o.GetName(), err)
		}
	}
	return e, nil
}

// observe follows where the Deployment is.
func (e *evicted) observe(ctx context.Context, m *hubset.Member) error {
	c, err := metadata.NewForConfig(m.Config)
	if err != nil {
		return fmt.Errorf("watch %s: %w", m.Name, err)
	}
	informer := metadatainformer.NewFilteredMetadataInformer(c, kinds["Deployment"], evictedNamespace, 0, cache.Indexers{}, nil).Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { e.seen(ctx, m.Name, o.(*metav1.PartialObjectMetadata)) },
	}); err != nil {
		return fmt.Errorf("watch %s: %w", m.Name, err)
	}
	go informer.Run(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return ctx.Err()
	}
	return nil
}

// seen checks a copy that starts: no other copy may run, and it must have the state of the previous
// one. Events of different members arrive in any order, so the other members are read.
func (e *evicted) seen(ctx context.Context, member string, o *metav1.PartialObjectMetadata) {
	for _, other := range e.members {
		var d appsv1.Deployment
		if other != member && e.stage.members[other].Get(ctx, client.ObjectKey{Namespace: evictedNamespace, Name: evictedName}, &d) == nil {
			e.violate(check.Duplicated, "Deployment %s begins in %s and runs in %s", evictedName, member, other)
		}
	}
	e.mu.Lock()
	state := e.state
	e.mu.Unlock()
	if got := o.Labels[stateLabel]; got != state {
		e.violate(check.Wrong, "Deployment %s begins in %s with %s=%q, want %q", evictedName, member, stateLabel, got, state)
	}
}

func (e *evicted) violate(fault check.Fault, format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.found = append(e.found, check.Violation{Fault: fault, What: fmt.Sprintf(format, args...)})
}

// violations are those found so far.
func (e *evicted) violations() []check.Violation {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.found)
}

// missing is what is not as wanted yet: one member has the objects, not the one that they have
// left, by one binding and one Work each, and no eviction is running.
func (e *evicted) missing(ctx context.Context) ([]check.Violation, error) {
	var out []check.Violation
	say := func(fault check.Fault, format string, args ...any) {
		out = append(out, check.Violation{Fault: fault, What: fmt.Sprintf(format, args...)})
	}
	e.mu.Lock()
	left := e.left
	e.mu.Unlock()
	for kind, o := range map[string]client.Object{"Deployment": &appsv1.Deployment{}, "ConfigMap": &corev1.ConfigMap{}} {
		var in []string
		for _, m := range e.members {
			err := e.stage.members[m].Get(ctx, client.ObjectKey{Namespace: evictedNamespace, Name: evictedName}, o)
			if client.IgnoreNotFound(err) != nil {
				return nil, fmt.Errorf("read %s of %s: %w", kind, m, err)
			}
			if err == nil {
				in = append(in, m)
			}
		}
		switch {
		case len(in) == 0:
			say(check.Lost, "%s %s runs nowhere", kind, evictedName)
		case len(in) > 1:
			say(check.Duplicated, "%s %s in %v", kind, evictedName, in)
		case in[0] == left:
			say(check.Left, "%s %s in %s", kind, evictedName, left)
		}
	}
	var bindings workv1alpha2.ResourceBindingList
	if err := e.stage.hub.List(ctx, &bindings, client.InNamespace(evictedNamespace)); err != nil {
		return nil, fmt.Errorf("read the bindings: %w", err)
	}
	if n := len(bindings.Items); n != 2 {
		say(check.Duplicated, "%d bindings of %s and its ConfigMap", n, evictedName)
	}
	for _, b := range bindings.Items {
		if len(b.Spec.GracefulEvictionTasks) > 0 {
			say(check.Left, "an eviction task of binding %s", b.Name)
		}
	}
	works := 0
	for _, m := range e.members {
		var list workv1alpha1.WorkList
		if err := e.stage.hub.List(ctx, &list, client.InNamespace(workv1alpha2.ExecutionNamespace(m))); err != nil {
			return nil, fmt.Errorf("read the Works of %s: %w", m, err)
		}
		for _, w := range list.Items {
			if w.Annotations[workv1alpha2.AnnotationBindingNamespace] == evictedNamespace {
				works++
			}
		}
	}
	if works != 2 {
		say(check.Duplicated, "%d Works of %s and its ConfigMap, want 2", works, evictedName)
	}
	return out, nil
}

// begin returns the member that the template is to leave now, and notes the state with which it
// begins elsewhere.
func (e *evicted) begin(ctx context.Context, ready int) (string, error) {
	var b workv1alpha2.ResourceBinding
	if err := e.stage.hub.Get(ctx, client.ObjectKey{Namespace: evictedNamespace, Name: evictedName + "-deployment"}, &b); err != nil {
		return "", fmt.Errorf("read the binding of %s: %w", evictedName, err)
	}
	if len(b.Spec.Clusters) != 1 {
		return "", fmt.Errorf("%s runs in %v, want one cluster", evictedName, b.Spec.Clusters)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.left, e.state = b.Spec.Clusters[0].Name, strconv.Itoa(ready)
	return e.left, nil
}

// failApplication has some replicas crash, another number each time.
func (e *evicted) failApplication(ctx context.Context) error {
	e.moves++
	ready := 1 + e.moves%(evictedReplicas-1)
	member, err := e.begin(ctx, ready)
	if err != nil {
		return err
	}
	return e.stage.churn.insist(ctx, func(ctx context.Context) error {
		var d appsv1.Deployment
		if err := e.stage.members[member].Get(ctx, client.ObjectKey{Namespace: evictedNamespace, Name: evictedName}, &d); err != nil {
			return client.IgnoreNotFound(err) // it has left already
		}
		if d.Status.ObservedGeneration != d.Generation {
			return errors.New("it has not been reported yet")
		}
		d.Status.ReadyReplicas, d.Status.AvailableReplicas = int32(ready), int32(ready)
		return client.IgnoreNotFound(e.stage.members[member].Status().Update(ctx, &d))
	})
}

// taint has the cluster evict it; the taint is removed when it has left.
func (e *evicted) taint(ctx context.Context) error {
	member, err := e.begin(ctx, evictedReplicas)
	if err != nil {
		return err
	}
	return e.leaves(ctx, member, func(on bool) error {
		return e.stage.churn.insist(ctx, changing(e.stage.churn, &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: member}}, func(c *clusterv1alpha1.Cluster) {
			c.Spec.Taints = slices.DeleteFunc(c.Spec.Taints, func(t clusterv1alpha1.Taint) bool { return t.Key == evictingTaint })
			if on {
				now := metav1.Now()
				c.Spec.Taints = append(c.Spec.Taints, clusterv1alpha1.Taint{Key: evictingTaint, Effect: corev1.TaintEffectNoExecute, TimeAdded: &now})
			}
		}))
	})
}

// failCluster cuts off the template's cluster until the binding has left it. Only then can the copy
// there be removed, and no other copy may start before that.
func (e *evicted) failCluster(ctx context.Context) error {
	member, err := e.begin(ctx, evictedReplicas)
	if err != nil {
		return err
	}
	return e.leaves(ctx, member, func(on bool) error { e.stage.trap.cut(member, on); return nil })
}

// leaves breaks a member, and mends it when the template has left it by its binding.
func (e *evicted) leaves(ctx context.Context, member string, broken func(bool) error) error {
	if err := broken(true); err != nil {
		return err
	}
	err := e.stage.churn.insist(ctx, func(ctx context.Context) error {
		var b workv1alpha2.ResourceBinding
		if err := e.stage.hub.Get(ctx, client.ObjectKey{Namespace: evictedNamespace, Name: evictedName + "-deployment"}, &b); err != nil {
			return err
		}
		if len(b.Spec.Clusters) == 1 && b.Spec.Clusters[0].Name == member {
			return fmt.Errorf("%s has not left %s", evictedName, member)
		}
		return nil
	})
	return errors.Join(err, broken(false))
}

// settle waits until the template runs, its health is known at the hub, and its clusters are ready.
func (e *evicted) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, e.stage.options.limit)
	defer cancel()
	return e.stage.churn.insist(ctx, func(ctx context.Context) error {
		if missing, err := e.missing(ctx); err != nil || len(missing) > 0 {
			return errors.Join(err, fmt.Errorf("not settled: %v", missing))
		}
		for _, m := range e.members {
			var c clusterv1alpha1.Cluster
			if err := e.stage.hub.Get(ctx, client.ObjectKey{Name: m}, &c); err != nil {
				return err
			}
			if ready := c.Ready(); ready == nil || ready.Status != metav1.ConditionTrue || len(c.Spec.Taints) > 0 {
				return fmt.Errorf("cluster %s is not ready, or tainted", m)
			}
		}
		var b workv1alpha2.ResourceBinding
		if err := e.stage.hub.Get(ctx, client.ObjectKey{Namespace: evictedNamespace, Name: evictedName + "-deployment"}, &b); err != nil {
			return err
		}
		if s := b.Status.AggregatedStatus; len(s) != 1 || s[0].Health != workv1alpha2.ResourceHealthy {
			return errors.New("it is not healthy yet")
		}
		return nil
	})
}

// evictions are the kinds of change of each-write that evict.
func (e *evicted) evictions() []kindOfChange {
	return []kindOfChange{{"an application failover", e.failApplication, e.settle}, {"a tainted cluster", e.taint, e.settle},
		{"a cluster that is cut off", e.failCluster, e.settle}}
}
