package tables

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"iter"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/topology"
)

const (
	// cacheVersion is that of cacheBody. A body of another version is not read, as the meaning of
	// its fields is unknown; but wholeVersion, in one piece without parts.
	cacheVersion = 2
	wholeVersion = 1
	// MaxEncoded is the largest file in bytes. 10,000 port blocks and 10,000 endpoints are 7 MiB in
	// all.
	MaxEncoded = 64 << 20
	// serviceParts are the parts of the kinds with most objects, by hash of the Service's name: of
	// 250,000 endpoints, each has 3 MiB.
	serviceParts = 16
)

// cacheHead is the first line of the file, cacheBody the second; both are JSON. A part is a
// cacheBody, too.
type cacheHead struct {
	Version int    `json:"version"`
	Node    string `json:"node"`
	Boot    string `json:"boot"`   // boot id of the kernel that had these tables
	SHA256  string `json:"sha256"` // of the second line without its end
}

// cacheBody is Objects as they are stored: only what is read of each kind, sorted, so that equal
// objects are equal bytes. No Secret is part of it.
type cacheBody struct {
	// Parts are the names of files with the other fields. A name contains the SHA-256 of the
	// content.
	Parts []string `json:"parts,omitempty"`

	Config        map[string]string                   `json:"config,omitempty"` // as in the ConfigMap
	Nodes         []corev1.Node                       `json:"nodes,omitempty"`
	NodeIndexes   []pelagov1alpha1.NodeIndex          `json:"nodeIndexes,omitempty"`
	Peers         []pelagov1alpha1.Peer               `json:"peers,omitempty"`
	PortBlocks    []pelagov1alpha1.PortBlock          `json:"portBlocks,omitempty"`
	ClusterEgress *submarinerv1.ClusterGlobalEgressIP `json:"clusterEgress,omitempty"`
	EgressIPs     []submarinerv1.GlobalEgressIP       `json:"egressIPs,omitempty"`
	IngressIPs    []submarinerv1.GlobalIngressIP      `json:"ingressIPs,omitempty"`
	Services      []corev1.Service                    `json:"services,omitempty"`
	Slices        []discoveryv1.EndpointSlice         `json:"slices,omitempty"`
	Pods          []corev1.Pod                        `json:"pods,omitempty"`
	Exports       []types.NamespacedName              `json:"exports,omitempty"`
	ExportTo      []cacheExportTo                     `json:"exportTo,omitempty"`
	Imports       []cacheImport                       `json:"imports,omitempty"`
	Imported      []discoveryv1.EndpointSlice         `json:"imported,omitempty"`
	Datapaths     map[string]string                   `json:"datapaths,omitempty"` // by namespace
	Policies      []networkingv1.NetworkPolicy        `json:"policies,omitempty"`
	OtherPolicies map[string]string                   `json:"otherPolicies,omitempty"` // by namespace
	PodNodes      map[string][]netip.Addr             `json:"places,omitempty"`        // by node
}

// cacheImport is an Import with its name.
type cacheImport struct {
	Name types.NamespacedName `json:"name"`
	Import
}

// cacheExportTo is the annotation pelago.io/export-to of an export.
type cacheExportTo struct {
	Name types.NamespacedName `json:"name"`
	To   string               `json:"to"`
}

// Encode returns the content of a file with the objects, whose parts it passes to put; boot is the
// boot id of the kernel that has their tables. A part is encoded after the former one was put, and
// one with a known name needs no writing.
func Encode(objs Objects, boot string, put func(name string, content []byte) error) ([]byte, error) {
	var index cacheBody
	for kind, body := range partsOf(objs) {
		content, err := json.Marshal(body())
		if err != nil {
			return nil, err
		}
		if string(content) == "{}" {
			continue
		}
		if len(content) > MaxEncoded {
			return nil, fmt.Errorf("part %s: %d bytes are more than the %d that would be read", kind, len(content), MaxEncoded)
		}
		name := partName(kind, content)
		if err := put(name, content); err != nil {
			return nil, err
		}
		index.Parts = append(index.Parts, name)
	}
	body, err := json.Marshal(index)
	if err != nil {
		return nil, err
	}
	head, err := json.Marshal(cacheHead{Version: cacheVersion, Node: objs.Name, Boot: boot, SHA256: sumOf(body)})
	if err != nil {
		return nil, err
	}
	return slices.Concat(head, []byte("\n"), body, []byte("\n")), nil
}

func sumOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

func partName(kind string, content []byte) string { return kind + "-" + sumOf(content) }

// Decode is the inverse of Encode on the node of that name; get returns a part. If the node has
// rebooted since, it leaves out what did not survive that: pods have other addresses now, and the
// agent may have given the node's port blocks to others.
func Decode(content []byte, node, boot string, get func(name string) ([]byte, error)) (Objects, error) {
	first, rest, _ := bytes.Cut(content, []byte("\n"))
	var head cacheHead
	if err := json.Unmarshal(first, &head); err != nil {
		return Objects{}, fmt.Errorf("it is broken: %w", err)
	}
	if head.Version != cacheVersion && head.Version != wholeVersion {
		return Objects{}, fmt.Errorf("it has version %d, this program reads %d", head.Version, cacheVersion)
	}
	if head.Node != node {
		return Objects{}, fmt.Errorf("it is that of node %q, this is %q", head.Node, node)
	}
	second, end, whole := bytes.Cut(rest, []byte("\n"))
	if !whole || len(end) > 0 || sumOf(second) != head.SHA256 {
		return Objects{}, errors.New("it is broken: its content does not fit its checksum")
	}
	var body cacheBody
	if err := json.Unmarshal(second, &body); err != nil {
		return Objects{}, fmt.Errorf("it is broken: %w", err)
	}
	for _, name := range body.Parts {
		if err := body.addPart(name, get); err != nil {
			return Objects{}, fmt.Errorf("part %s: %w", name, err)
		}
	}
	objs, err := body.objects(node)
	if err == nil && head.Boot != boot {
		objs.Pods = nil
		objs.PortBlocks = slices.DeleteFunc(objs.PortBlocks, func(b pelagov1alpha1.PortBlock) bool { return b.Spec.Node == node })
	}
	return objs, err
}

// addPart adds the fields of a part. Only Services and their slices are in several parts.
func (b *cacheBody) addPart(name string, get func(name string) ([]byte, error)) error {
	content, err := get(name)
	if err != nil {
		return err
	}
	if kind, _, _ := strings.Cut(name, "-"); partName(kind, content) != name {
		return errors.New("it is broken: its content does not fit its checksum")
	}
	services, endpoints, imports, imported := b.Services, b.Slices, b.Imports, b.Imported
	b.Services, b.Slices, b.Imports, b.Imported = nil, nil, nil, nil
	if err := json.Unmarshal(content, b); err != nil {
		return fmt.Errorf("it is broken: %w", err)
	}
	b.Services, b.Slices = append(services, b.Services...), append(endpoints, b.Slices...)
	b.Imports, b.Imported = append(imports, b.Imports...), append(imported, b.Imported...)
	return nil
}

// partsOf yields the parts, by kind. A part is made when it is needed, since that of all objects is
// as large as they are.
func partsOf(objs Objects) iter.Seq2[string, func() cacheBody] {
	return func(yield func(string, func() cacheBody) bool) {
		for _, p := range []struct {
			kind string
			body func() cacheBody
		}{
			{"config", func() cacheBody {
				b := cacheBody{Config: objs.Config.Data(), Datapaths: objs.Datapaths, Exports: slices.SortedFunc(maps.Keys(objs.Exports), byName)}
				for _, name := range slices.SortedFunc(maps.Keys(objs.ExportTo), byName) {
					b.ExportTo = append(b.ExportTo, cacheExportTo{name, objs.ExportTo[name]})
				}
				return b
			}},
			{"nodes", func() cacheBody {
				return cacheBody{Nodes: sorted(essentials(objs.Nodes, essentialNode), func(o *corev1.Node) *metav1.ObjectMeta { return &o.ObjectMeta })}
			}},
			{"nodeindexes", func() cacheBody {
				return cacheBody{NodeIndexes: sorted(objs.NodeIndexes, func(n *pelagov1alpha1.NodeIndex) *metav1.ObjectMeta { return &n.ObjectMeta })}
			}},
			{"peers", func() cacheBody {
				return cacheBody{Peers: sorted(objs.Peers, func(p *pelagov1alpha1.Peer) *metav1.ObjectMeta { return &p.ObjectMeta })}
			}},
			{"portblocks", func() cacheBody {
				return cacheBody{PortBlocks: sorted(objs.PortBlocks, func(p *pelagov1alpha1.PortBlock) *metav1.ObjectMeta { return &p.ObjectMeta })}
			}},
			{"egressips", func() cacheBody {
				return cacheBody{
					ClusterEgress: objs.ClusterEgress,
					EgressIPs:     sorted(objs.EgressIPs, func(g *submarinerv1.GlobalEgressIP) *metav1.ObjectMeta { return &g.ObjectMeta }),
				}
			}},
			{"ingressips", func() cacheBody {
				return cacheBody{IngressIPs: sorted(objs.IngressIPs, func(g *submarinerv1.GlobalIngressIP) *metav1.ObjectMeta { return &g.ObjectMeta })}
			}},
			{"pods", func() cacheBody {
				return cacheBody{Pods: sorted(essentials(objs.Pods, essentialPod), func(o *corev1.Pod) *metav1.ObjectMeta { return &o.ObjectMeta })}
			}},
			{"policies", func() cacheBody {
				return cacheBody{
					Policies:      sorted(essentials(objs.Policies, essentialPolicy), func(o *networkingv1.NetworkPolicy) *metav1.ObjectMeta { return &o.ObjectMeta }),
					OtherPolicies: objs.OtherPolicies,
				}
			}},
			{"podnodes", func() cacheBody {
				b := cacheBody{PodNodes: map[string][]netip.Addr{}}
				for address, node := range objs.PodNodes {
					b.PodNodes[node] = append(b.PodNodes[node], address)
				}
				for _, addresses := range b.PodNodes {
					slices.SortFunc(addresses, netip.Addr.Compare)
				}
				return b
			}},
		} {
			if !yield(p.kind, p.body) {
				return
			}
		}
		services, imports := byPart(maps.Keys(Exposed(objs))), byPart(maps.Keys(objs.Imports))
		for i := range serviceParts {
			if !yield("services", func() cacheBody { return objs.servicesBody(services[i]) }) ||
				!yield("imports", func() cacheBody { return objs.importsBody(imports[i]) }) {
				return
			}
		}
	}
}

// byPart divides the names of Services among the parts, sorted.
func byPart(names iter.Seq[types.NamespacedName]) (out [serviceParts][]types.NamespacedName) {
	for name := range names {
		h := fnv.New32a()
		_, _ = h.Write([]byte(name.Namespace + "/" + name.Name)) // a hash never fails to write (hash.Hash)
		i := h.Sum32() % serviceParts
		out[i] = append(out[i], name)
	}
	for _, part := range out {
		slices.SortFunc(part, byName)
	}
	return out
}

func (objs Objects) servicesBody(names []types.NamespacedName) (b cacheBody) {
	for _, name := range names {
		if s := objs.Services[name]; s != nil {
			b.Services = append(b.Services, corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name},
				Spec: corev1.ServiceSpec{ClusterIPs: s.Spec.ClusterIPs, Ports: s.Spec.Ports, SessionAffinity: s.Spec.SessionAffinity,
					SessionAffinityConfig: s.Spec.SessionAffinityConfig,
					InternalTrafficPolicy: s.Spec.InternalTrafficPolicy},
			})
		}
		for _, s := range sorted(objs.Slices[name], func(s *discoveryv1.EndpointSlice) *metav1.ObjectMeta { return &s.ObjectMeta }) {
			b.Slices = append(b.Slices, essentialSlice(&s, name))
		}
	}
	return b
}

func (objs Objects) importsBody(names []types.NamespacedName) (b cacheBody) {
	for _, name := range names {
		b.Imports = append(b.Imports, cacheImport{name, objs.Imports[name]})
		for _, s := range sorted(objs.Imported[name], func(s *discoveryv1.EndpointSlice) *metav1.ObjectMeta { return &s.ObjectMeta }) {
			essential := essentialSlice(&s, name)
			essential.Labels = map[string]string{mcs.LabelServiceName: name.Name, mcs.LabelSourceCluster: s.Labels[mcs.LabelSourceCluster]}
			if n, ok := s.Annotations[pelagov1alpha1.AnnotationReadyBackends]; ok {
				essential.Annotations = map[string]string{pelagov1alpha1.AnnotationReadyBackends: n}
			}
			b.Imported = append(b.Imported, essential)
		}
	}
	return b
}

func (b cacheBody) objects(node string) (Objects, error) {
	c, err := config.Parse(b.Config)
	if err != nil {
		return Objects{}, err
	}
	objs := Objects{
		Name: node, Config: c, Nodes: b.Nodes, NodeIndexes: b.NodeIndexes, Peers: b.Peers, PortBlocks: b.PortBlocks,
		ClusterEgress: b.ClusterEgress, EgressIPs: b.EgressIPs, IngressIPs: b.IngressIPs, Pods: b.Pods,
		Services: map[types.NamespacedName]*corev1.Service{}, Slices: map[types.NamespacedName][]discoveryv1.EndpointSlice{},
		Imports: map[types.NamespacedName]Import{}, Imported: map[types.NamespacedName][]discoveryv1.EndpointSlice{},
		Exports: map[types.NamespacedName]bool{}, ExportTo: map[types.NamespacedName]string{}, PodNodes: map[netip.Addr]string{}, Datapaths: b.Datapaths,
		Policies: b.Policies, OtherPolicies: b.OtherPolicies,
	}
	for i := range b.Services {
		s := &b.Services[i]
		objs.Services[types.NamespacedName{Namespace: s.Namespace, Name: s.Name}] = s
	}
	for _, s := range b.Slices {
		name := types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
		objs.Slices[name] = append(objs.Slices[name], s)
	}
	for _, i := range b.Imports {
		objs.Imports[i.Name] = i.Import
	}
	for _, s := range b.Imported {
		name := types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[mcs.LabelServiceName]}
		objs.Imported[name] = append(objs.Imported[name], s)
	}
	for _, name := range b.Exports {
		objs.Exports[name] = true
	}
	for _, e := range b.ExportTo {
		objs.ExportTo[e.Name] = e.To
	}
	for node, addresses := range b.PodNodes {
		for _, a := range addresses {
			objs.PodNodes[a] = node
		}
	}
	return objs, nil
}

// Exposed returns the names of the Services that are in the tables, or would be if they existed, and
// that of the API server, whose addresses are never routed to a peer.
func Exposed(objs Objects) map[types.NamespacedName]bool {
	out := maps.Clone(objs.Exports)
	if out == nil {
		out = map[types.NamespacedName]bool{}
	}
	out[KubernetesService] = true
	for i := range objs.IngressIPs {
		if g := &objs.IngressIPs[i]; g.Spec.ServiceRef != nil {
			out[types.NamespacedName{Namespace: g.Namespace, Name: g.Spec.ServiceRef.Name}] = true
		}
	}
	for name := range objs.Imports { // the own backends of a ClusterSetIP are counted
		out[name] = true
	}
	return out
}

// essentialNode leaves out what changes with every heartbeat.
func essentialNode(n *corev1.Node) corev1.Node {
	annotations := settingsOf(n.Annotations)
	if v, ok := n.Annotations[pelagov1alpha1.AnnotationDrained]; ok {
		annotations[pelagov1alpha1.AnnotationDrained] = v
	}
	labels := settingsOf(n.Labels)
	for _, key := range []string{submarinerv1.LabelGateway, pelagov1alpha1.LabelDatapath} {
		if v, ok := n.Labels[key]; ok {
			labels[key] = v
		}
	}
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, Labels: labels, Annotations: annotations},
		Spec:       corev1.NodeSpec{Unschedulable: n.Spec.Unschedulable},
		Status:     corev1.NodeStatus{Addresses: n.Status.Addresses, NodeInfo: corev1.NodeSystemInfo{BootID: n.Status.NodeInfo.BootID}},
	}
}

// Reduce leaves of a Node or an EndpointSlice what the tables are derived from: a cluster has many,
// and of a Node most are lists of images. It is the transform of a cache.
func Reduce(obj any) (any, error) {
	switch o := obj.(type) {
	case *corev1.Node:
		n := essentialNode(o)
		n.ResourceVersion = o.ResourceVersion
		if v, ok := o.Annotations[pelagov1alpha1.AnnotationRotateKeys]; ok {
			n.Annotations[pelagov1alpha1.AnnotationRotateKeys] = v
		}
		if topology.IsGateway(o) && !topology.NodeReady(o) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
		}
		return &n, nil
	case *discoveryv1.EndpointSlice:
		s := essentialSlice(o, types.NamespacedName{Namespace: o.Namespace})
		shareValues(s.Endpoints)
		s.ResourceVersion, s.Labels, s.Annotations = o.ResourceVersion, map[string]string{}, map[string]string{}
		for _, key := range []string{discoveryv1.LabelServiceName, mcs.LabelServiceName, mcs.LabelSourceCluster} {
			if v, ok := o.Labels[key]; ok {
				s.Labels[key] = v
			}
		}
		if v, ok := o.Annotations[pelagov1alpha1.AnnotationReadyBackends]; ok {
			s.Annotations[pelagov1alpha1.AnnotationReadyBackends] = v
		}
		return &s, nil
	}
	return obj, nil // a deletion that was missed (DeletedFinalStateUnknown) holds what was reduced before
}

// SameSlice reports whether two versions of a reduced EndpointSlice give the same tables.
func SameSlice(a, b *discoveryv1.EndpointSlice) bool {
	return a.UID == b.UID && a.AddressType == b.AddressType && maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations) &&
		reflect.DeepEqual(a.Ports, b.Ports) && reflect.DeepEqual(a.Endpoints, b.Endpoints)
}

// essentialPod leaves out what may be secret: the environment and the arguments of its containers.
func essentialPod(p *corev1.Pod) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID, Labels: p.Labels},
		Spec:       corev1.PodSpec{NodeName: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork},
		Status:     corev1.PodStatus{Phase: p.Status.Phase, PodIPs: p.Status.PodIPs},
	}
}

func essentialSlice(s *discoveryv1.EndpointSlice, service types.NamespacedName) discoveryv1.EndpointSlice {
	out := discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: service.Namespace, Name: s.Name, Labels: map[string]string{discoveryv1.LabelServiceName: service.Name},
		},
		AddressType: s.AddressType, Ports: s.Ports,
	}
	if len(s.Endpoints) == 0 {
		return out
	}
	out.Endpoints = make([]discoveryv1.Endpoint, len(s.Endpoints))
	refs := make([]corev1.ObjectReference, len(s.Endpoints))
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		out.Endpoints[i] = discoveryv1.Endpoint{Addresses: e.Addresses, NodeName: e.NodeName, Conditions: e.Conditions}
		if e.TargetRef != nil {
			refs[i] = corev1.ObjectReference{Kind: e.TargetRef.Kind, Name: e.TargetRef.Name}
			out.Endpoints[i].TargetRef = &refs[i]
		}
	}
	return out
}

const podKind = "Pod"

// The values that the conditions of reduced endpoints refer to; they are never changed.
var isTrue, isFalse = true, false

// shareValues makes the endpoints of a slice refer to one value where they have the same: a cluster
// has hundreds of thousands, and a decoded one has each value to itself.
func shareValues(endpoints []discoveryv1.Endpoint) {
	shared := func(v *bool) *bool {
		switch {
		case v == nil:
			return nil
		case *v:
			return &isTrue
		}
		return &isFalse
	}
	for i := range endpoints {
		e := &endpoints[i]
		e.Conditions = discoveryv1.EndpointConditions{
			Ready: shared(e.Conditions.Ready), Serving: shared(e.Conditions.Serving), Terminating: shared(e.Conditions.Terminating),
		}
		if e.TargetRef != nil && e.TargetRef.Kind == podKind {
			e.TargetRef.Kind = podKind
		}
	}
}

// essentials are the essential parts of objects.
func essentials[T any](all []T, essential func(*T) T) []T {
	out := make([]T, len(all))
	for i := range all {
		out[i] = essential(&all[i])
	}
	return out
}

// sorted returns a copy ordered by namespace and name: caches list in any order.
func sorted[T any](all []T, of func(*T) *metav1.ObjectMeta) []T {
	order := make([]*T, len(all))
	for i := range all {
		order[i] = &all[i]
	}
	slices.SortFunc(order, func(a, b *T) int {
		x, y := of(a), of(b)
		return byName(types.NamespacedName{Namespace: x.Namespace, Name: x.Name}, types.NamespacedName{Namespace: y.Namespace, Name: y.Name})
	})
	out := make([]T, 0, len(all))
	for _, o := range order {
		out = append(out, *o)
	}
	return out
}

func byName(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
