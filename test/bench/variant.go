package main

import (
	"net/netip"

	"github.com/pelago-net/pelago/test/netns"
)

// Variant is one way from the client to the server. To add one, write a file with a function that returns it and name
// the function in variants.
type Variant struct {
	// Name is the variant's name in result files.
	Name string

	// Setup puts into a fresh topology what the path needs. All that is inside the namespaces goes with them after one
	// repetition; teardown (nil if there is nothing) ends what lives outside: links, pinned maps, processes. A Setup
	// that fails has ended them itself.
	Setup func(*Topology) (teardown func() error, err error)

	// Target is the address that the client connects to.
	Target netip.Addr

	// Direct puts client and server on the direct pair instead of the pods.
	Direct bool
}

// variants lists all variants in the order of the tables.
func variants() []Variant {
	return []Variant{limit(), floor(), plain(), iptables(), iptablesLegacy(), nftables(), pelagoSafe()}
}

func nameOf(v Variant) string { return v.Name }

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
		Setup:  func(*Topology) (func() error, error) { return nil, nil },
		Target: directS.Addr(),
		Direct: true,
	}
}
