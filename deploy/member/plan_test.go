package member

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"

	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy/spec"
)

// planned plans a join with flags after one that has left have, and shows an error as the command
// line does.
func planned(t *testing.T, have Have, keep bool, args ...string) (Plan, error) {
	t.Helper()
	var m spec.Member
	set := pflag.NewFlagSet("join", pflag.ContinueOnError)
	flags := m.AddFlags(set, "clusterid")
	if err := errors.Join(set.Parse(args), spec.Join(flags.Read())); err != nil {
		t.Fatal(err)
	}
	p, err := NewPlan(m, flags.Given, have, keep)
	return p, flags.Names().Error(err)
}

func TestPlan(t *testing.T) {
	pods, services := []netip.Prefix{netip.MustParsePrefix("10.7.0.0/16")}, []netip.Prefix{netip.MustParsePrefix("10.8.0.0/16")}
	joined := Have{Config: config.Config{ClusterID: "c1", ClusterIndex: 1, PodCIDRs: pods, ServiceCIDRs: services, CableDriver: "libreswan", CablePort: 4600,
		CableTunnels: 4, Datapath: "fast"}, Pod: &corev1.PodSpec{Containers: []corev1.Container{{Image: "registry.example/pelago:v1", ImagePullPolicy: "Never"}},
		NodeSelector: map[string]string{"kubernetes.io/os": "linux", "pool": "infra"}, Tolerations: []corev1.Toleration{{Key: "of-the-manifest"}, {Key: "infra", Operator: "Exists"}}}}
	workloads := Have{Config: config.Config{ClusterID: "c1", ClusterIndex: 1, WorkloadsOnly: true}}
	for name, tt := range map[string]struct {
		have Have
		keep bool
		args string
		want string // the error; "": a plan
		is   string // flags that differ from their defaults
	}{
		"nothing joined": {args: "--clusterid=c1 --datapath=hybrid", is: "--clusterid=c1 --datapath=hybrid"},
		"what is not given is kept": {have: joined, args: "--clusterid=c1 --nattport=4700", is: "--cable-driver=libreswan --cable-tunnels=4 --clusterid=c1 --datapath=fast " +
			"--gateways=0 --image-pull-policy=Never --image=registry.example/pelago:v1 --nattport=4700 --node-selector=pool=infra --toleration=infra"},
		"a default that is given": {have: joined, args: "--clusterid=c1 --datapath=strict --cable-tunnels=1 --node-selector= --toleration= --image=localhost/pelago:dev",
			is: "--cable-driver=libreswan --clusterid=c1 --gateways=0 --image-pull-policy=Never --nattport=4600"},
		"gateways by name":             {args: "--clusterid=c1 --gateway-node=n1", is: "--clusterid=c1 --gateway-node=n1 --gateways=0"},
		"gateways twice":               {args: "--clusterid=c1 --gateway-node=n1 --gateways=2", want: "--gateways 2: --gateway-node names the gateways already"},
		"more gateways":                {args: "--clusterid=c1 --gateways=3", is: "--clusterid=c1 --gateways=3"},
		"too many":                     {args: "--clusterid=c1 --gateways=17", want: "--gateways 17: use 1 to 16"},
		"wrong with what is kept":      {have: joined, args: "--clusterid=c1 --cable-driver=vxlan", want: "--cable-tunnels 4: cable driver vxlan has no tunnels: use --cable-tunnels 1, or --cable-driver wireguard"},
		"another id":                   {have: joined, args: "--clusterid=c2", want: `this cluster has joined as "c1": use that id`},
		"another id, without the hub":  {have: joined, keep: true, args: "--clusterid=c2", want: `has not joined as "c2"`},
		"not joined, without the hub":  {keep: true, args: "--clusterid=c1", want: `has not joined as "c1"`},
		"out of the network":           {have: joined, args: "--clusterid=c1 --workloads-only", want: `this cluster has joined as "c1" with the network: remove it first`},
		"into the network":             {have: workloads, args: "--clusterid=c1 --workloads-only=false", want: `this cluster has joined as "c1" with --workloads-only`},
		"workloads only again":         {have: workloads, args: "--clusterid=c1", is: "--clusterid=c1 --workloads-only"},
		"flags of the network without": {args: "--clusterid=c1 --workloads-only --nattport=4600 --datapath=fast", want: "[--datapath --nattport]: joining with --workloads-only leaves the network out"},
		"flags of pods without":        {args: "--clusterid=c1 --workloads-only --https-proxy=http://192.0.2.1:3128", is: "--clusterid=c1 --https-proxy=http://192.0.2.1:3128 --workloads-only"},
		"a range and its size":         {args: "--clusterid=c1 --globalnet-cidr=120.1.0.0/24 --globalnet-cluster-size=256", want: "--globalnet-cluster-size: --globalnet-cidr is the range already"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := planned(t, tt.have, tt.keep, strings.Fields(tt.args)...)
			if (err == nil) != (tt.want == "") || err != nil && !strings.HasPrefix(err.Error(), tt.want) && !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error %v, want %q", err, tt.want)
			}
			if err != nil {
				return
			}
			if diff := cmp.Diff(tt.is, strings.Join(p.Member.Args(), " ")); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// TestPlanWithoutTheHub: a join that does not ask the hub keeps what the hub has granted, and
// refuses other ranges.
func TestPlanWithoutTheHub(t *testing.T) {
	prefixes := func(text string) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix(text)} }
	have := Have{Config: config.Config{ClusterID: "c1", ClusterIndex: 7, PodCIDRs: prefixes("10.7.0.0/16"), ServiceCIDRs: prefixes("10.8.0.0/16"), GlobalCIDRs: prefixes("120.1.0.0/24"),
		GlobalRange: netip.MustParsePrefix("120.0.0.0/8"), FabricCIDR: netip.MustParsePrefix("241.0.0.0/8"), Mode: config.ModeMCS, ClusterSetIPs: true, CableDriver: "vxlan", CablePort: 4500,
		CustomDomains: []string{"example.org"}, HubID: "h", HubServer: "https://hub", BrokerNamespace: "b"}}
	facts := Facts{PodCIDRs: have.Config.PodCIDRs, ServiceCIDRs: have.Config.ServiceCIDRs}
	p, err := planned(t, have, true, "--clusterid=c1", "--nattport=4600")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.sameRanges(facts); err != nil {
		t.Error(err)
	}
	want := have.Config
	want.CablePort = 4600
	if diff := cmp.Diff(want.Data(), p.configure(facts, p.kept()).Data()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	for name, change := range map[string]func(*Plan, *Facts){
		"spec.clusterCIDR":  func(_ *Plan, f *Facts) { f.PodCIDRs = prefixes("10.9.0.0/16") },
		"spec.serviceCIDR":  func(_ *Plan, f *Facts) { f.ServiceCIDRs = prefixes("10.9.0.0/16") },
		"spec.externalCIDR": func(p *Plan, _ *Facts) { p.Member.ExternalCIDR = prefixes("192.0.2.0/24") },
	} {
		p, f := p, facts
		change(&p, &f)
		var about *spec.Error
		if err := p.sameRanges(f); !errors.As(err, &about) || about.Path != name || !strings.Contains(err.Error(), "other ranges") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
