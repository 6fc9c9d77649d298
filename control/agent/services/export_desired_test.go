package services

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
)

var (
	globalnet = cluster{id: "g2", globalnet: true, brokerNamespace: "broker"}
	plain     = cluster{
		id: "c2", brokerNamespace: "broker", routed: []netip.Prefix{netip.MustParsePrefix("10.7.0.0/16"), netip.MustParsePrefix("198.51.100.0/24")},
		fabric: func(node uint16) (netip.Addr, error) {
			return config.FabricAddress(netip.MustParsePrefix(config.DefaultFabricCIDR), 2, node)
		},
	}
	created = metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
)

func exported() *mcs.ServiceExport {
	return &mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "sample", Name: "web", CreationTimestamp: created, Generation: 3}}
}

func service(clusterIP string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "sample", Name: "web", Labels: map[string]string{"private": "label"}},
		Spec: corev1.ServiceSpec{
			ClusterIP: clusterIP, ClusterIPs: []string{clusterIP}, SessionAffinity: corev1.ServiceAffinityNone,
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, AppProtocol: ptr.To("http")}},
		},
	}
}

func pods(endpoints ...discoveryv1.Endpoint) []discoveryv1.EndpointSlice {
	return []discoveryv1.EndpointSlice{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "sample", Name: "web-abcde"}, AddressType: discoveryv1.AddressTypeIPv4, Endpoints: endpoints,
	}}
}

func pod(address, name string, uid types.UID) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{
		Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
		TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: name, UID: uid},
	}
}

func onNode(address, name, node string) discoveryv1.Endpoint {
	e := pod(address, name, "u-"+types.UID(name))
	e.NodeName = &node
	return e
}

// ingress is a GlobalIngressIP; the address is in use if allocated.
func ingress(target submarinerv1.TargetType, ip string, uid types.UID, allocated bool) submarinerv1.GlobalIngressIP {
	g := submarinerv1.GlobalIngressIP{Spec: submarinerv1.GlobalIngressIPSpec{Target: target}}
	if uid != "" {
		g.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", UID: uid}}
	}
	g.Status.AllocatedIP = ip
	c := metav1.Condition{Type: "Allocated", Status: metav1.ConditionFalse, Reason: "AwaitingGateways", Message: "wait"}
	if allocated {
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, "Success", ""
	}
	g.Status.Conditions = []metav1.Condition{c}
	return g
}

// lines describes an offer: the contribution's type and IPs, and each slice's endpoints.
func lines(o offer) []string {
	var out []string
	if c := o.contribution; c != nil {
		out = append(out, c.Name+" "+string(c.Spec.Type)+" "+strings.Join(c.Spec.IPs, ","))
	}
	for _, s := range o.slices {
		text := string(s.AddressType)
		for _, e := range s.Endpoints {
			text += " " + ptr.Deref(e.Hostname, "") + "=" + e.Addresses[0]
			if s.Annotations[v1alpha1.AnnotationReadyBackends] == "1" {
				text += " ready"
			} else if len(o.waiting) > 0 && !ptr.Deref(e.Conditions.Ready, true) {
				text += " not ready"
			}
		}
		out = append(out, text)
	}
	return out
}

func labelled(key, value string) *mcs.ServiceExport {
	e := exported()
	e.Spec.ExportedLabels = map[string]string{key: value}
	return e
}

func TestInvalidMetadata(t *testing.T) {
	long, many := strings.Repeat("a", 64), map[string]string{}
	for i := range 250 {
		many[fmt.Sprintf("label-%03d", i)] = strings.Repeat("v", 31)
	}
	for name, tt := range map[string]struct {
		labels, annotations map[string]string
		want                string
	}{
		"nothing":              {},
		"fine":                 {labels: map[string]string{"tier": "1", "example.com/team": "red"}, annotations: map[string]string{"note": "any text\n"}},
		"value of a label":     {labels: map[string]string{"tier": long}, want: "must be no more than 63"},
		"key of a label":       {labels: map[string]string{"-tier": "1"}, want: `"-tier"`},
		"key of an annotation": {annotations: map[string]string{"a b": "1"}, want: `"a b"`},
		"our own label":        {labels: map[string]string{"app.kubernetes.io/managed-by": "me"}, want: `"app.kubernetes.io/managed-by" is reserved`},
		"a source cluster":     {labels: map[string]string{"multicluster.kubernetes.io/source-cluster": "g2"}, want: "is reserved"},
		"a weight":             {annotations: map[string]string{"lighthouse-lb-weight.submariner.io/g1": "9"}, want: "is reserved"},
		"a similar domain":     {labels: map[string]string{"notpelago.io/a": "1"}},
		"both":                 {labels: map[string]string{"b_": "1"}, annotations: map[string]string{"pelago.io/hub-id": "1"}, want: `"b_"`},
		"too many annotations": {annotations: map[string]string{"a": strings.Repeat("x", maxExported)}, want: "8193 bytes, at most 8192"},
		"too many labels":      {labels: many, want: "spec.exportedLabels: 10000 bytes, at most 8192"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := invalidMetadata(tt.labels, tt.annotations); !strings.Contains(got, tt.want) || (got == "") != (tt.want == "") {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestDesired(t *testing.T) {
	external := service("")
	external.Spec.Type = corev1.ServiceTypeExternalName
	dual := service("10.77.0.5")
	dual.Spec.ClusterIPs = []string{"10.77.0.5", "fd00::5"}
	ending := exported()
	ending.DeletionTimestamp = &created
	serviceIP := map[string]submarinerv1.GlobalIngressIP{"web": ingress(submarinerv1.ClusterIPService, "120.2.0.9", "", true)}
	two := pods(pod("10.7.0.2", "web-0", "u0"), pod("10.7.0.3", "web-1", "u1"))
	six := pods(pod("fd00::7", "web-0", "u0"))
	six[0].Name, six[0].AddressType = "web-v6", discoveryv1.AddressTypeIPv6
	podIP := func(ip string, uid types.UID) submarinerv1.GlobalIngressIP {
		return ingress(submarinerv1.HeadlessServicePod, ip, uid, true)
	}
	type ips = map[string]submarinerv1.GlobalIngressIP

	tests := map[string]struct {
		cluster cluster
		state   state
		want    []string
		valid   mcs.ServiceExportConditionReason
		waiting string
	}{
		"not exported":              {globalnet, state{service: service("10.77.0.5"), ingress: serviceIP}, nil, "", ""},
		"export being deleted":      {globalnet, state{export: ending, service: service("10.77.0.5"), ingress: serviceIP}, nil, "", ""},
		"no Service":                {globalnet, state{export: exported()}, nil, "NoService", ""},
		"ExternalName":              {plain, state{export: exported(), service: external}, nil, "InvalidServiceType", ""},
		"globalnet":                 {globalnet, state{export: exported(), service: service("10.77.0.5"), ingress: serviceIP}, []string{"g2.sample.web ClusterSetIP 120.2.0.9", "IPv4 =120.2.0.9"}, "Valid", ""},
		"globalnet, no address":     {globalnet, state{export: exported(), service: service("10.77.0.5")}, nil, "Valid", "GlobalIngressIP web does not exist yet"},
		"globalnet, not at all gws": {globalnet, state{export: exported(), service: service("10.77.0.5"), ingress: ips{"web": ingress(submarinerv1.ClusterIPService, "120.2.0.9", "", false)}}, nil, "Valid", "AwaitingGateways"},
		"globalnet, address of a pod of that name": {globalnet, state{export: exported(), service: service("10.77.0.5"),
			ingress: ips{"web": podIP("120.2.0.9", "u")}}, nil, "Valid", "does not exist yet"},
		"plain":            {plain, state{export: exported(), service: service("10.77.0.5")}, []string{"c2.sample.web ClusterSetIP 10.77.0.5", "IPv4 =10.77.0.5"}, "Valid", ""},
		"plain dual stack": {plain, state{export: exported(), service: dual}, []string{"c2.sample.web ClusterSetIP 10.77.0.5", "IPv4 =10.77.0.5"}, "Valid", ""},
		"plain IPv6":       {plain, state{export: exported(), service: service("fd00::5")}, nil, "Valid", "no IPv4 ClusterIP"},
		"globalnet IPv6":   {globalnet, state{export: exported(), service: service("fd00::5")}, nil, "Valid", "no IPv4 ClusterIP"},
		"plain headless, IPv6 endpoints": {plain, state{export: exported(), service: service("None"), slices: six},
			[]string{"c2.sample.web Headless "}, "Valid", "only IPv6 endpoints"},
		"globalnet headless, IPv6 endpoints": {globalnet, state{export: exported(), service: service("None"), slices: six},
			[]string{"g2.sample.web Headless "}, "Valid", "only IPv6 endpoints"},
		"plain headless, endpoints of both families": {plain, state{export: exported(), service: service("None"), slices: slices.Concat(six, two)},
			[]string{"c2.sample.web Headless ", "IPv4 web-0=10.7.0.2 web-1=10.7.0.3"}, "Valid", ""},
		"plain headless": {plain, state{export: exported(), service: service("None"), slices: two}, []string{"c2.sample.web Headless ", "IPv4 web-0=10.7.0.2 web-1=10.7.0.3"}, "Valid", ""},
		"plain headless in the network of its node": {plain, state{export: exported(), service: service("None"), nodes: map[string]node{"n3": {3, []netip.Addr{netip.MustParseAddr("192.0.2.3")}, false}},
			slices: pods(pod("10.7.0.2", "web-0", "u0"), onNode("192.0.2.3", "web-1", "n3"))},
			[]string{"c2.sample.web Headless ", "IPv4 web-0=10.7.0.2 web-1=241.0.128.3"}, "Valid", ""},
		"plain headless on a node without index": {plain, state{export: exported(), service: service("None"), nodes: map[string]node{"n3": {0, []netip.Addr{netip.MustParseAddr("192.0.2.3")}, false}},
			slices: pods(pod("10.7.0.2", "web-0", "u0"), onNode("192.0.2.3", "web-1", "n3"))},
			[]string{"c2.sample.web Headless ", "IPv4 web-0=10.7.0.2"}, "Valid", `endpoint 192.0.2.3 is in the network of node n3, which has no index yet`},
		"plain headless, a pod outside the ranges is not its node": {plain, state{export: exported(), service: service("None"),
			nodes:  map[string]node{"n3": {3, []netip.Addr{netip.MustParseAddr("192.0.2.3")}, false}},
			slices: pods(pod("10.7.0.2", "web-0", "u0"), onNode("10.9.2.3", "web-1", "n3"))},
			[]string{"c2.sample.web Headless ", "IPv4 web-0=10.7.0.2"}, "Valid",
			"endpoint 10.9.2.3 on node n3 is outside the cluster's pod ranges [10.7.0.0/16 198.51.100.0/24]: it cannot be reached from other clusters; join again with --clustercidr"},
		"globalnet headless": {globalnet, state{export: exported(), service: service("None"), slices: two,
			ingress: ips{"pod-web-0": podIP("120.2.0.10", "u0"), "pod-web-1": podIP("120.2.0.11", "u1")}},
			[]string{"g2.sample.web Headless ", "IPv4 web-0=120.2.0.10 web-1=120.2.0.11"}, "Valid", ""},
		"globalnet headless, one without address": {globalnet, state{export: exported(), service: service("None"), slices: two,
			ingress: ips{"pod-web-0": podIP("120.2.0.10", "u0")}},
			[]string{"g2.sample.web Headless ", "IPv4 web-0=120.2.0.10"}, "Valid", "not all of 2 endpoints have a global IP"},
		"globalnet headless, address of the former pod": {globalnet, state{export: exported(), service: service("None"), slices: two,
			ingress: ips{"pod-web-0": podIP("120.2.0.10", "u0"), "pod-web-1": podIP("120.2.0.11", "former")}},
			[]string{"g2.sample.web Headless ", "IPv4 web-0=120.2.0.10"}, "Valid", "not all of 2 endpoints"},
		"globalnet headless, endpoint without pod": {globalnet, state{export: exported(), service: service("None"),
			slices:  pods(discoveryv1.Endpoint{Addresses: []string{"192.0.2.7"}}),
			ingress: ips{"ep-web-192.0.2.7": ingress(submarinerv1.HeadlessServiceEndpoints, "120.2.0.12", "", true)}},
			[]string{"g2.sample.web Headless ", "IPv4 192-0-2-7=120.2.0.12"}, "Valid", ""},
		"globalnet headless, endpoint of a pod without UID": {globalnet, state{export: exported(), service: service("None"),
			slices:  pods(pod("10.7.0.2", "web-0", "")),
			ingress: ips{"ep-web-10.7.0.2": ingress(submarinerv1.HeadlessServiceEndpoints, "120.2.0.12", "", true)}},
			[]string{"g2.sample.web Headless ", "IPv4 web-0=120.2.0.12"}, "Valid", ""},
		"globalnet, backends outside the cluster": {globalnet, state{export: exported(), service: service("10.77.0.5"), ingress: serviceIP,
			slices: pods(discoveryv1.Endpoint{Addresses: []string{"192.0.2.7"}})},
			[]string{"g2.sample.web ClusterSetIP 120.2.0.9", "IPv4 =120.2.0.9 ready"}, "Valid", ""},
		"globalnet, backends in another cluster": {globalnet, state{export: exported(), service: service("10.77.0.5"), ingress: serviceIP,
			slices: pods(discoveryv1.Endpoint{Addresses: []string{"120.1.0.7"}}), elsewhere: []netip.Prefix{netip.MustParsePrefix("120.1.0.0/24")}},
			[]string{"g2.sample.web ClusterSetIP 120.2.0.9", "IPv4 =120.2.0.9 not ready"}, "Valid", "none of 1 ready endpoints is reached"},
		"plain headless, a host of --external-cidr": {plain, state{export: exported(), service: service("None"),
			slices: pods(discoveryv1.Endpoint{Addresses: []string{"198.51.100.7"}})},
			[]string{"c2.sample.web Headless ", "IPv4 198-51-100-7=198.51.100.7"}, "Valid", ""},
		"plain headless, a host of no declared range": {plain, state{export: exported(), service: service("None"),
			slices: pods(discoveryv1.Endpoint{Addresses: []string{"192.0.2.7"}})},
			[]string{"c2.sample.web Headless "}, "Valid", "join with --external-cidr"},
		"plain, a pod and a backend outside the cluster": {plain, state{export: exported(), service: service("10.77.0.5"),
			slices: pods(onNode("10.7.0.2", "web-0", "n1"), discoveryv1.Endpoint{Addresses: []string{"192.0.2.7"}})},
			[]string{"c2.sample.web ClusterSetIP 10.77.0.5", "IPv4 =10.77.0.5"}, "Valid", ""},
		"a label that is none":            {plain, state{export: labelled("tier/", "1"), service: service("10.77.0.5")}, nil, "InvalidExportedMetadata", ""},
		"a reserved label":                {plain, state{export: labelled("multicluster.kubernetes.io/source-cluster", "g9"), service: service("10.77.0.5")}, nil, "InvalidExportedMetadata", ""},
		"globalnet headless without pods": {globalnet, state{export: exported(), service: service("None")}, []string{"g2.sample.web Headless "}, "Valid", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := tt.cluster.desired(tt.state)
			if diff := cmp.Diff(tt.want, lines(got)); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if got.valid.reason != tt.valid {
				t.Errorf("Valid is %q, want %q", got.valid.reason, tt.valid)
			}
			if !strings.Contains(got.waiting, tt.waiting) || (tt.waiting == "") != (got.waiting == "") {
				t.Errorf("waits for %q, want %q", got.waiting, tt.waiting)
			}
		})
	}
}

// The cache lists slices in any order: a message that follows it would be written for ever.
func TestMessageWithSlicesInAnyOrder(t *testing.T) {
	for _, c := range []cluster{plain, globalnet} {
		both := slices.Concat(pods(discoveryv1.Endpoint{Addresses: []string{"192.0.2.7"}}), pods(discoveryv1.Endpoint{Addresses: []string{"192.0.2.8"}}))
		both[1].Name = "web-fghij"
		s := state{export: exported(), service: service("None"), slices: both}
		want := c.desired(s).waiting
		slices.Reverse(both)
		if got := c.desired(s).waiting; got != want || want == "" {
			t.Errorf("waits for %q, in the other order for %q", want, got)
		}
	}
}

// An export is unreachable while no endpoint, ready or not, can be reached: not while pods are
// replaced, nor while they wait for an address.
func TestUnreachable(t *testing.T) {
	external, elsewhere := discoveryv1.Endpoint{Addresses: []string{"192.0.2.7"}}, discoveryv1.Endpoint{Addresses: []string{"120.1.0.7"}}
	starting := onNode("10.7.0.2", "web-0", "n1")
	starting.Conditions.Ready = ptr.To(false)
	six := pods(pod("fd00::7", "web-0", "u0"))
	six[0].AddressType = discoveryv1.AddressTypeIPv6
	others := []netip.Prefix{netip.MustParsePrefix("120.1.0.0/24")}
	serviceIP := map[string]submarinerv1.GlobalIngressIP{"web": ingress(submarinerv1.ClusterIPService, "120.2.0.9", "", true)}
	nodes := map[string]node{"n3": {0, []netip.Addr{netip.MustParseAddr("192.0.2.3")}, false}, "fargate": {noDatapath: true}}
	for name, tt := range map[string]struct {
		cluster  cluster
		ip       string
		slices   []discoveryv1.EndpointSlice
		want     bool
		complete bool // nothing is awaited
	}{
		"a backend in another cluster":                       {globalnet, "10.77.0.5", pods(elsewhere), true, false},
		"the same, and a pod that starts":                    {globalnet, "10.77.0.5", pods(elsewhere, starting), false, false},
		"the same, without globalnet":                        {plain, "10.77.0.5", pods(elsewhere), true, false},
		"a backend outside the cluster":                      {plain, "10.77.0.5", pods(external), false, true},
		"no endpoint":                                        {plain, "10.77.0.5", nil, false, true},
		"pods that start":                                    {plain, "10.77.0.5", pods(starting), false, true},
		"headless, a host of no declared range":              {plain, "None", pods(external), true, false},
		"headless, such a host and a pod":                    {plain, "None", pods(external, pod("10.7.0.2", "web-0", "u0")), false, false},
		"headless, such a host and a node without index yet": {plain, "None", pods(external, onNode("192.0.2.3", "web-1", "n3")), false, false},
		"headless, no endpoint":                              {plain, "None", nil, false, true},
		"headless, pods without global IPs yet":              {globalnet, "None", pods(pod("10.7.0.2", "web-0", "u0")), false, false},
		"headless, IPv6 endpoints":                           {plain, "None", six, true, false},
		"a pod on a node without data path":                  {globalnet, "10.77.0.5", pods(onNode("10.7.0.2", "web-0", "fargate")), true, false},
		"such a pod, and one that starts":                    {globalnet, "10.77.0.5", pods(onNode("10.7.0.3", "web-1", "fargate"), starting), false, false},
		"headless, a pod on a node without data path":        {plain, "None", pods(onNode("10.7.0.2", "web-0", "fargate")), true, false},
		"headless, the same under globalnet":                 {globalnet, "None", pods(onNode("10.7.0.2", "web-0", "fargate")), true, false},
	} {
		got := tt.cluster.desired(state{export: exported(), service: service(tt.ip), slices: tt.slices, ingress: serviceIP, elsewhere: others, nodes: nodes})
		if got.unreachable != tt.want || (got.waiting == "") != tt.complete {
			t.Errorf("%s: unreachable %t, waits for %q", name, got.unreachable, got.waiting)
		}
	}
	dual := service("None")
	dual.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	if got := plain.desired(state{export: exported(), service: dual, slices: six}); got.unreachable || got.waiting == "" {
		t.Errorf("before the IPv4 slice of a Service of both families: unreachable %t, waits for %q", got.unreachable, got.waiting)
	}
}

func to(text string) *mcs.ServiceExport {
	e := exported()
	e.Annotations = map[string]string{"pelago.io/export-to": text}
	return e
}

func TestExportTo(t *testing.T) {
	members := map[string]map[string]string{"c1": {"env": "prod"}, "c2": {"env": "prod"}, "c3": {"env": "test"}}
	many := map[string]map[string]string{}
	for i := range 1000 {
		many[fmt.Sprintf("m%03d", i)] = map[string]string{"env": "prod"}
	}
	for text, tt := range map[string]struct {
		members map[string]map[string]string
		want    string // of the contribution
		message string // of condition Valid
		invalid string
	}{
		"c3":       {members, "c2 c3", "the Service can be exported, to c3", ""},
		"c1,c9":    {members, "c1 c2 c9", "to c1, c9; not in the clusterset: c9", ""},
		"env=prod": {members, "c1 c2", "to c1", ""},
		"env=none": {members, "c2", "selects no other cluster", ""},
		"c1":       {nil, "c1 c2", "the Service can be exported, to c1", ""},
		"env==prod": {many, strings.Join(append([]string{"c2"}, slices.Sorted(maps.Keys(many))...), " "),
			"m000, m001, m002, m003, m004, m005, m006, m007, m008, m009 and 990 more", ""},
		"":      {members, "", "annotation pelago.io/export-to: the name of a cluster is empty", "InvalidExportTo"},
		"c1;c2": {members, "", `annotation pelago.io/export-to: "c1;c2" is no cluster id`, "InvalidExportTo"},
	} {
		got := plain.desired(state{export: to(text), service: service("10.77.0.5"), members: tt.members})
		var list []string
		if got.contribution != nil {
			list = got.contribution.Spec.ExportTo
		}
		if strings.Join(list, " ") != tt.want || !strings.HasSuffix(got.valid.message, tt.message) && !strings.Contains(got.valid.message, tt.message) {
			t.Errorf("%q: exported to %.60v, %q", text, list, got.valid.message)
		}
		if got.valid.ok != (tt.invalid == "") || tt.invalid != "" && string(got.valid.reason) != tt.invalid {
			t.Errorf("%q: Valid is %t, %s", text, got.valid.ok, got.valid.reason)
		}
	}
	selected := plain.desired(state{export: to("env=prod"), service: service("10.77.0.5")})
	if got := selected.valid.message; got != "the Service can be exported" {
		t.Errorf("before the labels of the clusters are known: %q", got)
	}
	if got := plain.desired(state{export: exported(), service: service("10.77.0.5")}).contribution.Spec.ExportTo; got != nil {
		t.Errorf("without the annotation it is exported to %v", got)
	}
}

// The annotations that divide connections travel with the export; one without effect is named by
// condition Valid, and does not end the export.
func TestExportedBalancing(t *testing.T) {
	e := exported()
	e.Annotations = map[string]string{"pelago.io/min-local-backends": "4", "pelago.io/prefer": "nearest", "other": "1"}
	e.Spec.ExportedAnnotations = map[string]string{"note": "1"}
	got := plain.desired(state{export: e, service: service("10.77.0.5")})
	want := map[string]string{"note": "1", "pelago.io/min-local-backends": "4", "pelago.io/prefer": "nearest"}
	if diff := cmp.Diff(want, got.contribution.Spec.ExportedAnnotations); diff != "" || string(got.valid.reason) != "Valid" {
		t.Errorf("%s: -want +got:\n%s", got.valid.reason, diff)
	}
	e.Annotations["pelago.io/min-local-backends"] = "-1"
	got = plain.desired(state{export: e, service: service("10.77.0.5")})
	delete(want, "pelago.io/min-local-backends")
	if diff := cmp.Diff(want, got.contribution.Spec.ExportedAnnotations); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	const message = `the Service can be exported; annotation pelago.io/min-local-backends is "-1", not a number from 1 to 65536: it has no effect`
	if got.valid != (validity{true, "IgnoredAnnotation", message}) {
		t.Errorf("condition Valid: %+v", got.valid)
	}
}

// Contributions that no cluster imports together do not conflict.
func TestMeeting(t *testing.T) {
	with := func(cluster string, to ...string) v1alpha1.ServiceContribution {
		x := contribution(cluster, "120.2.0.9", 0)
		x.Spec.ExportTo = to
		return x
	}
	for name, tt := range map[string]struct {
		all  []v1alpha1.ServiceContribution
		want string
	}{
		"to all":                 {[]v1alpha1.ServiceContribution{with("g1"), with("g2")}, "g1 g2"},
		"the other to one":       {[]v1alpha1.ServiceContribution{with("g1"), with("g2", "g2", "g3")}, "g1 g2"},
		"both to one":            {[]v1alpha1.ServiceContribution{with("g1", "g1", "g3"), with("g2", "g2", "g3")}, "g1 g2"},
		"each to the other":      {[]v1alpha1.ServiceContribution{with("g1", "g1", "g2"), with("g2", "g1", "g2")}, "g1 g2"},
		"to the other alone":     {[]v1alpha1.ServiceContribution{with("g1", "g1", "g2"), with("g2", "g2")}, "g1 g2"},
		"nowhere":                {[]v1alpha1.ServiceContribution{with("g1", "g1", "g3"), with("g2", "g2", "g4")}, "g1"},
		"not exported from here": {[]v1alpha1.ServiceContribution{with("g2")}, ""},
	} {
		var got []string
		for _, x := range meeting(tt.all, "g1") {
			got = append(got, x.Spec.Cluster)
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %v, want %s", name, got, tt.want)
		}
	}
}

// The cache shows the own contribution as it was before the write: headless, which is a conflict.
func TestConflictsAfterTheOwnWrite(t *testing.T) {
	joined := map[string]time.Time{"g1": start, "g2": start}
	before, other := contribution("g1", "", 1), contribution("g2", "120.2.0.9", 0)
	before.Spec.Type, before.CreationTimestamp = v1alpha1.ContributionHeadless, metav1.NewTime(start.Add(time.Hour))
	cached := []v1alpha1.ServiceContribution{before, other}
	if got := conflictsOf(cached, joined, "g1"); len(got) != 1 {
		t.Fatalf("before: %v, want the conflict of types", got)
	}
	published := contribution("g1", "120.1.0.9", 1)
	if got := conflictsOf(withOwn(cached, "g1", &published), joined, "g1"); len(got) != 0 {
		t.Errorf("published: %v, want none", got)
	}
	if got := withOwn(cached, "g1", &published); !got[1].CreationTimestamp.Equal(&before.CreationTimestamp) || !published.CreationTimestamp.IsZero() {
		t.Errorf("created at %s, want as in the cache; %s in what was published", got[1].CreationTimestamp, published.CreationTimestamp)
	}
	if got := conflictsOf(withOwn(cached, "g1", nil), joined, "g1"); len(got) != 0 {
		t.Errorf("withdrawn: %v, want none", got)
	}
	if got := withOwn([]v1alpha1.ServiceContribution{other}, "g1", &before); len(conflictsOf(got, joined, "g1")) != 1 {
		t.Errorf("published for the first time: %v, want a conflict before the cache shows it", got)
	}
}

func TestContribution(t *testing.T) {
	e := exported()
	e.Labels = map[string]string{"private": "label"}
	e.Spec.ExportedLabels = map[string]string{"tier": "1"}
	got := plain.desired(state{export: e, service: service("10.77.0.5")}).contribution
	want := &v1alpha1.ServiceContribution{
		ObjectMeta: metav1.ObjectMeta{Namespace: "broker", Name: "c2.sample.web", Labels: map[string]string{
			"submariner-io/clusterID": "c2", "multicluster.kubernetes.io/service-name": "web", "lighthouse.submariner.io/sourceNamespace": "sample",
		}},
		Spec: v1alpha1.ServiceContributionSpec{
			Cluster: "c2", Namespace: "sample", Service: "web", Type: "ClusterSetIP", IPs: []string{"10.77.0.5"},
			Ports:           []v1alpha1.ContributionPort{{Name: "http", Port: 80, Protocol: "TCP", AppProtocol: ptr.To("http")}},
			SessionAffinity: "None", ExportedAt: created, ExportedLabels: map[string]string{"tier": "1"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestHubSlice(t *testing.T) {
	got := plain.desired(state{export: exported(), service: service("10.77.0.5")}).slices[0]
	want := map[string]string{
		"submariner-io/clusterID": "c2", "multicluster.kubernetes.io/service-name": "web", "multicluster.kubernetes.io/source-cluster": "c2",
		"lighthouse.submariner.io/sourceNamespace": "sample", "endpointslice.kubernetes.io/managed-by": "pelago.io",
		"service.kubernetes.io/service-proxy-name": "pelago",
	}
	if diff := cmp.Diff(want, got.Labels); diff != "" {
		t.Errorf("labels -want +got\n%s", diff)
	}
	if !strings.HasPrefix(got.Name, "c2.web.") {
		t.Errorf("name %s", got.Name)
	}
}
