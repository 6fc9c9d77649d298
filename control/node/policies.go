package node

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientcache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/control/node/tables"
)

// policyGroups are the kinds of policies of policy engines and of SIG Network's Network Policy API.
// Their selectors are not read: each policy is taken to select all pods of its namespace, one
// without a namespace all pods. pelago-node may list them by its ClusterRole.
var policyGroups = []struct {
	group            string
	versions         []string // in order of preference
	namespaced, wide []string // kinds
}{
	{"cilium.io", []string{"v2"}, []string{"CiliumNetworkPolicy"}, []string{"CiliumClusterwideNetworkPolicy"}},
	{"crd.projectcalico.org", []string{"v1"}, []string{"NetworkPolicy"}, []string{"GlobalNetworkPolicy"}},
	{"projectcalico.org", []string{"v3"}, []string{"NetworkPolicy"}, []string{"GlobalNetworkPolicy"}},
	{"crd.antrea.io", []string{"v1beta1", "v1alpha1"}, []string{"NetworkPolicy"}, []string{"ClusterNetworkPolicy"}},
	{"policy.networking.k8s.io", []string{"v1", "v1beta1", "v1alpha2", "v1alpha1"}, nil,
		[]string{"ClusterNetworkPolicy", "AdminNetworkPolicy", "BaselineAdminNetworkPolicy"}},
}

// policyKind is a kind of policyGroups.
type policyKind struct {
	schema.GroupKind
	resource string
	versions []string
	scope    meta.RESTScope
}

// policyKinds are those of policyGroups by the name of their CustomResourceDefinition.
var policyKinds = func() map[string]policyKind {
	out := map[string]policyKind{}
	for _, g := range policyGroups {
		for scope, kinds := range map[meta.RESTScope][]string{meta.RESTScopeNamespace: g.namespaced, meta.RESTScopeRoot: g.wide} {
			for _, kind := range kinds {
				k := policyKind{GroupKind: schema.GroupKind{Group: g.group, Kind: kind}, versions: g.versions, scope: scope}
				resource, _ := meta.UnsafeGuessKindToResource(k.WithVersion(g.versions[0])) // the singular is not needed
				k.resource = resource.Resource
				out[k.resource+"."+g.group] = k
			}
		}
	}
	return out
}()

// definition is the kind CustomResourceDefinition, of which only the metadata are read.
var definition = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// policyInformer follows the policies of a kind that the cluster has.
type policyInformer struct {
	end context.CancelFunc
	// version that the cluster serves; nil until its policies are in the cache.
	version atomic.Pointer[schema.GroupVersionKind]
}

// readPolicies reads which namespaces have policies besides NetworkPolicies, and begins to follow
// kinds whose definitions are new. Until the policies of a kind are in the cache, all pods count as
// selected.
func (s *objectSource) readPolicies(ctx context.Context, objs *tables.Objects) error {
	var definitions metav1.PartialObjectMetadataList
	definitions.SetGroupVersionKind(definition.GroupVersion().WithKind(definition.Kind + "List"))
	if err := s.cache.List(ctx, &definitions, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list CustomResourceDefinitions: %w", err)
	}
	if s.policies == nil {
		s.policies = map[string]*policyInformer{}
	}
	objs.OtherPolicies = map[string]string{}
	defined := map[string]bool{}
	for i := range definitions.Items {
		name := definitions.Items[i].Name
		of, known := policyKinds[name]
		if !known || definitions.Items[i].DeletionTimestamp != nil {
			continue
		}
		defined[name] = true
		informer := s.policies[name]
		if informer == nil {
			follow, end := context.WithCancel(ctx)
			informer = &policyInformer{end: end}
			s.policies[name] = informer
			go s.follow(follow, of, informer)
		}
		version := informer.version.Load()
		if version == nil {
			objs.OtherPolicies[""] = of.Kind
			continue
		}
		var list metav1.PartialObjectMetadataList
		list.SetGroupVersionKind(version.GroupVersion().WithKind(version.Kind + "List"))
		if err := s.cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
			return fmt.Errorf("list %s: %w", of.GroupKind, err)
		}
		for j := range list.Items {
			objs.OtherPolicies[list.Items[j].Namespace] = of.Kind
		}
	}
	for name, informer := range s.policies {
		if defined[name] {
			continue
		}
		informer.end()
		delete(s.policies, name)
		if version := informer.version.Load(); version != nil {
			if err := s.cache.RemoveInformer(ctx, partial(*version)); err != nil {
				return fmt.Errorf("end the watch of %s: %w", version.GroupKind(), err)
			}
		}
	}
	return nil
}

// follow puts the policies of a kind into the cache, and retries until it can: a definition that is
// new is served a little later.
func (s *objectSource) follow(ctx context.Context, of policyKind, informer *policyInformer) {
	for {
		version, err := s.cachePolicies(ctx, of)
		if err == nil {
			informer.version.Store(&version)
			s.onChange(definition.Kind, nil)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(policyRetry/2 + jitter(policyRetry)):
		}
	}
}

// policyRetry is the interval at which kinds of policies are tried that cannot be listed.
const policyRetry = 10 * time.Second

func (s *objectSource) cachePolicies(ctx context.Context, of policyKind) (schema.GroupVersionKind, error) {
	mapping, err := s.mapper.RESTMapping(of.GroupKind, of.versions...)
	if err != nil {
		return schema.GroupVersionKind{}, err
	}
	limited, cancel := context.WithTimeout(ctx, policyRetry)
	defer cancel()
	informer, err := s.cache.GetInformer(ctx, partial(mapping.GroupVersionKind), cache.BlockUntilSynced(false))
	if err != nil {
		return schema.GroupVersionKind{}, err
	}
	registration, err := informer.AddEventHandler(clientcache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { s.onChange(definition.Kind, nil) },
		DeleteFunc: func(any) { s.onChange(definition.Kind, nil) },
	})
	if err == nil && !clientcache.WaitForCacheSync(limited.Done(), registration.HasSynced) {
		err = fmt.Errorf("list %s: not within %s", of.GroupKind, policyRetry)
	}
	if err != nil { // such as a right that is missing: without this, the cache would never have synced
		return schema.GroupVersionKind{}, fmt.Errorf("%w; %w", err, s.cache.RemoveInformer(context.WithoutCancel(ctx), partial(mapping.GroupVersionKind)))
	}
	return mapping.GroupVersionKind, nil
}

// partial is an object of a kind of which only the metadata are read.
func partial(kind schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(kind)
	return o
}

// reducePolicy is a cache transform that keeps the name.
func reducePolicy(obj any) (any, error) {
	o, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return obj, nil // a deletion that was missed
	}
	o.ObjectMeta = metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, ResourceVersion: o.ResourceVersion, UID: o.UID, DeletionTimestamp: o.DeletionTimestamp}
	return o, nil
}
