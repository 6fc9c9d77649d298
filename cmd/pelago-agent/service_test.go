package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// namespace makes a namespace in the members.
func namespace(t *testing.T, name string, members ...*member) {
	t.Helper()
	for _, m := range members {
		m.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
}

// service makes a ClusterIP service with one ready backend.
func (m *member) service(t *testing.T, ns, name string, ports ...corev1.ServicePort) *corev1.Service {
	t.Helper()
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: corev1.ServiceSpec{Ports: ports}}
	m.create(t, s)
	m.backends(t, s, backend("10.7.0.9", m.pod(t, ns, name+"-0"), true))
	return s
}

// pod makes a pod that nobody runs.
func (m *member) pod(t *testing.T, ns, name string) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec:       corev1.PodSpec{NodeName: gatewayNode, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	m.create(t, p)
	return p
}

func backend(address string, pod *corev1.Pod, ready bool) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{
		Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}, NodeName: ptr.To(gatewayNode),
	}
}

// backends plays the endpoint slice controller of a service.
func (m *member) backends(t *testing.T, s *corev1.Service, endpoints ...discoveryv1.Endpoint) {
	t.Helper()
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Namespace, Name: s.Name + "-abcde", Labels: map[string]string{discoveryv1.LabelServiceName: s.Name},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: endpoints,
		Ports: []discoveryv1.EndpointPort{{Port: ptr.To[int32](8080), Protocol: ptr.To(corev1.ProtocolTCP)}},
	}
	if err := m.Update(t.Context(), slice); apierrors.IsNotFound(err) {
		m.create(t, slice)
	} else {
		must(t, err)
	}
}

// export does what `pelago export service` does.
func (m *member) export(t *testing.T, ns, name string) {
	t.Helper()
	m.create(t, &mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}})
}

func (m *member) unexport(t *testing.T, ns, name string) {
	t.Helper()
	must(t, m.Delete(t.Context(), &mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}))
}

// condition describes a condition of an export as "Status/Reason: message".
func (m *member) condition(ns, name, kind string) string {
	var e mcs.ServiceExport
	if err := m.Get(context.Background(), client.ObjectKey{Namespace: ns, Name: name}, &e); err != nil {
		return err.Error()
	}
	c := meta.FindStatusCondition(e.Status.Conditions, kind)
	if c == nil {
		return "none"
	}
	return fmt.Sprintf("%s/%s: %s", c.Status, c.Reason, c.Message)
}

// conditionIs is a check for within: does the condition begin so.
func (m *member) conditionIs(ns, name, kind, want string) func() string {
	return func() string {
		if got := m.condition(ns, name, kind); !strings.HasPrefix(got, want) {
			return fmt.Sprintf("%s of %s in %s is %q, want %q", kind, name, m.id, got, want)
		}
		return ""
	}
}

// view describes everything that a member has of an imported service, one line for each object.
func (m *member) view(ns, name string) []string {
	ctx := context.Background()
	var lines []string
	var i mcs.ServiceImport
	if err := m.Get(ctx, client.ObjectKey{Namespace: ns, Name: name}, &i); err == nil {
		lines = append(lines, "import "+describe(i))
	}
	labels := client.MatchingLabels{mcs.LabelServiceName: name, "lighthouse.submariner.io/sourceNamespace": ns}
	var copies mcs.ServiceImportList
	if err := m.List(ctx, &copies, client.InNamespace(manifests.SystemNamespace), labels); err != nil {
		return []string{err.Error()}
	}
	for _, c := range copies.Items {
		lines = append(lines, fmt.Sprintf("copy %s: %s", c.Name, describe(c)))
	}
	var slices discoveryv1.EndpointSliceList
	if err := m.List(ctx, &slices, client.InNamespace(ns), labels); err != nil {
		return []string{err.Error()}
	}
	for _, s := range slices.Items {
		lines = append(lines, "slice of "+s.Labels[mcs.LabelSourceCluster]+": "+describeSlice(s))
	}
	return sorted(lines)
}

// complete reports whether a view has import, copy and slice of a service that one cluster exports.
// The status of the import, which names that cluster, comes after the object.
func complete(view []string, cluster string) bool {
	return len(view) == 3 && slices.ContainsFunc(view, func(line string) bool {
		return strings.HasPrefix(line, "import ") && strings.HasSuffix(line, " "+cluster)
	})
}

func describe(i mcs.ServiceImport) string {
	text := string(i.Spec.Type)
	for _, p := range i.Spec.Ports {
		text += fmt.Sprintf(" %s/%d", p.Protocol, p.Port)
	}
	for _, ip := range i.Spec.IPs {
		text += " " + ip
	}
	for _, c := range i.Status.Clusters {
		text += " " + c.Cluster
	}
	return text
}

func describeSlice(s discoveryv1.EndpointSlice) string {
	var endpoints []string
	for _, e := range s.Endpoints {
		text := e.Addresses[0]
		if h := ptr.Deref(e.Hostname, ""); h != "" {
			text = h + "=" + text
		}
		if !ptr.Deref(e.Conditions.Ready, true) {
			text += " unready"
		}
		endpoints = append(endpoints, text)
	}
	for _, p := range s.Ports {
		endpoints = append(endpoints, fmt.Sprintf("port %d", *p.Port))
	}
	return strings.Join(endpoints, ", ")
}

func sorted(lines []string) []string {
	slices.Sort(lines)
	return lines
}

// viewIs is a check for within.
func (m *member) viewIs(ns, name string, want ...string) func() string {
	return func() string {
		if diff := cmp.Diff(sorted(want), m.view(ns, name)); diff != "" {
			return m.id + ": -want +got\n" + diff
		}
		return ""
	}
}

// atHub lists what lies at the hub of a service.
func (s *clusterset) atHub(ns, name string) []string {
	labels := client.MatchingLabels{mcs.LabelServiceName: name, "lighthouse.submariner.io/sourceNamespace": ns}
	var contributions v1alpha1.ServiceContributionList
	var endpointSlices discoveryv1.EndpointSliceList
	ctx := context.Background()
	if err := s.hub.List(ctx, &contributions, labels); err != nil {
		return []string{err.Error()}
	}
	if err := s.hub.List(ctx, &endpointSlices, labels); err != nil {
		return []string{err.Error()}
	}
	var lines []string
	for _, c := range contributions.Items {
		lines = append(lines, fmt.Sprintf("contribution %s %v", c.Name, c.Spec.IPs))
	}
	for _, e := range endpointSlices.Items {
		lines = append(lines, fmt.Sprintf("slice of %s: %s", e.Labels[submarinerv1.LabelClusterID], describeSlice(e)))
	}
	return sorted(lines)
}

func (s *clusterset) atHubIs(ns, name string, want ...string) func() string {
	return func() string {
		if diff := cmp.Diff(sorted(want), s.atHub(ns, name)); diff != "" {
			return "hub: -want +got\n" + diff
		}
		return ""
	}
}

// address is the global IP of a GlobalIngressIP.
func (m *member) address(t *testing.T, ns, name string) string {
	t.Helper()
	var g submarinerv1.GlobalIngressIP
	within(t, "address of "+name+" in "+m.id, func() string {
		if err := m.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: name}, &g); err != nil {
			return err.Error()
		}
		if g.Status.AllocatedIP == "" {
			return "no address"
		}
		return ""
	})
	return g.Status.AllocatedIP
}
