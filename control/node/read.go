package node

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
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
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/netdev"
)

// CacheOptions limits what the daemon reads: pods of this node, one ConfigMap, EndpointSlices of Services.
func CacheOptions(nodeName, namespace string) (cache.Options, error) {
	ofServices, err := labels.NewRequirement(discoveryv1.LabelServiceName, selection.Exists, nil)
	if err != nil {
		return cache.Options{}, fmt.Errorf("select EndpointSlices: %w", err)
	}
	withDatapath, err := labels.NewRequirement(pelagov1alpha1.LabelDatapath, selection.Exists, nil)
	if err != nil {
		return cache.Options{}, fmt.Errorf("select Namespaces: %w", err)
	}
	return cache.Options{
		Mapper:           mapper(),
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}:                {Field: fields.OneTermEqualSelector("spec.nodeName", nodeName)},
			&discoveryv1.EndpointSlice{}: {Label: labels.NewSelector().Add(*ofServices)},
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

// exportVersions are those in which a cluster may serve the kind ServiceExport, the best first.
var exportVersions = []string{"v1beta1", "v1alpha1"}

// exportsKind is the kind ServiceExport in the version that the cluster serves. Of an export only its name is read.
func (d *Daemon) exportsKind() (schema.GroupVersionKind, error) {
	kind := schema.GroupKind{Group: mcs.GroupName, Kind: mcs.ServiceExportKindName}
	mapping, err := d.mapper.RESTMapping(kind, exportVersions...)
	if err != nil {
		return schema.GroupVersionKind{}, fmt.Errorf("find %s in version %s: %w (`pelago join` installs the definitions)", kind, strings.Join(exportVersions, " or "), err)
	}
	return mapping.GroupVersionKind, nil
}

// watch begins to watch all kinds, or none if it fails. It does not wait for their objects.
func (d *Daemon) watch(ctx context.Context) error {
	kind, err := d.exportsKind()
	if err != nil {
		return err
	}
	exports := &metav1.PartialObjectMetadata{}
	exports.SetGroupVersionKind(kind)
	var informers []cache.Informer
	for _, obj := range append(watched(), exports) {
		informer, err := d.cache.GetInformer(ctx, obj, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch %T: %w", obj, err)
		}
		informers = append(informers, informer)
	}
	for _, informer := range informers {
		if _, err := informer.AddEventHandler(clientcache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { d.wake() },
			UpdateFunc: func(before, after any) { d.wakeIfChanged(before, after) },
			DeleteFunc: func(any) { d.wake() },
		}); err != nil {
			return fmt.Errorf("watch the API server's objects: %w", err)
		}
	}
	return nil
}

// wakeIfChanged ignores resyncs, and updates of nodes that change nothing which the daemon reads, such as heartbeats.
func (d *Daemon) wakeIfChanged(before, after any) {
	b, ok1 := before.(client.Object)
	a, ok2 := after.(client.Object)
	if ok1 && ok2 && b.GetResourceVersion() == a.GetResourceVersion() {
		return
	}
	if old, ok := before.(*corev1.Node); ok && sameNode(old, after.(*corev1.Node)) {
		return
	}
	d.wake()
}

func sameNode(a, b *corev1.Node) bool {
	ipA, _ := internalIP(a)
	ipB, _ := internalIP(b)
	_, drainedA := topology.Drained(a)
	_, drainedB := topology.Drained(b)
	return ipA == ipB && a.Labels[pelagov1alpha1.LabelDatapath] == b.Labels[pelagov1alpha1.LabelDatapath] && a.UID == b.UID && a.Status.NodeInfo.BootID == b.Status.NodeInfo.BootID && topology.IsGateway(a) == topology.IsGateway(b) && drainedA == drainedB &&
		a.Annotations[pelagov1alpha1.AnnotationRotateKeys] == b.Annotations[pelagov1alpha1.AnnotationRotateKeys] &&
		maps.Equal(settingsOf(a.Labels), settingsOf(b.Labels)) && maps.Equal(settingsOf(a.Annotations), settingsOf(b.Annotations))
}

// settingsOf are those labels or annotations that are settings of a gateway.
func settingsOf(m map[string]string) map[string]string {
	out := map[string]string{}
	for key, value := range m {
		if strings.HasPrefix(key, AnnotationPrefix) {
			out[key] = value
		}
	}
	return out
}

// service reads a Service of our own namespace.
func (d *Daemon) service(ctx context.Context, name string) (*corev1.Service, error) {
	var s corev1.Service
	key := types.NamespacedName{Namespace: d.opts.Namespace, Name: name}
	if d.FromCache() {
		return nil, fmt.Errorf("read Service %s: the API server is away since the start", key)
	}
	if err := d.cache.Get(ctx, key, &s); err != nil {
		return nil, fmt.Errorf("read Service %s: %w", key, err)
	}
	return &s, nil
}

// read collects the objects from the cache.
func (d *Daemon) read(ctx context.Context) (Objects, error) {
	objs := Objects{
		Name: d.opts.NodeName, Services: map[types.NamespacedName]*corev1.Service{},
		Slices: map[types.NamespacedName][]discoveryv1.EndpointSlice{}, Answering: d.answering,
	}
	var cm corev1.ConfigMap
	key := types.NamespacedName{Namespace: d.opts.Namespace, Name: config.ConfigMapName}
	if err := d.cache.Get(ctx, key, &cm); err != nil {
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
		if err := d.cache.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			errs = append(errs, fmt.Errorf("list %T: %w", list, err))
		}
	}
	err = d.cache.Get(ctx, types.NamespacedName{Name: submarinerv1.ClusterGlobalEgressIPName}, &cluster)
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
	for _, s := range slices.Items {
		name := types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
		objs.Slices[name] = append(objs.Slices[name], s)
	}
	errs = append(errs, d.readPlain(ctx, &objs))
	return objs, errors.Join(errs...)
}

// readPlain adds what is needed without globalnet.
func (d *Daemon) readPlain(ctx context.Context, objs *Objects) error {
	if !needsPlaces(*objs, d.tenure, time.Now()) {
		d.places.end()
	} else {
		var err error
		if objs.Places, err = d.places.all(ctx); err != nil {
			return err
		}
	}
	if objs.Config.Globalnet() {
		return nil
	}
	kind, err := d.exportsKind()
	if err != nil {
		return err
	}
	var exports metav1.PartialObjectMetadataList
	exports.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	if err := d.cache.List(ctx, &exports, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list ServiceExports: %w", err)
	}
	objs.Exports = make(map[types.NamespacedName]bool, len(exports.Items))
	for i := range exports.Items {
		if e := &exports.Items[i]; e.DeletionTimestamp == nil {
			objs.Exports[client.ObjectKeyFromObject(e)] = true
		}
	}
	return nil
}

// lookAtHost finds out what the tables need of the node itself.
func (d *Daemon) lookAtHost(objs Objects) (Host, error) {
	host := Host{
		Hops: map[netip.Addr]dataplane.Hop{}, Devices: map[netip.Addr]uint32{}, Draining: time.Now().Before(d.tenure.until),
	}
	var err error
	if host.Addresses, err = netdev.LocalAddresses(); err != nil {
		return host, err
	}
	for _, a := range OuterAddresses(objs) {
		// An address without a route is left out; Desired says which node or gateway that is.
		if hop, err := netdev.Resolve(a); err == nil {
			host.Hops[a] = hop
		}
	}
	for i := range objs.Pods {
		if a, ok := podIP(&objs.Pods[i]); ok && !objs.Pods[i].Spec.HostNetwork {
			if hop, err := netdev.Resolve(a); err == nil {
				host.Devices[a] = hop.Ifindex
			}
		}
	}
	datapaths := datapathsOf(objs, d.opts.Datapath)
	var again bool
	host.Datapath = datapaths.node
	if host.Endpoints, again, err = d.endpoints.find(objs, datapaths); err != nil {
		return host, err
	}
	if again {
		time.AfterFunc(retry, d.wake)
	}
	host.Problems = datapaths.problems
	if host.Underlay, err = underlayMTU(host.Hops); err != nil {
		return host, err
	}
	host.MTU = limited(objs, host.Underlay-cable.Overhead(objs.Config.CableDriver, false))
	sizes := d.prober.Sizes()
	host.Limits, host.PathMTU = limits(objs, sizes), cableLimits(objs, sizes)
	overlay, err := config.ParseOverlayTokens(readDir(d.opts.OverlayTokenDir))
	if err != nil {
		return host, err
	}
	psk, err := config.ParsePSK(readDir(d.opts.PSKDir))
	if err != nil {
		return host, err
	}
	host.Overlay = dataplane.Tokens{Current: overlay.Current}
	if overlay.HasPrevious {
		host.Overlay.Old = overlay.Previous
	}
	host.Cable = dataplane.Tokens{Current: CableToken(psk)}
	return host, nil
}

// CableToken derives the 24-bit secret of the vxlan cable from the clusterset's pre-shared key (RFC 2104). It keeps
// strangers from guessing their way in; it is no encryption.
func CableToken(psk []byte) uint32 {
	mac := hmac.New(sha256.New, psk)
	mac.Write([]byte("pelago vxlan cable token 1"))
	sum := mac.Sum(nil)
	token := uint32(sum[0])<<16 | uint32(sum[1])<<8 | uint32(sum[2])
	return max(token, 1) // 0 means none
}

// readDir reads a mounted Secret; what cannot be read is missing, and the parser says so.
func readDir(dir string) map[string][]byte {
	out := map[string][]byte{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return out
	}
	for _, e := range entries {
		if b, err := os.ReadFile(filepath.Join(dir, e.Name())); err == nil {
			out[e.Name()] = b
		}
	}
	return out
}
