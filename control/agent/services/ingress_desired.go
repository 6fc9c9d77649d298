package services

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

// ServiceKind is how a service is reached from other clusters.
type ServiceKind int

// Kinds of services.
const (
	NotReachable ServiceKind = iota // ExternalName, or no IPv4 address
	// one address for the service; also NodePort and LoadBalancer, which have a ClusterIP
	ClusterIP
	Headless // one address for each of its endpoints
)

// KindOf reports how a service is reached.
func KindOf(s *corev1.Service) ServiceKind {
	switch {
	case s.Spec.Type == corev1.ServiceTypeExternalName:
		return NotReachable
	case s.Spec.ClusterIP == corev1.ClusterIPNone:
		return Headless
	case slices.ContainsFunc(append(slices.Clone(s.Spec.ClusterIPs), s.Spec.ClusterIP), is4):
		return ClusterIP
	}
	return NotReachable
}

// Export is an exported service that exists.
type Export struct {
	Service string
	Kind    ServiceKind
	Created time.Time // of the ServiceExport
	Owner   metav1.OwnerReference
}

// Endpoint is one backend of a headless service: a pod, or an address without one (also if the UID
// of its pod is not known).
type Endpoint struct {
	IP     netip.Addr
	Pod    string
	PodUID types.UID
}

// name is the name of the endpoint's GlobalIngressIP. A pod has one global address whatever the
// number of its services.
func (e Endpoint) name(service string) string {
	if e.Pod != "" {
		return "pod-" + e.Pod
	}
	return fmt.Sprintf("ep-%s-%s", service, e.IP)
}

// endpointsOf lists the IPv4 endpoints of a slice, ready or not.
func endpointsOf(slice *discoveryv1.EndpointSlice) []Endpoint {
	if slice.AddressType != discoveryv1.AddressTypeIPv4 {
		return nil
	}
	var list []Endpoint
	for i := range slice.Endpoints {
		from := &slice.Endpoints[i]
		if len(from.Addresses) == 0 {
			continue
		}
		// the addresses of one endpoint are interchangeable
		ip, err := netip.ParseAddr(from.Addresses[0])
		if err != nil {
			continue
		}
		e := Endpoint{IP: ip}
		// the pod is to own the object, by its UID
		if from.TargetRef != nil && from.TargetRef.Kind == "Pod" && from.TargetRef.UID != "" {
			e.Pod, e.PodUID = from.TargetRef.Name, from.TargetRef.UID
		}
		list = append(list, e)
	}
	return list
}

// Backend is an endpoint of an exported headless service.
type Backend struct {
	Export   Export
	Endpoint Endpoint
}

// Conflict reports that two things need a GlobalIngressIP of one name.
type Conflict struct {
	Export  Export // whose endpoint gets none
	Message string
}

// DesiredIngress is the GlobalIngressIP of one name: for the exported service of that name (nil if
// none exists), or else for a backend whose GlobalIngressIP has this name. If several services
// share a pod, the object refers to the one with the oldest export. It is nil if nothing needs it.
func DesiredIngress(namespace, name string, service *Export, backends []Backend) (*submarinerv1.GlobalIngressIP, *Conflict) {
	backends = slices.DeleteFunc(slices.Clone(backends), func(b Backend) bool {
		return b.Export.Kind != Headless || b.Endpoint.name(b.Export.Service) != name
	})
	slices.SortFunc(backends, func(a, b Backend) int {
		return cmp.Or(a.Export.Created.Compare(b.Export.Created), cmp.Compare(a.Export.Service, b.Export.Service),
			cmp.Compare(a.Endpoint.PodUID, b.Endpoint.PodUID))
	})
	g := &submarinerv1.GlobalIngressIP{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, Labels: map[string]string{pelagov1alpha1.LabelManagedBy: pelagov1alpha1.ManagedBy},
	}}
	if service != nil && service.Kind == ClusterIP {
		g.OwnerReferences = []metav1.OwnerReference{service.Owner}
		g.Spec = submarinerv1.GlobalIngressIPSpec{
			Target: submarinerv1.ClusterIPService, ServiceRef: &corev1.LocalObjectReference{Name: service.Service},
		}
		if len(backends) == 0 {
			return g, nil
		}
		return g, &Conflict{Export: backends[0].Export, Message: fmt.Sprintf(
			"the Service %s has the GlobalIngressIP %s that an endpoint of the Service %s needs: rename the Service %s",
			name, name, backends[0].Export.Service, name)}
	}
	if len(backends) == 0 {
		return nil, nil
	}
	fillBackend(g, backends[0])
	return g, nil
}

func fillBackend(g *submarinerv1.GlobalIngressIP, b Backend) {
	g.Labels[submarinerv1.LabelServiceRef] = b.Export.Service
	g.Spec.ServiceRef = &corev1.LocalObjectReference{Name: b.Export.Service}
	if b.Endpoint.Pod == "" {
		g.Spec.Target = submarinerv1.HeadlessServiceEndpoints
		g.Annotations = map[string]string{submarinerv1.AnnotationEndpointIP: b.Endpoint.IP.String()}
		g.OwnerReferences = []metav1.OwnerReference{b.Export.Owner}
		return
	}
	g.Spec.Target = submarinerv1.HeadlessServicePod
	g.Spec.PodRef = &corev1.LocalObjectReference{Name: b.Endpoint.Pod}
	g.Annotations = map[string]string{submarinerv1.AnnotationPodIP: b.Endpoint.IP.String()}
	g.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: b.Endpoint.Pod, UID: b.Endpoint.PodUID}}
}

// sameTarget reports whether a and b are for the same target, so that the address may be kept: a
// pod that moves to another service keeps its address, a new pod of the same name does not.
func sameTarget(a, b *submarinerv1.GlobalIngressIP) bool {
	if a.Spec.Target != b.Spec.Target {
		return false
	}
	if a.Spec.Target == submarinerv1.HeadlessServicePod {
		return podUID(a) == podUID(b)
	}
	return true // the name says it
}

func podUID(g *submarinerv1.GlobalIngressIP) types.UID {
	for _, ref := range g.OwnerReferences {
		if ref.Kind == "Pod" {
			return ref.UID
		}
	}
	return ""
}

// update copies want into have and reports whether that changed anything. Foreign labels
// and annotations stay.
func update(have, want *submarinerv1.GlobalIngressIP) bool {
	before := have.DeepCopy()
	if have.Labels == nil {
		have.Labels = map[string]string{}
	}
	if have.Annotations == nil {
		have.Annotations = map[string]string{}
	}
	maps.Copy(have.Labels, want.Labels)
	maps.Copy(have.Annotations, want.Annotations)
	have.OwnerReferences, have.Spec = want.OwnerReferences, want.Spec
	return !maps.Equal(before.Labels, have.Labels) || !maps.Equal(before.Annotations, have.Annotations) ||
		!slices.EqualFunc(before.OwnerReferences, have.OwnerReferences, func(a, b metav1.OwnerReference) bool { return a.UID == b.UID }) ||
		serviceRef(before) != serviceRef(have)
}

func serviceRef(g *submarinerv1.GlobalIngressIP) string {
	if g.Spec.ServiceRef == nil {
		return ""
	}
	return g.Spec.ServiceRef.Name
}

// podOf is the pod that a GlobalIngressIP of this name would be for.
func podOf(name string) (pod string, ok bool) { return strings.CutPrefix(name, "pod-") }

// endpointOf is the service whose endpoint without a pod a GlobalIngressIP of this name would be
// for.
func endpointOf(name string) (service string, ok bool) {
	rest, ok := strings.CutPrefix(name, "ep-")
	i := strings.LastIndexByte(rest, '-')
	if !ok || i <= 0 {
		return "", false
	}
	_, err := netip.ParseAddr(rest[i+1:])
	return rest[:i], err == nil
}
