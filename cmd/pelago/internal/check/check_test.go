package check

import (
	"context"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlfake "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/manifests"
)

var update = flag.Bool("update", false, "write testdata and docs/checks.md")

const system = manifests.SystemNamespace

// world is a healthy clusterset of two members, g1 and g2, and a hub. Tests change objects of it.
type world struct {
	objects map[string][]client.Object // by context
	now     time.Time
	// idle is an admission policy that refuses nothing; answer is that to its request, nil: accepted.
	idle   string
	answer error
}

func at(ns, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: ns, Name: name, UID: "u", CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Hour))}
}

func isTrue(kind, reason string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reason}
}

func isFalse(kind, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message}
}

func token(expiry time.Time) []byte {
	claims := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"iat":1,"exp":%d}`, expiry.Unix()))
	return []byte("e30." + claims + ".c2ln")
}

func memberConfig(n int) config.Config {
	p := netip.MustParsePrefix
	return config.Config{ClusterID: fmt.Sprintf("g%d", n), ClusterIndex: uint16(n), Mode: config.ModeSubmariner, CableDriver: config.CableWireGuard, CablePort: 4500,
		PodCIDRs: []netip.Prefix{p("10.7.0.0/16")}, ServiceCIDRs: []netip.Prefix{p("10.77.0.0/16")}, FabricCIDR: p("241.0.0.0/8"),
		GlobalCIDRs: []netip.Prefix{p(fmt.Sprintf("120.%d.0.0/24", n))}, GlobalRange: p("120.0.0.0/8"),
		ClusterSetIPCIDRs: []netip.Prefix{p(fmt.Sprintf("243.0.%d.0/28", n))}, ClusterSetIPRange: p("243.0.0.0/8"),
		HubID: "hub", HubServer: "https://hub:6443", BrokerNamespace: config.DefaultBrokerNamespace}
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{objects: map[string][]client.Object{}, now: time.Now()}
	stamp := map[string]string{submarinerv1.AnnotationUpdated: strconv.FormatInt(w.now.Unix(), 10)}
	for n := 1; n <= 2; n++ {
		id, other := fmt.Sprintf("g%d", n), fmt.Sprintf("g%d", 3-n)
		add := func(objs ...client.Object) { w.objects[id] = append(w.objects[id], objs...) }
		add(&corev1.ConfigMap{ObjectMeta: at(system, config.ConfigMapName), Data: memberConfig(n).Data()},
			&corev1.Secret{ObjectMeta: at(system, config.BrokerSecretName), Data: map[string][]byte{config.KeyBrokerToken: token(w.now.Add(20 * time.Hour))}},
			&corev1.Service{ObjectMeta: at(system, "pelago-dns"), Spec: corev1.ServiceSpec{ClusterIP: "10.77.0.53"}})
		template := func(name string) corev1.PodTemplateSpec {
			return corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: name, Image: "registry/pelago:v1"}}}}
		}
		pod := func(app, node string) *corev1.Pod {
			p := &corev1.Pod{ObjectMeta: at(system, app+"-"+node), Spec: template(app).Spec, Status: corev1.PodStatus{Phase: corev1.PodRunning,
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}
			p.Labels, p.Spec.NodeName = map[string]string{"app": app}, node
			return p
		}
		add(&appsv1.DaemonSet{ObjectMeta: at(system, manifests.NodeDaemonSet), Spec: appsv1.DaemonSetSpec{Template: template(manifests.NodeDaemonSet)},
			Status: appsv1.DaemonSetStatus{NumberReady: 3, UpdatedNumberScheduled: 3, DesiredNumberScheduled: 3}})
		for _, name := range []string{manifests.AgentDeployment, manifests.DNSDeployment} {
			add(&appsv1.Deployment{ObjectMeta: at(system, name), Spec: appsv1.DeploymentSpec{Template: template(name)},
				Status: appsv1.DeploymentStatus{ReadyReplicas: 1, UpdatedReplicas: 1}}, pod(name, id+"-n3"))
		}
		add(&coordinationv1.Lease{ObjectMeta: at(system, manifests.AgentDeployment), Spec: coordinationv1.LeaseSpec{
			HolderIdentity: ptr.To("one"), RenewTime: ptr.To(metav1.NewMicroTime(w.now))}})
		for i := 1; i <= 3; i++ {
			node := fmt.Sprintf("%s-n%d", id, i)
			o := &corev1.Node{ObjectMeta: at("", node), Status: corev1.NodeStatus{
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
				NodeInfo:   corev1.NodeSystemInfo{KernelVersion: "6.12.1", OperatingSystem: "linux", Architecture: "amd64"},
				Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("192.0.2.%d", 10*n+i)}}}}
			index := &pelagov1alpha1.NodeIndex{ObjectMeta: at("", node), Status: pelagov1alpha1.NodeIndexStatus{Ready: true, Conditions: []metav1.Condition{
				isTrue(pelagov1alpha1.NodeHost, "Clear"), isTrue(pelagov1alpha1.NodeFirewall, "Open"), isTrue(pelagov1alpha1.NodeSelfTest, "Passed"),
				isTrue(pelagov1alpha1.NodeReconciled, "Reconciled")}}}
			agent := &submarinerv1.RouteAgent{ObjectMeta: at(system, node)}
			agent.Annotations = map[string]string{submarinerv1.AnnotationUpdated: stamp[submarinerv1.AnnotationUpdated], submarinerv1.AnnotationUnreachableClusters: ""}
			lease := &coordinationv1.Lease{ObjectMeta: at(corev1.NamespaceNodeLease, node), Spec: coordinationv1.LeaseSpec{RenewTime: ptr.To(metav1.NewMicroTime(w.now))}}
			if i < 3 {
				o.Labels = map[string]string{submarinerv1.LabelGateway: "true"}
				index.Status.Gateway, index.Status.Serving = true, true
				g := &submarinerv1.Gateway{ObjectMeta: at(system, node)}
				g.Annotations = map[string]string{submarinerv1.AnnotationUpdated: stamp[submarinerv1.AnnotationUpdated]}
				for j := 1; j <= 2; j++ {
					g.Status.Connections = append(g.Status.Connections, submarinerv1.Connection{Status: submarinerv1.Connected, UsingIP: "192.0.2.1",
						Endpoint: submarinerv1.EndpointSpec{ClusterID: other, Hostname: fmt.Sprintf("%s-n%d", other, j)}, LatencyRTT: &submarinerv1.LatencyRTTSpec{Average: "3ms"}})
				}
				add(g)
			}
			add(o, index, agent, lease, pod(manifests.NodeDaemonSet, node))
		}
		add(&pelagov1alpha1.Peer{ObjectMeta: at("", other), Spec: pelagov1alpha1.PeerSpec{Gateways: []pelagov1alpha1.PeerGateway{{Name: other + "-n1"}}},
			Status: pelagov1alpha1.PeerStatus{Conditions: []metav1.Condition{isTrue(pelagov1alpha1.PeerAccepted, "Accepted")}}},
			&submarinerv1.Cluster{ObjectMeta: at(system, id), Status: submarinerv1.ClusterStatus{Conditions: []metav1.Condition{isTrue(submarinerv1.ClusterRangesRegistered, "Registered")}}},
			&submarinerv1.ClusterGlobalEgressIP{ObjectMeta: at("", "cluster-egress.submariner.io"), Status: submarinerv1.GlobalEgressIPStatus{
				AllocatedIPs: []string{"120.1.0.1"}, Conditions: []metav1.Condition{isTrue(submarinerv1.ConditionAllocated, "Success")}}},
			&mcs.ServiceExport{ObjectMeta: at("shop", "web"), Status: mcs.ServiceExportStatus{Conditions: []metav1.Condition{
				isTrue("Valid", "Valid"), isTrue("Ready", "Exported"), isFalse("Conflict", "NoConflicts", "")}}},
			&mcs.ServiceImport{ObjectMeta: at("shop", "web"), Status: mcs.ServiceImportStatus{Conditions: []metav1.Condition{isTrue("Ready", "Ready")}}})
		slice := &discoveryv1.EndpointSlice{ObjectMeta: at("shop", "web-1"), Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.7.0.9"}}}}
		slice.Labels = map[string]string{discoveryv1.LabelServiceName: "web"}
		add(slice)
		add(crds(t, memberCRDs)...)
	}
	hub := []client.Object{
		&corev1.Namespace{ObjectMeta: at("", manifests.BrokerNamespace)},
		&coordinationv1.Lease{ObjectMeta: at(system, manifests.HubName), Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("h"), RenewTime: ptr.To(metav1.NewMicroTime(w.now))}},
	}
	for _, id := range []string{"g1", "g2"} {
		hub = append(hub, &submarinerv1.Cluster{ObjectMeta: at(manifests.BrokerNamespace, id)},
			&clusterv1alpha1.Cluster{ObjectMeta: at("", id), Status: clusterv1alpha1.ClusterStatus{Conditions: []metav1.Condition{
				isTrue(clusterv1alpha1.ConditionReady, "ClusterReady"), isTrue(clusterv1alpha1.ConditionDataPlaneReachable, "PeersReach")}}},
			&workv1alpha1.Work{ObjectMeta: at("karmada-es-"+id, "web"), Status: workv1alpha1.WorkStatus{Conditions: []metav1.Condition{isTrue("Applied", "AppliedSuccessful")}}})
	}
	policy := &policyv1alpha1.PropagationPolicy{ObjectMeta: at("shop", "web"), Status: policyv1alpha1.PolicyStatus{Conditions: []metav1.Condition{isTrue("Accepted", "Accepted")}}}
	policy.Labels = map[string]string{policyv1alpha1.LabelPropagationPolicyID: "id"}
	bound := &workv1alpha2.ResourceBinding{ObjectMeta: at("shop", "web-deployment"), Status: workv1alpha2.ResourceBindingStatus{Conditions: []metav1.Condition{
		isTrue("Scheduled", "Success"), isTrue("FullyApplied", "FullyAppliedSuccess")}}}
	bound.Labels = policy.Labels
	hub = append(hub, policy, bound, &policyv1alpha1.OverridePolicy{ObjectMeta: at("shop", "image")},
		&policyv1alpha1.FederatedResourceQuota{ObjectMeta: at("shop", "all"), Spec: policyv1alpha1.FederatedResourceQuotaSpec{Overall: corev1.ResourceList{"cpu": resource.MustParse("10")}},
			Status: policyv1alpha1.FederatedResourceQuotaStatus{OverallUsed: corev1.ResourceList{"cpu": resource.MustParse("1")}}})
	hub = append(hub, crds(t, hubCRDs)...)
	hub = append(hub, crds(t, propagationCRDs)...)
	hub = append(hub, admissionPolicies(t)...)
	w.objects["hub"] = hub
	w.forwardDNS(t)
	return w
}

func crds(t *testing.T, of func() ([]*unstructured.Unstructured, error)) (out []client.Object) {
	t.Helper()
	all, err := of()
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range all {
		out = append(out, &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: u.GetName()}, Status: apiextensionsv1.CustomResourceDefinitionStatus{
			Conditions: []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue}}}})
	}
	return out
}

func admissionPolicies(t *testing.T) (out []client.Object) {
	t.Helper()
	atBroker, errBroker := hubObjects()
	propagation, errPropagation := propagationObjects()
	if errBroker != nil || errPropagation != nil {
		t.Fatal(errBroker, errPropagation)
	}
	for _, o := range slices.Concat(atBroker, propagation) {
		if o.GetKind() == "ValidatingAdmissionPolicy" {
			binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: o.GetName()}}
			binding.Spec.PolicyName = o.GetName()
			out = append(out, &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: o.GetName()}}, binding)
		}
	}
	return out
}

// forwardDNS makes the CoreDNS of the members forward.
func (w *world) forwardDNS(t *testing.T) {
	t.Helper()
	for n := 1; n <= 2; n++ {
		id := fmt.Sprintf("g%d", n)
		_, missing, err := view.ReadDNS(t.Context(), w.client(t, id), memberConfig(n))
		if err != nil {
			t.Fatal(err)
		}
		_, lines, _ := strings.Cut(missing, "\n\n")
		w.objects[id] = append(w.objects[id], &corev1.ConfigMap{ObjectMeta: at("kube-system", "coredns"), Data: map[string]string{"Corefile": ".:53 {\n    forward . /etc/resolv.conf\n}\n" + lines}})
	}
}

// scheme has the kinds of Pelago and of the MCS API.
var scheme = sync.OnceValues(func() (*runtime.Scheme, error) {
	s, err := manifests.Scheme()
	return s, errors.Join(err, mcs.Install(s))
})

func (w *world) client(t *testing.T, context string) client.Client {
	t.Helper()
	scheme, err := scheme()
	if err != nil {
		t.Fatal(err)
	}
	mapper := meta.NewDefaultRESTMapper(scheme.PrioritizedVersionsAllGroups())
	for gvk := range scheme.AllKnownTypes() {
		if context != "hub" && gvk.Group == clusterv1alpha1.GroupVersion.Group {
			continue // else it is a hub
		}
		mapper.Add(gvk, meta.RESTScopeNamespace)
	}
	return ctrlfake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(mapper).WithObjects(w.objects[context]...).WithInterceptorFuncs(w.refuses()).Build()
}

// refuses answers dry runs as the admission policies do, but those that are idle.
func (w *world) refuses() interceptor.Funcs {
	text := ""
	for _, o := range w.objects["hub"] {
		if _, ok := o.(*admissionv1.ValidatingAdmissionPolicy); ok && o.GetName() != w.idle {
			text += "ValidatingAdmissionPolicy '" + o.GetName() + "' denied request; "
		}
	}
	refusal := apierrors.NewForbidden(schema.GroupResource{Resource: "objects"}, "canary", errors.New(text))
	return interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if slices.Contains(opts, client.CreateOption(client.DryRunAll)) {
				if w.idle == "pelago-deletion-protected" && o.GetName() == "pelago-hub-canary" {
					return w.answer
				}
				return refusal
			}
			return c.Create(ctx, o, opts...)
		},
		SubResourceCreate: func(context.Context, client.Client, string, client.Object, client.Object, ...client.SubResourceCreateOption) error {
			return refusal
		},
	}
}

// target opens a context of the world.
func (w *world) target(t *testing.T, context string) Target {
	t.Helper()
	c := w.client(t, context)
	var typed []runtime.Object
	for _, o := range w.objects[context] {
		switch o.(type) {
		case *appsv1.DaemonSet, *appsv1.Deployment, *corev1.ConfigMap, *corev1.Pod, *corev1.Node:
			typed = append(typed, o)
		}
	}
	return Target{Context: context, Open: func() (view.Member, error) { return view.Member{Client: c, Typed: fake.NewClientset(typed...)}, nil }}
}

func (w *world) run(t *testing.T) (*Set, Result) {
	t.Helper()
	s := Read(t.Context(), []Target{w.target(t, "g1"), w.target(t, "g2"), w.target(t, "hub")}, time.Minute, false, Selection{})
	return s, Run(s, Selection{})
}

// get returns the object of a name in a context.
func get[T client.Object](w *world, context, name string) T {
	for _, o := range w.objects[context] {
		if is, ok := o.(T); ok && o.GetName() == name {
			return is
		}
	}
	panic(fmt.Sprintf("%s has no %s", context, name))
}

// without removes an object.
func without[T client.Object](w *world, context, name string) {
	w.objects[context] = slices.DeleteFunc(w.objects[context], func(o client.Object) bool {
		_, is := o.(T)
		return is && o.GetName() == name
	})
}

func TestSilentOnHealthySet(t *testing.T) {
	_, r := newWorld(t).run(t)
	if r.Verdict != OK {
		for _, f := range r.Findings() {
			t.Errorf("%+v", f)
		}
	}
	if len(r.Outcomes) < 90 {
		t.Errorf("only %d checks were made", len(r.Outcomes))
	}
}

// One fault each: what check finds has the code, the verdict, the object's name and the remedy.
func TestFaults(t *testing.T) {
	set := func(c *[]metav1.Condition, is metav1.Condition) { meta.SetStatusCondition(c, is) }
	node := func(w *world) *pelagov1alpha1.NodeIndex { return get[*pelagov1alpha1.NodeIndex](w, "g1", "g1-n3") }
	binding := func(w *world) *workv1alpha2.ResourceBinding {
		return get[*workv1alpha2.ResourceBinding](w, "hub", "web-deployment")
	}
	for name, tt := range map[string]struct {
		inject func(*world)
		want   string // code and verdict of the first finding
		names  string // in object or reason
		remedy string
	}{
		"UDP 4800 closed on one node": {func(w *world) {
			get[*submarinerv1.RouteAgent](w, "g1", "g1-n3").Annotations = map[string]string{submarinerv1.AnnotationSilentGateways: "g1-n1,g1-n2"}
		}, "PLG-N014 error", "g1-n3", "UDP 4800"},
		"a REJECT chain": {func(w *world) {
			set(&node(w).Status.Conditions, isFalse(pelagov1alpha1.NodeFirewall, "Blocks", "chain INPUT of table ip filter rejects UDP 4800"))
		}, "PLG-N022 error", "chain INPUT", "accept UDP 4800"},
		"a foreign filter first": {func(w *world) {
			set(&node(w).Status.Conditions, isFalse(pelagov1alpha1.NodeHost, "Obstructed", "program cil_from_container on eth1 comes before edge"))
		}, "PLG-N021 error", "cil_from_container", "remove what the message names"},
		"rule 10": {func(w *world) {
			set(&node(w).Status.Conditions, isFalse(pelagov1alpha1.NodeHost, "Obstructed", "ip rule 10 comes before Pelago's"))
		}, "PLG-N021 error", "rule 10", "lower priority"},
		"self-test diverted": {func(w *world) {
			set(&node(w).Status.Conditions, isFalse(pelagov1alpha1.NodeSelfTest, "Diverted", "packets of pod default/a leave by eth0"))
		}, "PLG-N020 error", "default/a", "docs/cni.md"},
		"self-test lost": {func(w *world) {
			set(&node(w).Status.Conditions, metav1.Condition{Type: pelagov1alpha1.NodeSelfTest, Status: metav1.ConditionUnknown, Reason: "Lost", Message: "lost"})
		}, "PLG-N020 warning", "g1-n3", "NetworkPolicies"},
		"wrong range": {func(w *world) {
			set(&node(w).Status.Conditions, isFalse(pelagov1alpha1.NodeRanges, "Outgrown", "pod default/a at 10.9.0.1"))
		}, "PLG-N031 error", "10.9.0.1", "--clustercidr"},
		"range outgrown": {func(w *world) {
			set(&get[*submarinerv1.Cluster](w, "g1", "g1").Status.Conditions, isFalse(submarinerv1.ClusterRangesRegistered, "Outgrown", "IPPool extra"))
		}, "PLG-N031 warning", "IPPool extra", "--clustercidr"},
		"CoreDNS does not forward": {func(w *world) {
			get[*corev1.ConfigMap](w, "g1", "coredns").Data["Corefile"] = ".:53 {\n    forward . /etc/resolv.conf\n}\n"
		}, "PLG-D001 error", "kube-system/coredns", "pelago show dns"},
		"expired credential": {func(w *world) {
			get[*corev1.Secret](w, "g1", config.BrokerSecretName).Data[config.KeyBrokerToken] = token(w.now.Add(-time.Minute))
		}, "PLG-N040 error", "expired", "broker-info.subm"},
		"credential near its end": {func(w *world) {
			get[*corev1.Secret](w, "g1", config.BrokerSecretName).Data[config.KeyBrokerToken] = token(w.now.Add(time.Hour))
		}, "PLG-N040 warning", "was not renewed", "broker-info.subm"},
		"clock of a node": {func(w *world) {
			get[*coordinationv1.Lease](w, "g1", "g1-n2").Spec.RenewTime = ptr.To(metav1.NewMicroTime(w.now.Add(10 * time.Minute)))
		}, "PLG-N042 error", "g1-n2", "NTP"},
		"one gateway": {func(w *world) {
			get[*corev1.Node](w, "g1", "g1-n2").Labels = nil
			without[*submarinerv1.Gateway](w, "g1", "g1-n2")
		}, "PLG-N011 warning", "g1-n1", "--gateways 2"},
		"no gateway": {func(w *world) {
			for _, n := range []string{"g1-n1", "g1-n2"} {
				get[*corev1.Node](w, "g1", n).Labels = nil
				without[*submarinerv1.Gateway](w, "g1", n)
			}
		}, "PLG-N010 error", "submariner.io/gateway", "--gateways 2"},
		"a dead gateway": {func(w *world) {
			get[*submarinerv1.Gateway](w, "g1", "g1-n2").Annotations[submarinerv1.AnnotationUpdated] = strconv.FormatInt(w.now.Add(-time.Hour).Unix(), 10)
		}, "PLG-N012 error", "g1-n2", "UDP 4800"},
		"no connection to a cluster": {func(w *world) {
			for _, n := range []string{"g1-n1", "g1-n2"} {
				g := get[*submarinerv1.Gateway](w, "g1", n)
				for i := range g.Status.Connections {
					g.Status.Connections[i].Status, g.Status.Connections[i].StatusMessage = submarinerv1.ConnectionError, "probes are not answered"
				}
			}
		}, "PLG-N013 error", "probes are not answered", "UDP 4500"},
		"one connection of several": {func(w *world) {
			get[*submarinerv1.Gateway](w, "g1", "g1-n1").Status.Connections[0].Status = submarinerv1.Connecting
		}, "PLG-N013 warning", "g2-n1", "UDP 4500"},
		"loss": {func(w *world) {
			get[*submarinerv1.Gateway](w, "g1", "g1-n1").Status.Connections[0].LossPercent = 7
		}, "PLG-N015 warning", "7 %", "network path"},
		"MTU hole": {func(w *world) {
			get[*pelagov1alpha1.NodeIndex](w, "g1", "g1-n1").Status.PathMTU = map[string]int32{"g2": 1300}
		}, "PLG-N025 warning", "1300 bytes to cluster g2", "MTU"},
		"NAT look-up fails": {func(w *world) {
			get[*pelagov1alpha1.NodeIndex](w, "g1", "g1-n1").Status.PublicIP = &pelagov1alpha1.PublicIP{Source: "api:ip.example", Message: "timeout"}
		}, "PLG-N017 error", "api:ip.example", "public-ip"},
		"key rotation": {func(w *world) {
			get[*pelagov1alpha1.NodeIndex](w, "g1", "g1-n1").Status.KeyRotation = &pelagov1alpha1.KeyRotation{Request: "now", TunnelsLeft: 2}
		}, "PLG-N018 warning", "2 tunnels left", "handshake"},
		"stale daemon": {func(w *world) {
			get[*submarinerv1.RouteAgent](w, "g1", "g1-n3").Annotations[submarinerv1.AnnotationUpdated] = strconv.FormatInt(w.now.Add(-time.Hour).Unix(), 10)
		}, "PLG-N005 error", "g1-n3", "delete the pod"},
		"no daemon": {func(w *world) { without[*corev1.Pod](w, "g1", "pelago-node-g1-n3") }, "PLG-N005 error", "g1-n3", "tolerations"},
		"component waits": {func(w *world) {
			get[*appsv1.Deployment](w, "g1", "pelago-dns").Status.ReadyReplicas = 0
			get[*corev1.Pod](w, "g1", "pelago-dns-g1-n3").Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}}}
		}, "PLG-N001 error", "ImagePullBackOff", "describe pods"},
		"component removed": {func(w *world) { without[*appsv1.DaemonSet](w, "g1", "pelago-node") }, "PLG-N001 error", "pelago-node", "--keep-registration"},
		"version skew": {func(w *world) {
			for _, o := range w.objects["g1"] {
				if p, ok := o.(*corev1.Pod); ok && p.Name == "pelago-node-g1-n1" {
					p.Spec.Containers[0].Image = "registry/pelago:v0"
				}
			}
		}, "PLG-N002 warning", "registry/pelago:v0", "--image"},
		"gateway setting": {func(w *world) {
			set(&node(w).Status.Conditions, isFalse(pelagov1alpha1.NodeSettings, "InvalidSetting", "gateway.submariner.io/udp-port: 70000"))
		}, "PLG-N016 warning", "70000", "annotations gateway.submariner.io"},
		"XDP not attached": {func(w *world) {
			set(&node(w).Status.Conditions, isFalse(pelagov1alpha1.NodeXDP, "NotSupported", "eth0 has no native XDP"))
		}, "PLG-N023 warning", "eth0", "--xdp off"},
		"missing definition": {func(w *world) {
			without[*apiextensionsv1.CustomResourceDefinition](w, "g1", "peers.pelago.io")
		}, "PLG-N004 error", "peers.pelago.io", "--keep-registration"},
		"not reconciled": {func(w *world) {
			set(&node(w).Status.Conditions, isFalse(pelagov1alpha1.NodeReconciled, "ReconcileFailed", "attach edge: busy"))
		}, "PLG-N006 error", "busy", "log of pelago-node"},
		"pods left out": {func(w *world) {
			a := get[*submarinerv1.RouteAgent](w, "g1", "g1-n3")
			a.Annotations[submarinerv1.AnnotationPodsLeftOut], a.Status.StatusFailure = "2", "pod default/a is on netkit"
		}, "PLG-N024 warning", "netkit", "veth"},
		"overlapping peer": {func(w *world) {
			set(&get[*pelagov1alpha1.Peer](w, "g1", "g2").Status.Conditions, isFalse(pelagov1alpha1.PeerAccepted, pelagov1alpha1.ReasonOverlappingCIDR, "10.7.0.0/16 is our own"))
		}, "PLG-N030 error", "10.7.0.0/16", "globalnet"},
		"other cable": {func(w *world) {
			set(&get[*pelagov1alpha1.Peer](w, "g1", "g2").Status.Conditions, isFalse(pelagov1alpha1.PeerAccepted, pelagov1alpha1.ReasonWireMismatch, "vxlan"))
		}, "PLG-N030 error", "vxlan", "--cable-driver"},
		"overlapping GlobalCIDR": {func(w *world) {
			c := memberConfig(2)
			c.GlobalCIDRs = memberConfig(1).GlobalCIDRs
			get[*corev1.ConfigMap](w, "g2", config.ConfigMapName).Data = c.Data()
		}, "PLG-N032 error", "120.1.0.0/24", "other ranges"},
		"GlobalCIDR near its end": {func(w *world) {
			for i := range 210 {
				w.objects["g1"] = append(w.objects["g1"], &pelagov1alpha1.GlobalAddress{ObjectMeta: at("", fmt.Sprint("a", i)), Spec: pelagov1alpha1.GlobalAddressSpec{IP: fmt.Sprintf("120.1.0.%d", i)}})
			}
		}, "PLG-N033 warning", "210 of 256", "`pelago unjoin`, then `pelago join --globalnet-cluster-size`"},
		"no port blocks": {func(w *world) {
			set(&get[*submarinerv1.ClusterGlobalEgressIP](w, "g1", "cluster-egress.submariner.io").Status.Conditions, isTrue(submarinerv1.ConditionPortBlocksExhausted, "AllBlocksLeased"))
		}, "PLG-N034 error", "cluster-egress", "numberOfIPs"},
		"port blocks near their end": {func(w *world) {
			for i := range 210 {
				w.objects["g1"] = append(w.objects["g1"], &pelagov1alpha1.PortBlock{ObjectMeta: at("", fmt.Sprint("b", i))})
			}
		}, "PLG-N035 warning", "210 of 252", "numberOfIPs"},
		"peer missing":       {func(w *world) { without[*pelagov1alpha1.Peer](w, "g1", "g2") }, "PLG-N036 error", "g2", "log of pelago-agent"},
		"agent without lead": {func(w *world) { without[*coordinationv1.Lease](w, "g1", "pelago-agent") }, "PLG-N041 error", "pelago-agent", "log of pelago-agent"},
		"export without Service": {func(w *world) {
			e := get[*mcs.ServiceExport](w, "g1", "web")
			set(&e.Status.Conditions, isFalse("Valid", "NoService", "there is no Service"))
			set(&e.Status.Conditions, isFalse("Ready", "Pending", "not valid"))
		}, "PLG-D002 error", "shop/web", "create the Service"},
		"export not ready": {func(w *world) {
			set(&get[*mcs.ServiceExport](w, "g1", "web").Status.Conditions, isFalse("Ready", "Failed", "ExportFailed: the hub cannot be reached"))
		}, "PLG-D003 error", "the hub cannot be reached", "log of pelago-agent"},
		"export conflict": {func(w *world) {
			set(&get[*mcs.ServiceExport](w, "g1", "web").Status.Conditions, isTrue("Conflict", "PortConflict"))
		}, "PLG-D004 warning", "shop/web", "same ports"},
		"no ClusterSetIP": {func(w *world) {
			set(&get[*mcs.ServiceExport](w, "g1", "web").Status.Conditions, isFalse("ClusterSetIP", "RangeExhausted", "all are in use"))
		}, "PLG-D005 error", "all are in use", "larger range"},
		"export without pods": {func(w *world) { get[*discoveryv1.EndpointSlice](w, "g1", "web-1").Endpoints = nil }, "PLG-D006 warning", "shop/web", "selector"},
		"import not ready": {func(w *world) {
			set(&get[*mcs.ServiceImport](w, "g1", "web").Status.Conditions, isFalse("Ready", "Pending", "no ClusterSetIP"))
		}, "PLG-D007 warning", "shop/web", "follow"},
		"ClusterSetIPs near their end": {func(w *world) {
			for i := range 16 {
				w.objects["g1"] = append(w.objects["g1"], &pelagov1alpha1.GlobalAddress{ObjectMeta: at("", fmt.Sprint("v", i)), Spec: pelagov1alpha1.GlobalAddressSpec{IP: fmt.Sprintf("243.0.1.%d", i)}})
			}
		}, "PLG-D008 error", "all 16", "unexport"},
		"no global IP": {func(w *world) {
			w.objects["g1"] = append(w.objects["g1"], &submarinerv1.GlobalIngressIP{ObjectMeta: at("shop", "web"), Status: submarinerv1.GlobalIngressIPStatus{
				Conditions: []metav1.Condition{isFalse("Allocated", "IPPoolAllocationFailed", "no free address")}}})
		}, "PLG-D009 error", "no free address", "follow"},

		"hub without leader": {func(w *world) {
			get[*coordinationv1.Lease](w, "hub", "pelago-hub").Spec.RenewTime = ptr.To(metav1.NewMicroTime(w.now.Add(-time.Hour)))
		}, "PLG-H002 error", "pelago-hub", "log of pelago-hub"},
		"no admission policy": {func(w *world) {
			without[*admissionv1.ValidatingAdmissionPolicyBinding](w, "hub", "pelago-member-works")
		}, "PLG-H003 error", "pelago-member-works", "deploy-broker"},
		"hub definition": {func(w *world) {
			without[*apiextensionsv1.CustomResourceDefinition](w, "hub", "works.work.karmada.io")
		}, "PLG-H004 error", "works.work", "pelago init"},
		"unaccepted cluster": {func(w *world) {
			get[*clusterv1alpha1.Cluster](w, "hub", "g2").Spec.Taints = []clusterv1alpha1.Taint{{Key: clusterv1alpha1.TaintUnapproved, Effect: "NoSchedule"}}
		}, "PLG-H005 warning", "g2", "pelago clusters accept g2"},
		"unconnected cluster": {func(w *world) {
			get[*submarinerv1.Cluster](w, "hub", "g2").Annotations = map[string]string{pelagov1alpha1.AnnotationUnapproved: "true"}
		}, "PLG-H005 warning", "g2", "pelago clusters accept g2"},
		"peer that is not accepted": {func(w *world) {
			set(&get[*pelagov1alpha1.Peer](w, "g1", "g2").Status.Conditions, isFalse("Accepted", "Unapproved", "no administrator of the hub has accepted cluster g2"))
		}, "PLG-N030 warning", "g2", "pelago clusters accept"},
		"cluster gone": {func(w *world) {
			set(&get[*clusterv1alpha1.Cluster](w, "hub", "g2").Status.Conditions, metav1.Condition{Type: "Ready", Status: metav1.ConditionUnknown, Reason: "ClusterStatusUnknown"})
		}, "PLG-H006 error", "g2", "pelago-agent-execution"},
		"cluster unreachable by gateways": {func(w *world) {
			set(&get[*clusterv1alpha1.Cluster](w, "hub", "g2").Status.Conditions, isFalse("DataPlaneReachable", "NoPeerReaches", ""))
		}, "PLG-H007 error", "g2", "PLG-N010"},
		"an idle admission policy": {func(w *world) { w.idle = "pelago-deletion-protected" }, "PLG-H011 error", "pelago-deletion-protected", "typeChecking"},
		"an admission policy that cannot be tried": {func(w *world) {
			w.idle, w.answer = "pelago-deletion-protected", apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "", errors.New("no right to create"))
		}, "PLG-H011 unknown", "no right to create", "may create"},
		"removal of a cluster": {func(w *world) {
			set(&get[*clusterv1alpha1.Cluster](w, "hub", "g2").Status.Conditions, isFalse("Removed", "WorksLeft", "3 Works are left"))
		}, "PLG-H008 warning", "3 Works are left", "pelago unjoin --force"},
		"kinds not known": {func(w *world) {
			set(&get[*clusterv1alpha1.Cluster](w, "hub", "g2").Status.Conditions, isFalse("CompleteAPIEnablements", "PartialAPIEnablements", "metrics.k8s.io/v1beta1"))
		}, "PLG-H009 warning", "metrics.k8s.io", "kubectl get apiservices"},
		"hub moves": {func(w *world) {
			follows := &coordinationv1.Lease{ObjectMeta: at(manifests.BrokerNamespace, broker.AccountName("g1")), Spec: coordinationv1.LeaseSpec{
				HolderIdentity: ptr.To("https://next:6443")}}
			stays := &coordinationv1.Lease{ObjectMeta: at(manifests.BrokerNamespace, broker.AccountName("g2")), Spec: coordinationv1.LeaseSpec{
				HolderIdentity: ptr.To("https://hub:6443")}}
			stays.Annotations = map[string]string{pelagov1alpha1.AnnotationHubProblem: "https://next:6443 does not answer"}
			w.objects["hub"] = append(w.objects["hub"], follows, stays, &corev1.ConfigMap{
				ObjectMeta: at(manifests.BrokerNamespace, config.ClustersetConfigMap), Data: map[string]string{config.KeySetServer: "https://next:6443"}})
		}, "PLG-H010 warning", "https://next:6443 does not answer", "broker-info.subm"},
		"Work not applied": {func(w *world) {
			set(&get[*workv1alpha1.Work](w, "hub", "web").Status.Conditions, isFalse("Applied", "AppliedFailed", "forbidden: exceeded quota"))
		}, "PLG-H020 error", "exceeded quota", "pelago why"},
		"fields dropped": {func(w *world) {
			set(&get[*workv1alpha1.Work](w, "hub", "web").Status.Conditions, isTrue("FieldsDropped", "FieldsDropped"))
		}, "PLG-H021 warning", "karmada-es", "upgrade the definition"},
		"not scheduled": {func(w *world) {
			set(&binding(w).Status.Conditions, isFalse("Scheduled", "NoClusterFit", "no cluster fits"))
		}, "PLG-H022 error", "no cluster fits", "pelago why"},
		"quota exceeded":   {func(w *world) { set(&binding(w).Status.Conditions, isFalse("Scheduled", "QuotaExceeded", "cpu")) }, "PLG-H022 error", "web-deployment", "FederatedResourceQuota"},
		"pending decision": {func(w *world) { binding(w).Status.Conditions = nil }, "PLG-H022 warning", "web-deployment", "PLG-H002"},
		"not applied": {func(w *world) {
			set(&binding(w).Status.Conditions, isFalse("FullyApplied", "FullyAppliedFailed", "g2: waiting"))
		}, "PLG-H023 warning", "g2: waiting", "pelago why"},
		"failover held": {func(w *world) { set(&binding(w).Status.Conditions, isFalse("Failover", "Held", "too many clusters")) }, "PLG-H024 warning", "too many", "follow"},
		"quota near its end": {func(w *world) {
			get[*policyv1alpha1.FederatedResourceQuota](w, "hub", "all").Status.OverallUsed["cpu"] = resource.MustParse("9500m")
		}, "PLG-H025 warning", "9500m of 10", "spec.overall"},
		"policy invalid": {func(w *world) {
			set(&get[*policyv1alpha1.PropagationPolicy](w, "hub", "web").Status.Conditions, isFalse("Accepted", "Invalid", "spec.resourceSelectors[0]"))
		}, "PLG-H026 error", "resourceSelectors", "pelago analyze"},
		"rule skipped": {func(w *world) {
			set(&get[*policyv1alpha1.OverridePolicy](w, "hub", "image").Status.Conditions, metav1.Condition{Type: "RulesSkipped", Status: metav1.ConditionTrue, Message: "/spec/x"})
		}, "PLG-H027 warning", "/spec/x", "correct it"},
		"idle policy": {func(w *world) { binding(w).Labels = nil }, "PLG-H028 warning", "shop/web", "pelago why"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			tt.inject(w)
			_, r := w.run(t)
			all := r.Findings()
			if len(all) == 0 {
				t.Fatal("nothing is found")
			}
			f := all[0]
			if got := f.Code + " " + string(f.Verdict); got != tt.want || !strings.Contains(f.Object+" "+f.Reason, tt.names) || !strings.Contains(f.Remedy, tt.remedy) {
				t.Errorf("want %s with %q and remedy %q, got", tt.want, tt.names, tt.remedy)
				for _, f := range all {
					t.Errorf("%+v", f)
				}
			}
		})
	}
}
