package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/test/chaos/check"
	"github.com/pelago-net/pelago/test/hubset"
)

// kinds are those that churn makes; all else in members is another component's.
var kinds = map[string]schema.GroupVersionResource{
	"Deployment": {Group: "apps", Version: "v1", Resource: "deployments"},
	"ConfigMap":  {Version: "v1", Resource: "configmaps"},
}

func ours(namespace, name string) bool {
	return slices.Contains(namespaces, namespace) && strings.HasPrefix(name, prefix)
}

// observe tells the history what comes and goes in a member, until ctx ends.
func observe(ctx context.Context, m *hubset.Member, h *check.History) error {
	c, err := metadata.NewForConfig(m.Config)
	if err != nil {
		return fmt.Errorf("watch %s: %w", m.Name, err)
	}
	factory := metadatainformer.NewSharedInformerFactory(c, 0)
	for kind, resource := range kinds {
		informer := factory.ForResource(resource).Informer()
		seen := func(o any) { tell(m.Name, kind, o, h.Seen) }
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: seen, UpdateFunc: func(_, now any) { seen(now) },
			DeleteFunc: func(o any) {
				if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
					o = last.Obj
				}
				tell(m.Name, kind, o, h.Gone)
			},
		}); err != nil {
			return fmt.Errorf("watch %s: %w", m.Name, err)
		}
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return ctx.Err()
}

func tell(member, kind string, o any, say func(check.Place, string, time.Time)) {
	m := o.(*metav1.PartialObjectMetadata)
	if ours(m.Namespace, m.Name) {
		say(check.Place{Member: member, Object: check.Object{Kind: kind, Namespace: m.Namespace, Name: m.Name}}, string(m.UID),
			time.Now())
	}
}

// atHub reads what the users have written at the hub.
func atHub(ctx context.Context, hub client.Client, members []string) (check.Hub, error) {
	h := check.Hub{Members: members}
	var (
		deployments appsv1.DeploymentList
		configMaps  corev1.ConfigMapList
		policies    policyv1alpha1.PropagationPolicyList
		overrides   policyv1alpha1.OverridePolicyList
	)
	for _, list := range []client.ObjectList{&deployments, &configMaps, &policies, &overrides} {
		if err := hub.List(ctx, list); err != nil {
			return h, fmt.Errorf("read the hub: %w", err)
		}
	}
	h.Policies, h.Overrides = policies.Items, overrides.Items
	h.Deployments = slices.DeleteFunc(deployments.Items, func(d appsv1.Deployment) bool { return !ours(d.Namespace, d.Name) })
	h.ConfigMaps = slices.DeleteFunc(configMaps.Items, func(m corev1.ConfigMap) bool { return !ours(m.Namespace, m.Name) })
	return h, nil
}

// found reads what there is: the members' objects, and the hub's bindings and Works.
func found(ctx context.Context, hub client.Client, members map[string]client.Client) (check.Actual, error) {
	a := check.Actual{Members: map[check.Place]check.Content{}, Bindings: map[check.Object][]string{},
		Works: map[check.Place][]string{}}
	for name, c := range members {
		if err := inMember(ctx, name, c, a.Members); err != nil {
			return a, fmt.Errorf("read %s: %w", name, err)
		}
	}
	var bindings workv1alpha2.ResourceBindingList
	if err := hub.List(ctx, &bindings); err != nil {
		return a, fmt.Errorf("read the bindings: %w", err)
	}
	for _, b := range bindings.Items {
		r := b.Spec.Resource
		if b.DeletionTimestamp == nil && ours(r.Namespace, r.Name) {
			o := check.Object{Kind: r.Kind, Namespace: r.Namespace, Name: r.Name}
			a.Bindings[o] = append(a.Bindings[o], b.Namespace+"/"+b.Name)
		}
	}
	var works workv1alpha1.WorkList
	if err := hub.List(ctx, &works); err != nil {
		return a, fmt.Errorf("read the Works: %w", err)
	}
	for _, w := range works.Items {
		if w.DeletionTimestamp != nil {
			continue
		}
		place, err := placeOf(&w)
		if err != nil {
			return a, err
		}
		if place != nil {
			a.Works[*place] = append(a.Works[*place], w.Namespace+"/"+w.Name)
		}
	}
	return a, nil
}

// placeOf is the object that a Work speaks of, nil if it is not one that came of a template of the
// churn.
func placeOf(w *workv1alpha1.Work) (*check.Place, error) {
	if len(w.Spec.Workload.Manifests) != 1 {
		return nil, fmt.Errorf("read Work %s/%s: it has %d manifests, want 1", w.Namespace, w.Name, len(w.Spec.Workload.Manifests))
	}
	var o struct {
		Kind     string
		Metadata struct{ Namespace, Name string }
	}
	if err := json.Unmarshal(w.Spec.Workload.Manifests[0].Raw, &o); err != nil {
		return nil, fmt.Errorf("read the manifest of Work %s/%s: %w", w.Namespace, w.Name, err)
	}
	if !ours(o.Metadata.Namespace, o.Metadata.Name) {
		return nil, nil
	}
	return &check.Place{Member: strings.TrimPrefix(w.Namespace, "karmada-es-"),
		Object: check.Object{Kind: o.Kind, Namespace: o.Metadata.Namespace, Name: o.Metadata.Name}}, nil
}

func inMember(ctx context.Context, name string, c client.Client, into map[check.Place]check.Content) error {
	var deployments appsv1.DeploymentList
	if err := c.List(ctx, &deployments); err != nil {
		return err
	}
	for _, d := range deployments.Items {
		if !ours(d.Namespace, d.Name) || d.DeletionTimestamp != nil {
			continue
		}
		content := check.Content{Labels: d.Labels, Image: d.Spec.Template.Spec.Containers[0].Image, Replicas: 1}
		if d.Spec.Replicas != nil {
			content.Replicas = *d.Spec.Replicas
		}
		into[check.Place{Member: name, Object: check.Object{Kind: "Deployment", Namespace: d.Namespace, Name: d.Name}}] = content
	}
	var configMaps corev1.ConfigMapList
	if err := c.List(ctx, &configMaps); err != nil {
		return err
	}
	for _, m := range configMaps.Items {
		if ours(m.Namespace, m.Name) && m.DeletionTimestamp == nil {
			place := check.Place{Member: name, Object: check.Object{Kind: "ConfigMap", Namespace: m.Namespace, Name: m.Name}}
			into[place] = check.Content{Labels: m.Labels, Data: m.Data}
		}
	}
	return nil
}
