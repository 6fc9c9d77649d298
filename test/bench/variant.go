package main

import (
	"net/netip"
	"slices"

	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/test/netns"
)

// Variant is one implementation of the path from the client to the server. To add one, write a file
// with a function that returns it and name the function in variants.
type Variant struct {
	// Name is the variant's name in result files.
	Name string

	// Setup installs in a fresh topology what the path needs. A Setup that fails has removed what
	// it installed outside the namespaces.
	Setup func(*Topology, Scale) (setup, error)

	// Target is the address that the client connects to.
	Target netip.Addr

	// Direct puts client and server on the direct pair instead of the pods.
	Direct bool
}

// setup is what a Variant has installed.
type setup struct {
	// programs are the BPF programs on the path; nil if none are measured.
	programs programs
	// teardown removes what is outside the namespaces: links, pinned maps, processes; nil if there
	// is nothing.
	teardown func() error
}

// Scale is the size of the clusterset around the path. The zero value is the path alone.
type Scale struct {
	Clusters int  // remote clusters of A besides B, each with Gateways gateways
	Services int  // exported services of B besides the target
	Service  bool // the target is a service with one backend, not a pod with a global IP of its own
	Flows    int  // idle flows in the tables of NA and NB
}

// Case is a set of variants that are compared at one scale.
type Case struct {
	Name     string
	Gateways int // of each cluster, all of them active where the variant can
	Live     int // flows that send datagrams, one each in turn; 0: udpFlows, a batch each in turn
	Scale
	Variants []Variant
}

// variants lists all variants in the order of the tables.
func variants() []Variant {
	return []Variant{limit(), floor(), plain(), iptables(), iptablesLegacy(), nftables(), pelagoSafe(), pelagoHybrid(), pelagoFast()}
}

func nameOf(v Variant) string { return v.Name }

// caseGatewayPath is the case with all variants and all measurements; the others have datagrams and
// connections.
const caseGatewayPath = "gateway-path"

// liveFlows of the cases with many flows: each datagram needs entries that the processor's caches
// have lost since the last one.
const liveFlows = 1000

// cases lists all cases in the order of the tables.
func cases() []Case {
	scaled := func() []Variant { return []Variant{iptables(), pelagoSafe(), pelagoHybrid(), pelagoFast()} }
	return []Case{
		{Name: caseGatewayPath, Gateways: 1, Variants: variants()},
		{Name: "clustersetip", Gateways: 1, Scale: Scale{Service: true}, Variants: slices.Concat(scaled(), []Variant{
			pelagoVIP("pelago-safe-vip", dataplane.Strict), pelagoVIP("pelago-hybrid-vip", dataplane.Hybrid), pelagoVIP("pelago-fast-vip", dataplane.Fast),
		})},
		{Name: "service", Gateways: 1, Scale: Scale{Service: true}, Variants: scaled()},
		{Name: "services-1000", Gateways: 1, Scale: Scale{Service: true, Services: 1000}, Variants: scaled()},
		{Name: "clusters-50", Gateways: 1, Scale: Scale{Clusters: 50}, Variants: scaled()},
		{Name: "gateways-4", Gateways: 4, Variants: scaled()},
		{Name: "flows-1k", Gateways: 1, Live: liveFlows, Variants: scaled()},
		{Name: "flows-100k", Gateways: 1, Live: liveFlows, Scale: Scale{Flows: 100_000 - liveFlows}, Variants: scaled()},
		{Name: "flows-1M", Gateways: 1, Live: liveFlows, Scale: Scale{Flows: 1_000_000 - liveFlows}, Variants: scaled()},
		{Name: caseWireGuard, Gateways: 1, Variants: []Variant{
			iptablesWireGuard(), pelagoWireGuard(pelagoSafe(), dataplane.Strict),
			pelagoWireGuard(pelagoHybrid(), dataplane.Hybrid), pelagoWireGuard(pelagoFast(), dataplane.Fast),
		}},
		{Name: "clusters-50-gateways-4", Gateways: 4, Scale: Scale{Clusters: 50, Services: 1000, Service: true}, Variants: scaled()},
	}
}

// ends returns the namespaces of client and server.
func (v Variant) ends(t *Topology) (client, server *netns.NS) {
	if v.Direct {
		return t.DC, t.DS
	}
	return t.PA, t.PB
}

// limit is one bare veth pair: what the two sockets cost without any path.
func limit() Variant {
	return Variant{
		Name:   "limit",
		Setup:  func(*Topology, Scale) (setup, error) { return setup{}, nil },
		Target: directS.Addr(),
		Direct: true,
	}
}
