package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	"github.com/pelago-net/pelago/test/bench/mixed"
)

// What users make. A template is called app-00001, its ConfigMap conf-00001: the names of bindings
// and Works begin with them.
const (
	namespace    = "bench"
	prefix       = "app-"
	dependentsOf = "conf-"
	appLabel     = "app"
)

func namespaceObject() *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
}

// objects are one template with its policy and its ConfigMap, in the order in which a user applies
// them.
func objects(i int, clusters []string) (policy, dependent, template client.Object) {
	name := fmt.Sprintf("%s%05d", prefix, i)
	conf := fmt.Sprintf("%s%05d", dependentsOf, i)
	return onePolicy(name, &policyv1alpha1.ResourceSelector{Name: name}, clusters),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: conf}, Data: map[string]string{"config": name}},
		deployment(name, conf, nil)
}

func onePolicy(name string, selector *policyv1alpha1.ResourceSelector, clusters []string) *policyv1alpha1.PropagationPolicy {
	selector.APIVersion, selector.Kind = "apps/v1", "Deployment"
	return &policyv1alpha1.PropagationPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: policyv1alpha1.PropagationSpec{
			ResourceSelectors: []policyv1alpha1.ResourceSelector{*selector}, PropagateDeps: true,
			Placement: policyv1alpha1.Placement{ClusterAffinity: &policyv1alpha1.ClusterAffinity{ClusterNames: clusters}},
		},
	}
}

func deployment(name, conf string, labels map[string]string) *appsv1.Deployment {
	app := map[string]string{appLabel: name}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](2), Selector: &metav1.LabelSelector{MatchLabels: app},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: app}, Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "main", Image: "registry.example/app:v1", Env: []corev1.EnvVar{{Name: "NAME",
					Value: name}}}},
			}},
		},
	}
	if conf != "" {
		d.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "conf", VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: conf}}}}}
	}
	return d
}

// mixedObjects are the i-th template and its policy, which has a placement of its own over these
// clusters.
func mixedObjects(i int, clusters []string) []client.Object {
	name := fmt.Sprintf("%s%05d", prefix, i)
	p := onePolicy(name, &policyv1alpha1.ResourceSelector{Name: name}, nil)
	p.Spec.PropagateDeps = false
	p.Spec.Placement = *mixed.Placement(i, clusters)
	d := deployment(name, "", nil)
	d.Spec.Replicas = ptr.To(int32(1 + i%40))
	return []client.Object{p, d}
}

// apply makes what belongs to template i and returns when the template itself was sent.
func apply(ctx context.Context, c client.Client, i int, clusters []string) (sent time.Time, err error) {
	policy, dependent, template := objects(i, clusters)
	for _, o := range []client.Object{policy, dependent, template} {
		sent = time.Now()
		if err := c.Create(ctx, o); err != nil {
			return sent, fmt.Errorf("create %s: %w", o.GetName(), err)
		}
	}
	return sent, nil
}

// burst makes templates 1 to n, inFlight at a time.
func burst(ctx context.Context, c client.Client, n, inFlight int, clusters []string) error {
	return atOnce(ctx, n, inFlight, func(ctx context.Context, i int) error {
		_, err := apply(ctx, c, i, clusters)
		return err
	})
}

// burstMixed makes templates 1 to n with mixed placements, inFlight at a time.
func burstMixed(ctx context.Context, c client.Client, n, inFlight int, clusters []string) error {
	return atOnce(ctx, n, inFlight, func(ctx context.Context, i int) error {
		for _, o := range mixedObjects(i, clusters) {
			if err := c.Create(ctx, o); err != nil {
				return fmt.Errorf("create %s: %w", o.GetName(), err)
			}
		}
		return nil
	})
}

// atOnce calls do for 1 to n, inFlight at a time.
func atOnce(ctx context.Context, n, inFlight int, do func(ctx context.Context, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(inFlight)
	for i := range n {
		g.Go(func() error { return do(ctx, i+1) })
	}
	return g.Wait()
}

// steady makes templates 1 to n at a rate per second, whatever becomes of them, and returns when
// each was sent, by name.
func steady(ctx context.Context, c client.Client, n int, rate float64, clusters []string) (map[string]time.Time, error) {
	var mu sync.Mutex
	sent := map[string]time.Time{}
	g, ctx := errgroup.WithContext(ctx)
	tick := time.NewTicker(time.Duration(float64(time.Second) / rate))
	defer tick.Stop()
	for i := range n {
		select {
		case <-ctx.Done():
			return nil, g.Wait()
		case <-tick.C:
		}
		g.Go(func() error {
			at, err := apply(ctx, c, i+1, clusters)
			mu.Lock()
			defer mu.Unlock()
			sent[fmt.Sprintf("%s%05d", prefix, i+1)] = at
			return err
		})
	}
	return sent, g.Wait()
}
