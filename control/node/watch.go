package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
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
	byObject := map[client.Object]cache.ByObject{
		&corev1.Node{}:               {Transform: tables.Reduce},
		&discoveryv1.EndpointSlice{}: {Transform: tables.Reduce},
		&corev1.Pod{}:                {Field: fields.OneTermEqualSelector("spec.nodeName", nodeName)},
		&corev1.ConfigMap{}: {
			Namespaces: map[string]cache.Config{namespace: {}},
			Field:      fields.OneTermEqualSelector("metadata.name", config.ConfigMapName),
		},
		&corev1.Namespace{}:     {Label: labels.NewSelector().Add(*withDatapath)},
		&submarinerv1.Gateway{}: {Namespaces: map[string]cache.Config{namespace: {}}},
		partial(definition):     {Transform: reducePolicy},
	}
	for _, k := range policyKinds {
		for _, version := range k.versions {
			byObject[partial(k.WithVersion(version))] = cache.ByObject{Transform: reducePolicy}
		}
	}
	return cache.Options{Mapper: mapper(), DefaultTransform: cache.TransformStripManagedFields(), ByObject: byObject}, nil
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

// watch begins to watch all kinds, or none if it fails. It does not wait for their objects. It may
// be repeated.
func (s *objectSource) watch(ctx context.Context) error {
	kinds, err := s.kinds()
	if err != nil {
		return err
	}
	var informers []cache.Informer
	for _, k := range kinds {
		informer, err := s.cache.GetInformer(ctx, k.object, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch %T: %w", k.object, err)
		}
		informers = append(informers, informer)
	}
	if !s.indexed {
		for index, label := range map[string]string{byService: discoveryv1.LabelServiceName, byImport: mcs.LabelServiceName} {
			values := func(o client.Object) []string { return []string{o.GetLabels()[label]} }
			if err := s.cache.IndexField(ctx, &discoveryv1.EndpointSlice{}, index, values); err != nil {
				return fmt.Errorf("index EndpointSlices: %w", err)
			}
		}
		s.indexed = true
	}
	for i, informer := range informers {
		if _, err := informer.AddEventHandler(clientcache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { s.onChange(kinds[i].name, o) },
			UpdateFunc: func(before, after any) { s.onUpdate(kinds[i].name, before, after) },
			DeleteFunc: func(o any) { s.onChange(kinds[i].name, o) },
		}); err != nil {
			return fmt.Errorf("watch the API server's objects: %w", err)
		}
	}
	return nil
}

// onChange records the change, and wakes the daemon unless it concerns a Service, or EndpointSlices
// of one, that is in no table.
func (s *objectSource) onChange(kind string, obj any) {
	if gone, ok := obj.(clientcache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	var concerned []types.NamespacedName // empty: not limited to Services
	switch o := obj.(type) {
	case *corev1.Service:
		concerned = []types.NamespacedName{client.ObjectKeyFromObject(o)}
	case *discoveryv1.EndpointSlice:
		for _, label := range []string{discoveryv1.LabelServiceName, mcs.LabelServiceName} {
			if name, ok := o.Labels[label]; ok {
				concerned = append(concerned, types.NamespacedName{Namespace: o.Namespace, Name: name})
			}
		}
		if len(concerned) == 0 {
			return // of no Service
		}
	case *metav1.PartialObjectMetadata:
		if _, known := policyKinds[o.Name]; kind == definition.Kind && !known {
			return
		}
	}
	s.changes.add(kind, concerned)
	if exposed := s.exposed.Load(); exposed != nil && len(concerned) > 0 &&
		!slices.ContainsFunc(concerned, func(name types.NamespacedName) bool { return (*exposed)[name] }) {
		return
	}
	s.changed()
}

// onUpdate ignores resyncs, and updates that do not affect the tables, such as heartbeats of nodes.
func (s *objectSource) onUpdate(kind string, before, after any) {
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
		if !maps.Equal(old.Labels, after.(*discoveryv1.EndpointSlice).Labels) {
			s.onChange(kind, before)
		}
	}
	s.onChange(kind, after)
}

// changes are the kinds, and the Services with EndpointSlices, that have changed since the last
// read.
type changes struct {
	mu    sync.Mutex
	kinds map[string]bool
	// slices are the Services and ServiceImports whose EndpointSlices have changed.
	slices map[types.NamespacedName]bool
}

// add records a change of a kind; of EndpointSlices it concerns the named Services.
func (c *changes) add(kind string, services []types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if kind != kindSlice {
		if c.kinds == nil {
			c.kinds = map[string]bool{}
		}
		c.kinds[kind] = true
		return
	}
	if c.slices == nil {
		c.slices = map[types.NamespacedName]bool{}
	}
	for _, name := range services {
		c.slices[name] = true
	}
}

// take returns and resets the changes.
func (c *changes) take() (kinds map[string]bool, slices map[types.NamespacedName]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kinds, slices = c.kinds, c.slices
	c.kinds, c.slices = nil, nil
	return kinds, slices
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

// Indexes of EndpointSlices in the cache: by the Service, and by the ServiceImport that they belong
// to.
const (
	byService = "service"
	byImport  = "import"
)

// Names of kinds in changes.
const (
	kindSlice  = "EndpointSlice"
	kindImport = "ServiceImport"
	kindExport = "ServiceExport"
)

// kind is one whose changes wake the daemon.
type kind struct {
	name   string
	object client.Object
	// read puts the objects of the kind into objs, whose maps it replaces and does not change: an
	// earlier read may still be in use.
	read func(s *objectSource, ctx context.Context, objs *tables.Objects) error
}

// kinds are those of all objects, and how they are read. EndpointSlices are read by Service
// (readSlices).
func (s *objectSource) kinds() ([]kind, error) {
	if s.all != nil {
		return s.all, nil
	}
	exported, err := s.mcsKind(mcs.ServiceExportKindName)
	if err != nil {
		return nil, err
	}
	imported, err := s.mcsKind(mcs.ServiceImportKindName)
	if err != nil {
		return nil, err
	}
	exports, imports := &metav1.PartialObjectMetadata{}, &unstructured.Unstructured{}
	exports.SetGroupVersionKind(exported)
	imports.SetGroupVersionKind(imported)
	s.all = []kind{
		{"ConfigMap", &corev1.ConfigMap{}, (*objectSource).readConfig},
		{"Node", &corev1.Node{}, listed(func(l *corev1.NodeList, o *tables.Objects) { o.Nodes = l.Items })},
		{"Pod", &corev1.Pod{}, listed(func(l *corev1.PodList, o *tables.Objects) { o.Pods = l.Items })},
		{"Service", &corev1.Service{}, listed(func(l *corev1.ServiceList, o *tables.Objects) {
			o.Services = make(map[types.NamespacedName]*corev1.Service, len(l.Items))
			for i := range l.Items {
				o.Services[client.ObjectKeyFromObject(&l.Items[i])] = &l.Items[i]
			}
		})},
		{"Namespace", &corev1.Namespace{}, listed(func(l *corev1.NamespaceList, o *tables.Objects) {
			o.Datapaths = map[string]string{}
			for i := range l.Items {
				o.Datapaths[l.Items[i].Name] = l.Items[i].Labels[pelagov1alpha1.LabelDatapath]
			}
		})},
		{"NetworkPolicy", &networkingv1.NetworkPolicy{}, listed(func(l *networkingv1.NetworkPolicyList, o *tables.Objects) { o.Policies = l.Items })},
		{definition.Kind, partial(definition), (*objectSource).readPolicies},
		{"NodeIndex", &pelagov1alpha1.NodeIndex{}, listed(func(l *pelagov1alpha1.NodeIndexList, o *tables.Objects) { o.NodeIndexes = l.Items })},
		{"PortBlock", &pelagov1alpha1.PortBlock{}, listed(func(l *pelagov1alpha1.PortBlockList, o *tables.Objects) { o.PortBlocks = l.Items })},
		{"Peer", &pelagov1alpha1.Peer{}, listed(func(l *pelagov1alpha1.PeerList, o *tables.Objects) { o.Peers = l.Items })},
		{"ClusterGlobalEgressIP", &submarinerv1.ClusterGlobalEgressIP{}, (*objectSource).readClusterEgress},
		{"GlobalEgressIP", &submarinerv1.GlobalEgressIP{}, listed(func(l *submarinerv1.GlobalEgressIPList, o *tables.Objects) { o.EgressIPs = l.Items })},
		{"GlobalIngressIP", &submarinerv1.GlobalIngressIP{}, listed(func(l *submarinerv1.GlobalIngressIPList, o *tables.Objects) { o.IngressIPs = l.Items })},
		{kindExport, exports, (*objectSource).readExports},
		{kindImport, imports, (*objectSource).readImports},
		{kindSlice, &discoveryv1.EndpointSlice{}, (*objectSource).readAllSlices},
	}
	return s.all, nil
}

// listed reads a kind by a list of all its objects.
func listed[L any, P interface {
	*L
	client.ObjectList
}](put func(P, *tables.Objects)) func(*objectSource, context.Context, *tables.Objects) error {
	return func(s *objectSource, ctx context.Context, objs *tables.Objects) error {
		list := P(new(L))
		if err := s.cache.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return fmt.Errorf("list %T: %w", list, err)
		}
		put(list, objs)
		return nil
	}
}

// read returns the objects: of those that were read before, the kinds that have changed since, and
// the EndpointSlices of Services that have. It is for the loop of Daemon.Run alone.
func (s *objectSource) read(ctx context.Context, g *gateway) (tables.Objects, error) {
	if s.saved != nil {
		return s.fromSaved(g), nil
	}
	changed, services := s.changes.take()
	objs, err := s.readChanged(ctx, changed, services)
	if err != nil {
		s.readAll = true // what was taken is lost
		return objs, err
	}
	s.readAll, s.objs = false, objs
	objs.Answering = g.answering
	return objs, s.readPodNodes(ctx, g, &objs)
}

func (s *objectSource) readChanged(ctx context.Context, changed map[string]bool, services map[types.NamespacedName]bool) (tables.Objects, error) {
	objs := s.objs
	objs.Name = s.node
	kinds, err := s.kinds()
	if err != nil {
		return objs, err
	}
	var errs []error
	for _, k := range kinds {
		if s.readAll || changed[k.name] {
			errs = append(errs, k.read(s, ctx, &objs))
		}
	}
	if !s.readAll {
		errs = append(errs, s.readSlices(ctx, services, &objs))
	}
	if s.readAll || changed["Service"] || changed["GlobalIngressIP"] || changed[kindExport] || changed[kindImport] {
		// What becomes exposed after this was read wakes the daemon by the object that exposes it.
		exposed := tables.Exposed(objs)
		s.exposed.Store(&exposed)
	}
	return objs, errors.Join(errs...)
}

func (s *objectSource) readConfig(ctx context.Context, objs *tables.Objects) error {
	var cm corev1.ConfigMap
	key := types.NamespacedName{Namespace: s.namespace, Name: config.ConfigMapName}
	if err := s.cache.Get(ctx, key, &cm); err != nil {
		return fmt.Errorf("read ConfigMap %s: %w", key, err)
	}
	var err error
	objs.Config, err = config.Parse(cm.Data)
	return err
}

func (s *objectSource) readClusterEgress(ctx context.Context, objs *tables.Objects) error {
	var cluster submarinerv1.ClusterGlobalEgressIP
	err := s.cache.Get(ctx, types.NamespacedName{Name: submarinerv1.ClusterGlobalEgressIPName}, &cluster)
	switch {
	case err == nil:
		objs.ClusterEgress = &cluster
	case apierrors.IsNotFound(err):
		objs.ClusterEgress = nil
	default:
		return fmt.Errorf("read ClusterGlobalEgressIP: %w", err)
	}
	return nil
}

// readAllSlices groups all EndpointSlices by the Service, and by the ServiceImport that they belong
// to.
func (s *objectSource) readAllSlices(ctx context.Context, objs *tables.Objects) error {
	var all discoveryv1.EndpointSliceList
	if err := s.cache.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list EndpointSlices: %w", err)
	}
	objs.Slices, objs.Imported = map[types.NamespacedName][]discoveryv1.EndpointSlice{}, map[types.NamespacedName][]discoveryv1.EndpointSlice{}
	for _, slice := range all.Items {
		for label, of := range map[string]map[types.NamespacedName][]discoveryv1.EndpointSlice{
			discoveryv1.LabelServiceName: objs.Slices, mcs.LabelServiceName: objs.Imported,
		} {
			if service := slice.Labels[label]; service != "" {
				name := types.NamespacedName{Namespace: slice.Namespace, Name: service}
				of[name] = append(of[name], slice)
			}
		}
	}
	return nil
}

// readSlices reads the EndpointSlices of some Services and ServiceImports again.
func (s *objectSource) readSlices(ctx context.Context, changed map[types.NamespacedName]bool, objs *tables.Objects) error {
	if len(changed) == 0 {
		return nil
	}
	objs.Slices, objs.Imported = maps.Clone(objs.Slices), maps.Clone(objs.Imported)
	for name := range changed {
		for index, of := range map[string]map[types.NamespacedName][]discoveryv1.EndpointSlice{byService: objs.Slices, byImport: objs.Imported} {
			var list discoveryv1.EndpointSliceList
			if err := s.cache.List(ctx, &list, client.UnsafeDisableDeepCopy, client.InNamespace(name.Namespace), client.MatchingFields{index: name.Name}); err != nil {
				return fmt.Errorf("list the EndpointSlices of %s: %w", name, err)
			}
			if of[name] = list.Items; len(list.Items) == 0 {
				delete(of, name)
			}
		}
	}
	return nil
}

// readImports reads the ServiceImports with a ClusterSetIP.
func (s *objectSource) readImports(ctx context.Context, objs *tables.Objects) error {
	kind, err := s.mcsKind(mcs.ServiceImportKindName)
	if err != nil {
		return err
	}
	var imports unstructured.UnstructuredList
	imports.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	if err := s.cache.List(ctx, &imports, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list ServiceImports: %w", err)
	}
	objs.Imports = map[types.NamespacedName]tables.Import{}
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
	add(meta.RESTScopeRoot, definition.GroupVersion(), map[string]string{definition.Kind: "customresourcedefinitions"})
	for _, k := range policyKinds {
		for _, version := range k.versions {
			add(k.scope, schema.GroupVersion{Group: k.Group, Version: version}, map[string]string{k.Kind: k.resource})
		}
	}
	return m
}
