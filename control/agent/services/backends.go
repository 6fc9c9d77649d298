package services

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/control/topology"
)

// BackendSlice is the content of one EndpointSlice to be.
type BackendSlice struct {
	// Source tells the slices of one service and cluster apart; it stays the same while the service
	// lives.
	Source    string
	Type      discoveryv1.AddressType
	Ports     []discoveryv1.EndpointPort
	Endpoints []discoveryv1.Endpoint
	// ReadyBackends is the value of annotation pelago.io/ready-backends; empty: it is left out.
	ReadyBackends string
}

// annotate sets what a slice carries besides its endpoints.
func (b BackendSlice) annotate(slice *discoveryv1.EndpointSlice) {
	if b.ReadyBackends != "" {
		slice.Annotations = map[string]string{v1alpha1.AnnotationReadyBackends: b.ReadyBackends}
	}
}

// VirtualSlices are the view of a ClusterIP service from outside: for each IP family one slice with
// one endpoint, the virtual address, and the Service's own ports. The endpoint is ready if any
// backend is.
func VirtualSlices(addresses []string, service *corev1.Service, slices []discoveryv1.EndpointSlice) []BackendSlice {
	count := readyBackends(slices)
	ready := count > 0
	var out []BackendSlice
	for _, text := range addresses {
		ip, err := netip.ParseAddr(text)
		if err != nil {
			continue // "None", or not given yet
		}
		family := discoveryv1.AddressTypeIPv4
		if ip.Is6() {
			family = discoveryv1.AddressTypeIPv6
		}
		out = append(out, BackendSlice{
			Source: "virtual", Type: family, Ports: servicePorts(service),
			Endpoints:     []discoveryv1.Endpoint{{Addresses: []string{text}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
			ReadyBackends: strconv.Itoa(topology.Significant(count)),
		})
	}
	return out
}

// PodSlices are the view of a headless service: each slice of the Service mirrored, with the pods'
// ports (its target ports), readiness and hostnames (see Hostname). address gives the address to
// publish for an endpoint; one without is left out.
func PodSlices(slices []discoveryv1.EndpointSlice, dashed bool, address func(discoveryv1.AddressType, discoveryv1.Endpoint) (string, bool)) []BackendSlice {
	var out []BackendSlice
	for _, s := range slices {
		if s.AddressType == discoveryv1.AddressTypeFQDN {
			continue // nothing that a packet can be sent to
		}
		slice := BackendSlice{Source: s.Name, Type: s.AddressType, Ports: s.Ports}
		for _, e := range s.Endpoints {
			if a, ok := address(s.AddressType, e); ok {
				slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
					Addresses: []string{a}, Conditions: e.Conditions, Hostname: ptr.To(Hostname(e, dashed)),
				})
			}
		}
		if len(slice.Endpoints) > 0 {
			out = append(out, slice)
		}
	}
	return out
}

// OwnAddress publishes an endpoint under the address that it has in its own cluster. Other clusters
// publish IPv4 only: with IPv6, AAAA would be the pods of the own cluster alone, and A those of
// all.
func OwnAddress(family discoveryv1.AddressType, e discoveryv1.Endpoint) (string, bool) {
	// an EndpointSlice has at least one, and all but the first are ignored
	return e.Addresses[0], family == discoveryv1.AddressTypeIPv4
}

// Hostname is the label under which DNS knows an endpoint: its hostname, else its pod's name unless
// dashed, else its address with dashes (the convention of the implementations of the multicluster
// DNS specification).
func Hostname(e discoveryv1.Endpoint, dashed bool) string {
	if h := ptr.Deref(e.Hostname, ""); h != "" {
		return h
	}
	if pod := EndpointPod(e); pod != "" && !dashed && len(validation.IsDNS1123Label(pod)) == 0 {
		return pod
	}
	address := e.Addresses[0]
	if ip, err := netip.ParseAddr(address); err == nil {
		address = ip.StringExpanded()
	}
	return strings.NewReplacer(".", "-", ":", "-").Replace(address)
}

// EndpointPod is the name of the pod behind an endpoint; empty if none exists.
func EndpointPod(e discoveryv1.Endpoint) string {
	if e.TargetRef == nil || e.TargetRef.Kind != "Pod" {
		return ""
	}
	return e.TargetRef.Name
}

// NameHash is the part of a slice's name that tells it apart, ten hexadecimal digits of its
// identity.
func NameHash(identity ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(identity, "/")))
	return hex.EncodeToString(sum[:5])
}

// readyBackends counts the ready pods, and the ready endpoints without a pod. If none exist, it
// counts those that terminate but still serve, which then get new connections (KEP-1669). A backend
// that is in several slices, because of dual stack or while slices are rewritten, counts once. As
// defined by the EndpointSlice API, unknown readiness counts as ready.
func readyBackends(slices []discoveryv1.EndpointSlice) int {
	ready, terminating := map[string]bool{}, map[string]bool{}
	for _, s := range slices {
		for _, e := range s.Endpoints {
			if len(e.Addresses) == 0 {
				continue
			}
			name, isReady := cmp.Or(EndpointPod(e), e.Addresses[0]), ptr.Deref(e.Conditions.Ready, true)
			if isReady {
				ready[name] = true
			} else if ptr.Deref(e.Conditions.Terminating, false) && ptr.Deref(e.Conditions.Serving, isReady) {
				terminating[name] = true
			}
		}
	}
	if len(ready) == 0 {
		return len(terminating)
	}
	return len(ready)
}

func servicePorts(service *corev1.Service) []discoveryv1.EndpointPort {
	var out []discoveryv1.EndpointPort
	for _, p := range service.Spec.Ports {
		protocol := cmp.Or(p.Protocol, corev1.ProtocolTCP)
		out = append(out, discoveryv1.EndpointPort{Name: ptr.To(p.Name), Protocol: &protocol, Port: ptr.To(p.Port), AppProtocol: p.AppProtocol})
	}
	return out
}

// SliceService is the Service of this cluster that an EndpointSlice belongs to. Slices that were
// imported from other clusters never have the label, and no Service.
func SliceService(slice client.Object) (service types.NamespacedName, ok bool) {
	name := slice.GetLabels()[discoveryv1.LabelServiceName]
	if name == "" {
		return types.NamespacedName{}, false
	}
	return types.NamespacedName{Namespace: slice.GetNamespace(), Name: name}, true
}

// ByService are the values by which EndpointSlices are indexed: `<namespace>/<name>` of the
// Service.
func ByService(slice *discoveryv1.EndpointSlice) []string {
	if service, ok := SliceService(slice); ok {
		return []string{service.String()}
	}
	return nil
}

// sliceSet applies the EndpointSlices of one service, to the hub or to the member.
func sliceSet(c client.Client, owns func(client.Object) bool) kube.ObjectSet[*discoveryv1.EndpointSlice] {
	return kube.ObjectSet[*discoveryv1.EndpointSlice]{
		Client: c, Owns: owns,
		Copy: func(dst, src *discoveryv1.EndpointSlice) {
			dst.Ports, dst.Endpoints = src.Ports, src.Endpoints
			if _, unreachable := src.Annotations[v1alpha1.AnnotationUnreachable]; !unreachable {
				delete(dst.Annotations, v1alpha1.AnnotationUnreachable)
			}
		},
	}
}
