package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// The globalnet way: the kernel overlay, and the gateways translate with netfilter and conntrack.
// GA gives the pods of A one of eight egress IPs; GB turns the ingress IP into the pod's address.
// Further clusters and services are further rules, with those of the target in the middle of the
// list.

// iptables is the variant that ratios refer to: the back end that current distributions install as
// `iptables`.
func iptables() Variant {
	return Variant{Name: "iptables", Setup: iptablesGlobalnet("iptables-nft-restore"), Target: ingress}
}

func iptablesLegacy() Variant {
	return Variant{Name: "iptables-legacy", Setup: iptablesGlobalnet("iptables-legacy-restore"), Target: ingress}
}

// nftables does the same with native rules, the addresses in a set and a map.
func nftables() Variant {
	return Variant{Name: "nftables", Target: ingress, Setup: func(t *Topology, s Scale) (setup, error) {
		var remote, services []string
		for i := range s.Clusters {
			remote = append(remote, otherCluster(i).String())
		}
		for i := range s.Services {
			services = append(services, fmt.Sprintf("%s : %s", otherService(i), podAddr))
		}
		snat := fmt.Sprintf(`table ip globalnet {
	set remote {
		type ipv4_addr
		flags interval
		elements = { %s }
	}
	chain egress {
		type nat hook postrouting priority srcnat;
		ip saddr %s ip daddr @remote snat to %s-%s
	}
}
`, strings.Join(append(remote, globalB.String()), ", "), podCIDR, egressLow, egressHigh)
		dnat := fmt.Sprintf(`table ip globalnet {
	map ingress {
		type ipv4_addr : ipv4_addr
		elements = { %s }
	}
	chain ingress {
		type nat hook prerouting priority dstnat;
		dnat to ip daddr map @ingress
	}
}
`, strings.Join(append(services, fmt.Sprintf("%s : %s", ingress, podAddr)), ", "))
		return setup{}, gatewayRules(t, snat, dnat, "nft", "-f", "-")
	}}
}

// iptablesGlobalnet loads Submariner's chains with the given restore command.
func iptablesGlobalnet(restore string) func(*Topology, Scale) (setup, error) {
	return func(t *Topology, s Scale) (setup, error) {
		snat := rules("-A SM-GN-EGRESS-CLUSTER -s "+podCIDR.String()+" -d %s -j SNAT --to-source "+fmt.Sprintf("%s-%s", egressLow, egressHigh),
			globalB.String(), s.Clusters, func(i int) string { return otherCluster(i).String() })
		dnat := rules("-A SUBMARINER-GN-INGRESS -d %s/32 -j DNAT --to-destination "+podAddr.String(),
			ingress.String(), s.Services, func(i int) string { return otherService(i).String() })
		return setup{}, gatewayRules(t, `*nat
:SUBMARINER-GN-EGRESS - [0:0]
:SM-GN-EGRESS-CLUSTER - [0:0]
-A POSTROUTING -j SUBMARINER-GN-EGRESS
-A SUBMARINER-GN-EGRESS -j SM-GN-EGRESS-CLUSTER
`+snat+`COMMIT
`, `*nat
:SUBMARINER-GN-INGRESS - [0:0]
-A PREROUTING -j SUBMARINER-GN-INGRESS
`+dnat+`COMMIT
`, restore)
	}
}

// rules is a rule for each of n others and, in their middle, one for the target.
func rules(format, target string, n int, other func(int) string) string {
	var b strings.Builder
	for i := range n + 1 {
		switch {
		case i == n/2:
			fmt.Fprintf(&b, format+"\n", target)
		case i < n/2:
			fmt.Fprintf(&b, format+"\n", other(i))
		default:
			fmt.Fprintf(&b, format+"\n", other(i-1))
		}
	}
	return b.String()
}

// otherCluster is the GlobalCIDR of a remote cluster that carries no traffic.
func otherCluster(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{121, byte(i / 256), byte(i), 0}), 24)
}

// otherService is the ingress IP in B of a service that carries no traffic.
func otherService(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{120, 2, byte(1 + i/200), byte(20 + i%200)})
}

// gatewayRules makes the kernel overlay and feeds the rules atA and atB to the command's standard
// input.
func gatewayRules(t *Topology, atA, atB string, command ...string) error {
	if err := kernelOverlay(t); err != nil {
		return err
	}
	_, errA := t.GA[0].RunInput(atA, command[0], command[1:]...)
	_, errB := t.GB[0].RunInput(atB, command[0], command[1:]...)
	if err := errors.Join(errA, errB); err != nil {
		return fmt.Errorf("load the gateways' rules (are the packages iptables and nftables installed?): %w", err)
	}
	return nil
}
