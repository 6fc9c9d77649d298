package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	"github.com/pelago-net/pelago/test/chaos/check"
)

// What churn works on.
const (
	prefix       = "app-" // begins the names of all templates
	groupLabel   = "chaos.pelago.io/group"
	groups       = 6 // policies in each namespace
	maxTemplates = 60
)

var namespaces = []string{"chaos-a", "chaos-b"}

// name is a namespace and a name in it.
type name = client.ObjectKey

// churn is the users of the hub. It remembers what they have requested, tells the history before
// and after each request, and insists on each until the API server has taken it.
type churn struct {
	client  client.Client
	history *check.History
	rng     *rand.Rand
	members []string
	done    atomic.Int64 // operations

	deployments map[name]*appsv1.Deployment
	configMaps  map[name]*corev1.ConfigMap
	policies    map[name]*policyv1alpha1.PropagationPolicy
	overrides   map[name]*policyv1alpha1.OverridePolicy
	// frozen holds the objects that must stay in members although their group's policy was deleted.
	frozen map[name]map[check.Place]check.Content
	asked  map[check.Place]check.Content // the last time
	serial int
	steps  []step
	// decisive: weights are chosen so that clusters never tie for a replica.
	decisive bool
	log      io.Writer // what is asked for, for who looks for the cause of a violation
}

// step is a kind of change, and how often it is made next to the others.
type step struct {
	weight int
	do     func(context.Context) error
}

func newChurn(c client.Client, h *check.History, seed uint64, members []string) *churn {
	users := &churn{
		client: c, history: h, rng: rand.New(rand.NewPCG(seed, 0)), members: members,
		deployments: map[name]*appsv1.Deployment{}, configMaps: map[name]*corev1.ConfigMap{},
		policies: map[name]*policyv1alpha1.PropagationPolicy{}, overrides: map[name]*policyv1alpha1.OverridePolicy{},
		frozen: map[name]map[check.Place]check.Content{}, log: io.Discard,
	}
	users.steps = []step{
		{20, users.newTemplate}, {8, users.deleteTemplate}, {25, users.retag}, {10, users.scale}, {10, users.edit}, {5, users.regroup},
		{8, users.replace}, {2, users.dropPolicy}, {6, users.restorePolicy}, {6, users.override},
	}
	return users
}

// begin makes the namespaces, a policy for each group and some templates.
func (c *churn) begin(ctx context.Context, templates int) error {
	for _, ns := range namespaces {
		if err := c.insist(ctx, c.making(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})); err != nil {
			return err
		}
		for g := range groups {
			if err := c.place(ctx, name{Namespace: ns, Name: fmt.Sprintf("group-%d", g)}); err != nil {
				return err
			}
		}
	}
	for range templates {
		if err := c.newTemplate(ctx); err != nil {
			return err
		}
	}
	return nil
}

// run makes random changes until stop is closed, with pauses around every. A change that has begun
// is always completed: an interrupted request might still be executed later, when the model has
// already moved on.
func (c *churn) run(ctx context.Context, every time.Duration, stop <-chan struct{}) error {
	total := 0
	for _, s := range c.steps {
		total += s.weight
	}
	for {
		pick := c.rng.IntN(total)
		for _, s := range c.steps {
			if pick -= s.weight; pick >= 0 {
				continue
			}
			if err := s.do(ctx); err != nil {
				return fmt.Errorf("churn: %w", err)
			}
			break
		}
		c.done.Add(1)
		select {
		case <-stop:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(float64(every) * c.rng.ExpFloat64())):
		}
	}
}

// settle gives every group a policy again, so that what is wanted follows from the objects at the
// hub alone.
func (c *churn) settle(ctx context.Context) error {
	for _, group := range slices.Collect(maps.Keys(c.frozen)) {
		if err := c.place(ctx, group); err != nil {
			return err
		}
	}
	return nil
}

// wanted is what must be there now, or after a change that is under way.
func (c *churn) wanted() (map[check.Place]check.Content, error) {
	h := check.Hub{Members: c.members}
	for _, d := range c.deployments {
		h.Deployments = append(h.Deployments, *d)
	}
	for _, m := range c.configMaps {
		h.ConfigMaps = append(h.ConfigMaps, *m)
	}
	for _, p := range c.policies {
		h.Policies = append(h.Policies, *p)
	}
	for _, o := range c.overrides {
		h.Overrides = append(h.Overrides, *o)
	}
	wanted, err := check.Wanted(h)
	if err != nil {
		return nil, err
	}
	for _, places := range c.frozen {
		maps.Copy(wanted, places)
	}
	return wanted, nil
}

// ask makes a change that the model already includes: it records in the history beforehand what may
// go, and afterwards what is required.
func (c *churn) ask(ctx context.Context, request func(context.Context) error) error {
	wanted, err := c.wanted()
	if err != nil {
		return err
	}
	c.history.Allow(wanted)
	if err := c.insist(ctx, request); err != nil {
		return err
	}
	// the UID of a new template is known now, and decides over ties
	if wanted, err = c.wanted(); err != nil {
		return err
	}
	c.history.Allow(wanted)
	now := time.Now()
	c.history.Require(wanted, now)
	for place := range c.asked {
		if _, still := wanted[place]; !still {
			c.note(now, "not wanted any more", place)
		}
	}
	for place := range wanted {
		if _, before := c.asked[place]; !before {
			c.note(now, "wanted", place)
		}
	}
	c.asked = wanted
	return nil
}

// note writes a line to the log. It is a help only: that it cannot be written is no fault.
func (c *churn) note(now time.Time, what string, place check.Place) {
	fmt.Fprintf(c.log, "%s %s: %s\n", now.UTC().Format(time.StampMilli), place, what)
}

// insist repeats a request until it succeeds: the API server may be away, or its answer may have
// been lost.
func (c *churn) insist(ctx context.Context, request func(context.Context) error) error {
	for warned := time.Now().Add(time.Minute); ; {
		err := request(ctx)
		if err == nil {
			return nil
		}
		if time.Now().After(warned) {
			slog.Warn("a request of the churn does not get through", "error", err)
			warned = time.Now().Add(time.Minute)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// making creates an object; one that exists and is not being deleted is the one that an earlier try
// has made.
func (c *churn) making(o client.Object) func(context.Context) error {
	return func(ctx context.Context) error {
		o.SetResourceVersion("")
		err := c.client.Create(ctx, o)
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
		if err := c.client.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		if o.GetDeletionTimestamp() != nil {
			return fmt.Errorf("%s is still being deleted", o.GetName())
		}
		return nil
	}
}

// changing patches an object as it is at the hub.
func changing[T client.Object](c *churn, o T, change func(T)) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := c.client.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		before := o.DeepCopyObject().(client.Object)
		change(o)
		return c.client.Patch(ctx, o, client.MergeFrom(before))
	}
}

// deleting deletes this object and no later one of its name: a try whose answer was lost may be
// carried out late. Of an object that was restored the UID is another than the churn knows.
func (c *churn) deleting(o client.Object) func(context.Context) error {
	return func(ctx context.Context) error {
		now := o.DeepCopyObject().(client.Object)
		if err := c.client.Get(ctx, client.ObjectKeyFromObject(o), now); err != nil {
			return client.IgnoreNotFound(err)
		}
		return client.IgnoreNotFound(c.client.Delete(ctx, o, client.PropagationPolicy(metav1.DeletePropagationBackground),
			client.Preconditions{UID: ptr.To(now.GetUID())}))
	}
}

// pick is a random one of those names for which ok holds.
func pick[V any](c *churn, from map[name]V, ok func(name, V) bool) (name, bool) {
	var names []name
	for k, v := range from {
		if ok == nil || ok(k, v) {
			names = append(names, k)
		}
	}
	if len(names) == 0 {
		return name{}, false
	}
	slices.SortFunc(names, func(a, b name) int { // the order of a map is not the seed's
		if a.String() < b.String() {
			return -1
		}
		return 1
	})
	return names[c.rng.IntN(len(names))], true
}

func groupOf(d *appsv1.Deployment) name {
	return name{Namespace: d.Namespace, Name: d.Labels[groupLabel]}
}

// steady reports whether the group of a template has a policy. Templates of others are only
// deleted: what becomes of changes to them is not decided before there is a policy again.
func (c *churn) steady(_ name, d *appsv1.Deployment) bool { return c.policies[groupOf(d)] != nil }

func (c *churn) tag() string { return fmt.Sprintf("v%d", c.rng.IntN(1000)) }

func (c *churn) newTemplate(ctx context.Context) error {
	group, ok := pick(c, c.policies, nil)
	if !ok || len(c.deployments) >= maxTemplates {
		return nil
	}
	c.serial++
	n := fmt.Sprintf("%s%d", prefix, c.serial)
	if c.rng.IntN(3) == 0 { // a name that was there before
		n = fmt.Sprintf("%s%d", prefix, c.rng.IntN(c.serial)+1)
	}
	key := name{Namespace: group.Namespace, Name: n}
	if c.deployments[key] != nil {
		return nil
	}
	labels := map[string]string{"app": n}
	conf := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: n + "-conf"},
		Data: map[string]string{"k": c.tag()}}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: n, Labels: map[string]string{groupLabel: group.Name}},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(int32(1 + c.rng.IntN(6))), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "c", Image: "registry.example/app:" + c.tag()}},
				Volumes: []corev1.Volume{{Name: "conf", VolumeSource: corev1.VolumeSource{
					ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: conf.Name}}}}},
			}},
		},
	}
	if err := c.insist(ctx, c.making(conf)); err != nil {
		return err
	}
	// it was wanted nowhere before: nothing to tell the history yet
	if err := c.insist(ctx, c.making(d)); err != nil {
		return err
	}
	c.configMaps[client.ObjectKeyFromObject(conf)], c.deployments[key] = conf, d
	return c.ask(ctx, func(context.Context) error { return nil })
}

func (c *churn) deleteTemplate(ctx context.Context) error {
	key, ok := pick(c, c.deployments, nil)
	if !ok {
		return nil
	}
	d, conf := c.deployments[key], c.configMaps[name{Namespace: key.Namespace, Name: key.Name + "-conf"}]
	delete(c.deployments, key)
	delete(c.configMaps, client.ObjectKeyFromObject(conf))
	for place := range c.frozen[groupOf(d)] {
		if place.Namespace == key.Namespace && (place.Name == key.Name || place.Name == conf.Name) {
			delete(c.frozen[groupOf(d)], place)
		}
	}
	if err := c.ask(ctx, c.deleting(d)); err != nil {
		return err
	}
	return c.insist(ctx, c.deleting(conf))
}

// change alters a template. The history records it before and after: another number of replicas
// may leave a cluster without any.
func (c *churn) change(ctx context.Context, alter func(*appsv1.Deployment)) error {
	key, ok := pick(c, c.deployments, c.steady)
	if !ok {
		return nil
	}
	d := c.deployments[key]
	alter(d)
	wish := d.DeepCopy()
	return c.ask(ctx, changing(c, d, func(now *appsv1.Deployment) {
		now.Labels, now.Spec.Replicas = wish.Labels, wish.Spec.Replicas
		now.Spec.Template.Spec.Containers[0].Image = wish.Spec.Template.Spec.Containers[0].Image
	}))
}

func (c *churn) retag(ctx context.Context) error {
	tag := c.tag()
	return c.change(ctx, func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "registry.example/app:" + tag })
}

func (c *churn) scale(ctx context.Context) error {
	replicas := int32(1 + c.rng.IntN(6))
	return c.change(ctx, func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To(replicas) })
}

func (c *churn) regroup(ctx context.Context) error {
	group := c.rng.IntN(groups)
	return c.change(ctx, func(d *appsv1.Deployment) {
		to := name{Namespace: d.Namespace, Name: fmt.Sprintf("group-%d", group)}
		if c.policies[to] != nil {
			d.Labels[groupLabel] = to.Name
		}
	})
}

func (c *churn) edit(ctx context.Context) error {
	key, ok := pick(c, c.configMaps, nil)
	if !ok {
		return nil
	}
	tag := c.tag()
	return c.insist(ctx, changing(c, c.configMaps[key], func(m *corev1.ConfigMap) { m.Data = map[string]string{"k": tag} }))
}
