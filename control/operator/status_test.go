package operator

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelago-net/pelago/api/submariner/v1alpha1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/spec"
)

const operatorNamespace = "submariner-operator"

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// argo runs the health rule of docs/install.md, as Argo CD does, and returns its status.
func argo(t *testing.T, s v1alpha1.Status, generation int64) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/install.md")
	must(t, err)
	_, rule, ok := strings.Cut(string(text), "health.submariner.io_Submariner: |")
	_, rule, _ = strings.Cut(rule, "\n")
	rule, _, end := strings.Cut(rule, "```")
	if !ok || !end {
		t.Fatal("docs/install.md has no rule for Argo CD")
	}
	l := lua.NewState()
	defer l.Close()
	table := func(values map[string]lua.LValue) *lua.LTable {
		out := l.NewTable()
		for k, v := range values {
			out.RawSetString(k, v)
		}
		return out
	}
	conditions := l.NewTable()
	for _, c := range s.Conditions {
		conditions.Append(table(map[string]lua.LValue{"type": lua.LString(c.Type), "status": lua.LString(c.Status), "message": lua.LString(c.Message)}))
	}
	l.SetGlobal("obj", table(map[string]lua.LValue{"metadata": table(map[string]lua.LValue{"generation": lua.LNumber(generation)}),
		"status": table(map[string]lua.LValue{"observedGeneration": lua.LNumber(s.ObservedGeneration), "conditions": conditions})}))
	must(t, l.DoString("function health()\n"+rule+"\nend"))
	must(t, l.CallByParam(lua.P{Fn: l.GetGlobal("health"), NRet: 1, Protect: true}))
	return l.Get(-1).(*lua.LTable).RawGetString("status").String()
}

// TestGatewaysRedundant: one gateway is reported, with the remedy, and does not change Ready.
func TestGatewaysRedundant(t *testing.T) {
	joined := config.Config{ClusterID: "g1"}
	for name, tt := range map[string]struct {
		n            int
		c            config.Config
		want, remedy string
	}{
		"not joined yet": {0, config.Config{}, "", ""}, "workloads only": {0, config.Config{ClusterID: "g1", WorkloadsOnly: true}, "", ""},
		"none": {0, joined, "False NoGateway", "--gateways=2"}, "one": {1, joined, "False SingleGateway", "--gateways=2"}, "two": {2, joined, "True Redundant", ""},
	} {
		s := v1alpha1.Status{}
		setConditions(&s, 1, nil, nil)
		setGateways(&s, 1, 1, joined) // as it was before
		setGateways(&s, 1, tt.n, tt.c)
		got, message := "", ""
		if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionGatewaysRedundant); c != nil {
			got, message = string(c.Status)+" "+c.Reason, c.Message
		}
		if got != tt.want || !strings.Contains(message, tt.remedy) {
			t.Errorf("%s: %s %q, want %s with %q", name, got, message, tt.want, tt.remedy)
		}
	}
}

func TestConditions(t *testing.T) {
	component := func(desired, updated, ready int32) []v1alpha1.Component {
		return []v1alpha1.Component{{Kind: "Deployment", Name: "pelago-dns", Image: "r/pelago:v1", Desired: 2, Updated: 2, Ready: 2},
			{Kind: "DaemonSet", Name: "pelago-node", Image: "r/pelago:v1", Desired: desired, Updated: updated, Ready: ready}}
	}
	for name, tt := range map[string]struct {
		components []v1alpha1.Component
		err        error
		want       string // True conditions, the reason of Ready, Argo CD's health
		version    string
	}{
		"nothing yet":                   {nil, nil, "Progressing RollingOut Progressing", ""},
		"all run":                       {component(5, 5, 5), nil, "Available Ready AsSpecified Healthy", "v1"},
		"node by node":                  {component(5, 2, 4), nil, "Available Progressing RollingOut Progressing", ""},
		"two nodes are away":            {component(5, 5, 3), nil, "Progressing RollingOut Progressing", ""},
		"a template not yet seen":       {component(5, 0, 5), nil, "Available Progressing RollingOut Progressing", ""},
		"the operator is being updated": {component(5, 5, 5), updating("wait"), "Available Progressing UpdatingOperator Progressing", "v1"},
		"a bad field":                   {component(5, 5, 5), refuse("clusterCIDR", "no range"), "Available Degraded InvalidClusterCIDR Degraded", "v1"},
		"a hub that does not answer":    {component(5, 5, 5), errors.New("timeout"), "Available Degraded InstallFailed Degraded", "v1"},
	} {
		s := v1alpha1.Status{}
		setConditions(&s, 3, tt.components, tt.err)
		var is []string
		for _, kind := range []string{v1alpha1.ConditionAvailable, v1alpha1.ConditionDegraded, v1alpha1.ConditionProgressing, v1alpha1.ConditionReady} {
			if meta.IsStatusConditionTrue(s.Conditions, kind) {
				is = append(is, kind)
			}
		}
		ready := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionReady)
		if got := strings.Join(is, " ") + " " + ready.Reason + " " + argo(t, s, 3); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
		if got := argo(t, s, 4); got != "Progressing" {
			t.Errorf("%s: health of a spec that is not observed: %s", name, got)
		}
		if got := version(tt.components); got != tt.version {
			t.Errorf("%s: version %q, want %q", name, got, tt.version)
		}
	}
}

func TestImage(t *testing.T) {
	for _, tt := range []struct {
		own        string
		spec       v1alpha1.SubmarinerSpec
		want, fail string
	}{
		{own: "reg:5000/a/pelago:v1", want: "reg:5000/a/pelago:v1"},
		{own: "reg:5000/a/pelago:v1", spec: v1alpha1.SubmarinerSpec{Version: "v2"}, want: "reg:5000/a/pelago:v2"},
		{own: "reg:5000/a/pelago:v1", spec: v1alpha1.SubmarinerSpec{Repository: "quay.io/b/"}, want: "quay.io/b/pelago:v1"},
		{own: "r/pelago@sha256:0", spec: v1alpha1.SubmarinerSpec{Version: "v2"}, fail: "give both repository and version"},
		{own: "r/pelago@sha256:0", spec: v1alpha1.SubmarinerSpec{Repository: "q", Version: "v2"}, want: "q/pelago:v2"},
		{own: "r/pelago:v1", spec: v1alpha1.SubmarinerSpec{ImageOverrides: map[string]string{"pelago": "x@sha256:1"}}, want: "x@sha256:1"},
		{own: "r/pelago:v1", spec: v1alpha1.SubmarinerSpec{ImageOverrides: map[string]string{"pelago": "x", "gateway": "y"}}, fail: "key pelago alone"},
	} {
		got, err := image(tt.spec, tt.own)
		if got != tt.want || (err != nil) != (tt.fail != "") || err != nil && !strings.Contains(err.Error(), tt.fail) {
			t.Errorf("image of %+v over %s: %q, %v", tt.spec, tt.own, got, err)
		}
	}
}

// TestBrokerInfo assembles the fields that Submariner's users have, each in its own form.
func TestBrokerInfo(t *testing.T) {
	spec := v1alpha1.SubmarinerSpec{BrokerK8sApiServer: "hub:6443", BrokerK8sApiServerToken: "t", BrokerK8sCA: "Y2E=", CeIPSecPSK: "cHNr"}
	info, err := brokerInfo(spec, nil)
	must(t, err)
	if info.BrokerURL != "https://hub:6443" || string(info.CA()) != "ca" || string(info.IPSecPSK.Data["psk"]) != "psk" || info.Namespace() != "submariner-k8s-broker" {
		t.Errorf("info %+v", info)
	}
	spec.BrokerK8sCA, spec.CeIPSecPSK, spec.BrokerK8sApiServerToken, spec.BrokerK8sSecret, spec.CeIPSecPSKSecret = "", "", "", "hub", "psk"
	info, err = brokerInfo(spec, map[string]map[string][]byte{"hub": {"token": []byte("t2"), "ca.crt": []byte("ca2")}, "psk": {"psk": []byte("psk2")}})
	must(t, err)
	if string(info.ClientToken.Data["token"]) != "t2" || string(info.CA()) != "ca2" || string(info.IPSecPSK.Data["psk"]) != "psk2" {
		t.Errorf("info by Secrets %+v", info)
	}
	for field, change := range map[string]func(*v1alpha1.SubmarinerSpec){
		"brokerK8sApiServerToken": func(s *v1alpha1.SubmarinerSpec) { s.BrokerK8sSecret = "" },
		"ceIPSecPSK":              func(s *v1alpha1.SubmarinerSpec) { s.CeIPSecPSKSecret, s.CeIPSecPSK = "", "%" },
		"brokerK8sCA":             func(s *v1alpha1.SubmarinerSpec) { s.BrokerK8sSecret, s.BrokerK8sApiServerToken = "", "t" },
		"brokerK8sSecret":         func(s *v1alpha1.SubmarinerSpec) { s.BrokerK8sSecret = "file" },
	} {
		s := spec
		change(&s)
		_, err := brokerInfo(s, map[string]map[string][]byte{"hub": {"token": []byte("t2"), "ca.crt": []byte("ca2")}, "psk": {"psk": []byte("psk2")},
			"file": {v1alpha1.BrokerInfoKey: []byte("%")}})
		var r refusal
		if !errors.As(err, &r) || r.reason != "Invalid"+strings.ToUpper(field[:1])+field[1:] {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestMembership(t *testing.T) {
	spec := v1alpha1.SubmarinerSpec{ClusterID: "c1", BrokerK8sApiServer: "hub", BrokerK8sApiServerToken: "t", BrokerK8sCA: "Y2E=", CeIPSecPSK: "cHNr",
		ClusterCIDR: "10.0.0.0/16", CableDriver: "libreswan"}
	of := func(flags string) (membership, error) {
		return membershipOf(&v1alpha1.Submariner{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.AnnotationFlags: flags}}, Spec: spec}, nil, "r/pelago:v1")
	}
	m, err := of("--datapath=hybrid --external-cidr=192.0.2.0/24")
	must(t, err)
	if m.Image != "r/pelago:v1" || m.Datapath != "hybrid" || m.CableDriver != "libreswan" {
		t.Errorf("member %+v", m.Member)
	}
	if !m.Given("spec.image") || m.Given("spec.cableTunnels") {
		t.Error("the image is decided by the operator, and what an object does not name is kept")
	}
	before, err := m.digest()
	must(t, err)
	for flags, same := range map[string]bool{"--datapath=fast --external-cidr=192.0.2.0/24": true, "--external-cidr=192.0.2.0/25": false} {
		m, err := of(flags)
		must(t, err)
		if digest, err := m.digest(); err != nil || (digest == before) != same {
			t.Errorf("%s: the hub's part is the same: %t, %v", flags, digest == before, err)
		}
	}
	if _, err := of("--kubeconfig=/etc/shadow"); err == nil || !strings.Contains(err.Error(), "write --name=value") {
		t.Errorf("a flag that is not allowed: %v", err)
	}
}

// TestWrongFieldOfTheHub: what the hub refuses is reported at the field that is wrong, though
// remedies name others.
func TestWrongFieldOfTheHub(t *testing.T) {
	book, err := broker.Book{Globalnet: true, Range: netip.MustParsePrefix("120.0.0.0/8"), ClusterSize: 256}.WithClusterSetIPs(netip.MustParsePrefix("243.0.0.0/8"))
	must(t, err)
	_, joined, err := book.Allocate(broker.Request{ClusterID: "c1", ClusterUID: "u1"})
	must(t, err)
	plain := broker.Book{}
	prefix := netip.MustParsePrefix
	for name, tt := range map[string]struct {
		book    broker.Book
		request broker.Request
		want    string // reason and beginning of the message
	}{
		"a changed globalCIDR": {joined, broker.Request{ClusterID: "c1", ClusterUID: "u1", GlobalCIDR: prefix("120.9.0.0/24")},
			`InvalidGlobalCIDR: spec.globalCIDR: join as "c1": cluster "c1" already has GlobalCIDR`},
		"a changed clustersetIPCIDR": {joined, broker.Request{ClusterID: "c1", ClusterUID: "u1", ClusterSetIPCIDR: prefix("243.9.0.0/20")},
			"InvalidClustersetIPCIDR: spec.clustersetIPCIDR: "},
		"pods at the hub's address": {plain, broker.Request{ClusterID: "c1", Pods: []netip.Prefix{prefix("192.0.2.0/24")}, Hub: []netip.Addr{netip.MustParseAddr("192.0.2.1")}},
			"InvalidClusterCIDR: spec.clusterCIDR: "},
		"services in the fabric": {plain, broker.Request{ClusterID: "c1", Services: []netip.Prefix{prefix("241.7.0.0/16")}, Fabric: prefix("241.0.0.0/8")},
			"InvalidServiceCIDR: spec.serviceCIDR: "},
		"a globalCIDR without globalnet": {plain, broker.Request{ClusterID: "c1", GlobalCIDR: prefix("120.9.0.0/24")}, "InvalidGlobalCIDR: spec.globalCIDR: "},
		"the id of another cluster":      {joined, broker.Request{ClusterID: "c1", ClusterUID: "u2"}, "InvalidClusterID: spec.clusterID: "},
		"external hosts in globalnet": {joined, broker.Request{ClusterID: "c2", ClusterUID: "u2", External: []netip.Prefix{prefix("120.9.0.0/24")}},
			`InvalidAnnotation: annotation pelago.io/flags: join as "c2": --external-cidr 120.9.0.0/24 overlaps`},
		"no room": {joined, broker.Request{ClusterID: "c2", ClusterUID: "u2", Size: 1 << 30}, "InvalidAnnotation: annotation pelago.io/flags: "},
		"a node in the fabric, which is no field": {plain, broker.Request{ClusterID: "c1", Nodes: []netip.Addr{netip.MustParseAddr("241.7.0.1")}, Fabric: prefix("241.0.0.0/8")},
			`InstallFailed: join as "c1": range 241.7.0.1/32`},
	} {
		_, _, err := tt.book.Allocate(tt.request)
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		if got := condition(t, fmt.Errorf("join as %q: %w", tt.request.ClusterID, err)); !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: %s, want %s…", name, got, tt.want)
		}
	}
}

// condition is the reason and the message of Degraded for an error of the installation of a
// Submariner.
func condition(t *testing.T, err error) string {
	t.Helper()
	o, errs := spec.FromSubmariner(v1alpha1.SubmarinerSpec{ClusterID: "c1"}, nil)
	must(t, spec.Join(errs))
	s := v1alpha1.Status{}
	setConditions(&s, 1, nil, located(o.Locate, err))
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionDegraded)
	return c.Reason + ": " + c.Message
}

// TestWrongCombination: of fields that contradict each other the annotation is named where it is
// the wrong one.
func TestWrongCombination(t *testing.T) {
	o, errs := spec.FromSubmariner(v1alpha1.SubmarinerSpec{ClusterID: "c1", CableDriver: "vxlan"}, map[string]string{v1alpha1.AnnotationFlags: "--cable-tunnels=4"})
	must(t, spec.Join(errs))
	got := condition(t, spec.Join(o.Validate()))
	if want := "InvalidAnnotation: annotation pelago.io/flags: --cable-tunnels 4: cable driver vxlan has no tunnels: use --cable-tunnels 1, or spec.cableDriver wireguard"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
