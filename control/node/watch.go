package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	clientcache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/node/tables"
)

// CacheOptions limits what the daemon reads: pods of this node, one ConfigMap.
func CacheOptions(nodeName, namespace string) (cache.Options, error) {
	withDatapath, err := labels.NewRequirement(pelagov1alpha1.LabelDatapath, selection.Exists, nil)
	if err != nil {
		return cache.Options{}, fmt.Errorf("select Namespaces: %w", err)
	}
	return cache.Options{
		Mapper:           mapper(),
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Node{}:               {Transform: tables.Reduce},
			&discoveryv1.EndpointSlice{}: {Transform: tables.Reduce},
			&corev1.Pod{}:                {Field: fields.OneTermEqualSelector("spec.nodeName", nodeName)},
			&corev1.ConfigMap{}: {
				Namespaces: map[string]cache.Config{namespace: {}},
				Field:      fields.OneTermEqualSelector("metadata.name", config.ConfigMapName),
			},
			&corev1.Namespace{}:     {Label: labels.NewSelector().Add(*withDatapath)},
			&submarinerv1.Gateway{}: {Namespaces: map[string]cache.Config{namespace: {}}},
		},
	}, nil
}

// watched are the kinds whose every change wakes the daemon.
func watched() []client.Object {
	return []client.Object{
		&corev1.ConfigMap{}, &corev1.Node{}, &corev1.Pod{}, &corev1.Service{}, &discoveryv1.EndpointSlice{},
		&corev1.Namespace{}, &networkingv1.NetworkPolicy{},
		&pelagov1alpha1.NodeIndex{}, &pelagov1alpha1.PortBlock{}, &pelagov1alpha1.Peer{},
		&submarinerv1.ClusterGlobalEgressIP{}, &submarinerv1.GlobalEgressIP{}, &submarinerv1.GlobalIngressIP{},
	}
}

// mcsVersions are those of the kinds ServiceExport and ServiceImport that a cluster may serve, in
// order of preference.
var mcsVersions = []string{"v1beta1", "v1alpha1"}

// mcsKind returns a kind of the MCS API in the version that the cluster serves. Of ServiceExports
// only their metadata are read.
func (s *objectSource) mcsKind(name string) (schema.GroupVersionKind, error) {
	kind := schema.GroupKind{Group: mcs.GroupName, Kind: name}
	mapping, err := s.mapper.RESTMapping(kind, mcsVersions...)
	if err != nil {
		return schema.GroupVersionKind{}, fmt.Errorf("find %s in version %s: %w (`pelago join` installs the definitions)", kind, strings.Join(mcsVersions, " or "), err)
	}
	return mapping.GroupVersionKind, nil
}

// watch begins to watch all kinds, or none if it fails. It does not wait for their objects.
func (s *objectSource) watch(ctx context.Context) error {
	exported, err := s.mcsKind(mcs.ServiceExportKindName)
	if err != nil {
		return err
	}
	imported, err := s.mcsKind(mcs.ServiceImportKindName)
	if err != nil {
		return err
	}
	exports, imports := &metav1.PartialObjectMetadata{}, &unstructured.Unstructured{}
	exports.SetGroupVersionKind(exported)
	imports.SetGroupVersionKind(imported)
	var informers []cache.Informer
	for _, obj := range append(watched(), exports, imports) {
		informer, err := s.cache.GetInformer(ctx, obj, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch %T: %w", obj, err)
		}
		informers = append(informers, informer)
	}
	for _, informer := range informers {
		if _, err := informer.AddEventHandler(clientcache.ResourceEventHandlerFuncs{
			AddFunc:    s.onChange,
			UpdateFunc: s.onUpdate,
			DeleteFunc: s.onChange,
		}); err != nil {
			return fmt.Errorf("watch the API server's objects: %w", err)
		}
	}
	return nil
}

// onChange ignores Services, and their EndpointSlices, that are in no table.
func (s *objectSource) onChange(obj any) {
	if exposed := s.exposed.Load(); exposed != nil {
		switch o := obj.(type) {
		case *corev1.Service:
			if !(*exposed)[client.ObjectKeyFromObject(o)] {
				return
			}
		case *discoveryv1.EndpointSlice:
			name, imported := o.Labels[discoveryv1.LabelServiceName], o.Labels[mcs.LabelServiceName]
			if !(*exposed)[types.NamespacedName{Namespace: o.Namespace, Name: name}] && !(*exposed)[types.NamespacedName{Namespace: o.Namespace, Name: imported}] {
				return
			}
		}
	}
	s.changed()
}

// onUpdate ignores resyncs, and updates that do not affect the tables, such as heartbeats of nodes.
func (s *objectSource) onUpdate(before, after any) {
	b, ok1 := before.(client.Object)
	a, ok2 := after.(client.Object)
	if ok1 && ok2 && b.GetResourceVersion() == a.GetResourceVersion() {
		return
	}
	switch old := before.(type) {
	case *corev1.Node:
		if tables.SameNode(old, after.(*corev1.Node)) {
			return
		}
	case *discoveryv1.EndpointSlice:
		if tables.SameSlice(old, after.(*discoveryv1.EndpointSlice)) {
			return
		}
	}
	s.onChange(after)
}

// service reads a Service of our own namespace.
func (s *objectSource) service(ctx context.Context, name string) (*corev1.Service, error) {
	var service corev1.Service
	key := types.NamespacedName{Namespace: s.namespace, Name: name}
	if s.fromCache.Load() {
		return nil, fmt.Errorf("read Service %s: the API server has been away since the start", key)
	}
	if err := s.cache.Get(ctx, key, &service); err != nil {
		return nil, fmt.Errorf("read Service %s: %w", key, err)
	}
	return &service, nil
}

// read returns the objects.
func (s *objectSource) read(ctx context.Context, g *gateway) (tables.Objects, error) {
	if s.saved != nil {
		objs := *s.saved
		objs.Answering = g.answering
		return objs, nil
	}
	objs := tables.Objects{
		Name: s.node, Services: map[types.NamespacedName]*corev1.Service{},
		Slices: map[types.NamespacedName][]discoveryv1.EndpointSlice{}, Answering: g.answering,
	}
	var cm corev1.ConfigMap
	key := types.NamespacedName{Namespace: s.namespace, Name: config.ConfigMapName}
	if err := s.cache.Get(ctx, key, &cm); err != nil {
		return objs, fmt.Errorf("read ConfigMap %s: %w", key, err)
	}
	var err error
	if objs.Config, err = config.Parse(cm.Data); err != nil {
		return objs, err
	}
	var (
		nodes    corev1.NodeList
		pods     corev1.PodList
		services corev1.ServiceList
		slices   discoveryv1.EndpointSliceList
		indexes  pelagov1alpha1.NodeIndexList
		blocks   pelagov1alpha1.PortBlockList
		peers    pelagov1alpha1.PeerList
		egress   submarinerv1.GlobalEgressIPList
		ingress  submarinerv1.GlobalIngressIPList
		cluster  submarinerv1.ClusterGlobalEgressIP
		spaces   corev1.NamespaceList
		policies networkingv1.NetworkPolicyList
	)
	var errs []error
	for _, list := range []client.ObjectList{&nodes, &pods, &services, &slices, &indexes, &blocks, &peers, &egress, &ingress, &spaces, &policies} {
		if err := s.cache.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			errs = append(errs, fmt.Errorf("list %T: %w", list, err))
		}
	}
	err = s.cache.Get(ctx, types.NamespacedName{Name: submarinerv1.ClusterGlobalEgressIPName}, &cluster)
	switch {
	case err == nil:
		objs.ClusterEgress = &cluster
	case !apierrors.IsNotFound(err):
		errs = append(errs, fmt.Errorf("read ClusterGlobalEgressIP: %w", err))
	}
	objs.Nodes, objs.Pods, objs.NodeIndexes, objs.PortBlocks = nodes.Items, pods.Items, indexes.Items, blocks.Items
	objs.Peers, objs.EgressIPs, objs.IngressIPs = peers.Items, egress.Items, ingress.Items
	objs.Policies, objs.Datapaths = policies.Items, map[string]string{}
	for i := range spaces.Items {
		objs.Datapaths[spaces.Items[i].Name] = spaces.Items[i].Labels[pelagov1alpha1.LabelDatapath]
	}
	for i := range services.Items {
		objs.Services[client.ObjectKeyFromObject(&services.Items[i])] = &services.Items[i]
	}
	for _, slice := range slices.Items {
		if service := slice.Labels[discoveryv1.LabelServiceName]; service != "" {
			name := types.NamespacedName{Namespace: slice.Namespace, Name: service}
			objs.Slices[name] = append(objs.Slices[name], slice)
		}
	}
	errs = append(errs, s.readImports(ctx, slices.Items, &objs), s.readExports(ctx, &objs), s.readPodNodes(ctx, g, &objs))
	// What becomes exposed after this was read wakes the daemon by the object that exposes it.
	exposed := tables.Exposed(objs)
	s.exposed.Store(&exposed)
	return objs, errors.Join(errs...)
}

// readImports adds the ServiceImports with a ClusterSetIP, and of all EndpointSlices those that
// belong to them.
func (s *objectSource) readImports(ctx context.Context, endpointSlices []discoveryv1.EndpointSlice, objs *tables.Objects) error {
	kind, err := s.mcsKind(mcs.ServiceImportKindName)
	if err != nil {
		return err
	}
	var imports unstructured.UnstructuredList
	imports.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	if err := s.cache.List(ctx, &imports, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list ServiceImports: %w", err)
	}
	objs.Imports, objs.Imported = map[types.NamespacedName]tables.Import{}, map[types.NamespacedName][]discoveryv1.EndpointSlice{}
	var errs []error
	for i := range imports.Items {
		var read mcs.ServiceImport
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(imports.Items[i].Object, &read); err != nil {
			errs = append(errs, fmt.Errorf("read ServiceImport %s/%s: %w", imports.Items[i].GetNamespace(), imports.Items[i].GetName(), err))
			continue
		}
		// Those of our own namespace are copies of single clusters' exports.
		if v, ok := tables.NewImport(&read); ok && read.Namespace != s.namespace && read.DeletionTimestamp == nil {
			objs.Imports[client.ObjectKeyFromObject(&read)] = v
		}
	}
	for _, slice := range endpointSlices {
		name := types.NamespacedName{Namespace: slice.Namespace, Name: slice.Labels[mcs.LabelServiceName]}
		if _, ok := objs.Imports[name]; ok {
			objs.Imported[name] = append(objs.Imported[name], slice)
		}
	}
	return errors.Join(errs...)
}

// readPodNodes adds the nodes of pods, where they are needed.
func (s *objectSource) readPodNodes(ctx context.Context, g *gateway, objs *tables.Objects) (err error) {
	if !needsPodNodes(*objs, g.role, time.Now()) {
		s.pods.end()
		return nil
	}
	objs.PodNodes, err = s.pods.all(ctx)
	return err
}

// readExports adds which services are exported, and to which clusters.
func (s *objectSource) readExports(ctx context.Context, objs *tables.Objects) error {
	kind, err := s.mcsKind(mcs.ServiceExportKindName)
	if err != nil {
		return err
	}
	var exports metav1.PartialObjectMetadataList
	exports.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	if err := s.cache.List(ctx, &exports, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list ServiceExports: %w", err)
	}
	objs.Exports, objs.ExportTo = make(map[types.NamespacedName]bool, len(exports.Items)), map[types.NamespacedName]string{}
	for i := range exports.Items {
		e := &exports.Items[i]
		if e.DeletionTimestamp != nil {
			continue
		}
		objs.Exports[client.ObjectKeyFromObject(e)] = true
		if to, restricted := e.Annotations[pelagov1alpha1.AnnotationExportTo]; restricted {
			objs.ExportTo[client.ObjectKeyFromObject(e)] = to
		}
	}
	return nil
}

// mapper maps the kinds that the daemon watches without discovery: a cache that needs discovery
// cannot be created while the API server is away. It has both versions of the MCS kinds; mcsKind
// selects the one that is served.
func mapper() *meta.DefaultRESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	add := func(scope meta.RESTScope, version schema.GroupVersion, resources map[string]string) {
		for kind, plural := range resources {
			m.AddSpecific(version.WithKind(kind), version.WithResource(plural), version.WithResource(strings.ToLower(kind)), scope)
			m.Add(version.WithKind(kind+"List"), scope) // the cache needs the scope of lists, too
		}
	}
	add(meta.RESTScopeNamespace, corev1.SchemeGroupVersion, map[string]string{"ConfigMap": "configmaps", "Pod": "pods", "Service": "services"})
	add(meta.RESTScopeRoot, corev1.SchemeGroupVersion, map[string]string{"Node": "nodes", "Namespace": "namespaces"})
	add(meta.RESTScopeNamespace, networkingv1.SchemeGroupVersion, map[string]string{"NetworkPolicy": "networkpolicies"})
	add(meta.RESTScopeNamespace, discoveryv1.SchemeGroupVersion, map[string]string{"EndpointSlice": "endpointslices"})
	add(meta.RESTScopeRoot, pelagov1alpha1.GroupVersion, map[string]string{"NodeIndex": "nodeindices", "PortBlock": "portblocks", "Peer": "peers"})
	add(meta.RESTScopeRoot, submarinerv1.GroupVersion, map[string]string{"ClusterGlobalEgressIP": "clusterglobalegressips"})
	add(meta.RESTScopeNamespace, submarinerv1.GroupVersion, map[string]string{
		"GlobalEgressIP": "globalegressips", "GlobalIngressIP": "globalingressips", "Gateway": "gateways",
	})
	for _, version := range mcsVersions {
		add(meta.RESTScopeNamespace, schema.GroupVersion{Group: mcs.GroupName, Version: version}, map[string]string{
			mcs.ServiceExportKindName: "serviceexports", mcs.ServiceImportKindName: "serviceimports",
		})
	}
	return m
}
