package main

import (
	"errors"
	"fmt"
)

// The globalnet way: the kernel overlay, and the gateways translate with netfilter and conntrack. GA gives the pods of A
// one of eight egress IPs; GB turns the ingress IP into the pod's address.

// iptables is the variant that ratios refer to: the back end that current distributions install as `iptables`.
func iptables() Variant {
	return Variant{Name: "iptables", Setup: iptablesGlobalnet("iptables-nft-restore"), Target: ingress}
}

func iptablesLegacy() Variant {
	return Variant{Name: "iptables-legacy", Setup: iptablesGlobalnet("iptables-legacy-restore"), Target: ingress}
}

// nftables does the same with native rules and a map.
func nftables() Variant {
	snat := fmt.Sprintf(`table ip globalnet {
	chain egress {
		type nat hook postrouting priority srcnat;
		ip saddr %s ip daddr %s snat to %s-%s
	}
}
`, podCIDR, globalB, egressLow, egressHigh)
	dnat := fmt.Sprintf(`table ip globalnet {
	map ingress {
		type ipv4_addr : ipv4_addr
		elements = { %s : %s }
	}
	chain ingress {
		type nat hook prerouting priority dstnat;
		dnat to ip daddr map @ingress
	}
}
`, ingress, podAddr)
	return Variant{Name: "nftables", Target: ingress, Setup: func(t *Topology) (func() error, error) {
		return nil, gatewayRules(t, snat, dnat, "nft", "-f", "-")
	}}
}

// iptablesGlobalnet loads Submariner's chains with the given restore command.
func iptablesGlobalnet(restore string) func(*Topology) (func() error, error) {
	snat := fmt.Sprintf(`*nat
:SUBMARINER-GN-EGRESS - [0:0]
:SM-GN-EGRESS-CLUSTER - [0:0]
-A POSTROUTING -j SUBMARINER-GN-EGRESS
-A SUBMARINER-GN-EGRESS -j SM-GN-EGRESS-CLUSTER
-A SM-GN-EGRESS-CLUSTER -s %s -d %s -j SNAT --to-source %s-%s
COMMIT
`, podCIDR, globalB, egressLow, egressHigh)
	dnat := fmt.Sprintf(`*nat
:SUBMARINER-GN-INGRESS - [0:0]
-A PREROUTING -j SUBMARINER-GN-INGRESS
-A SUBMARINER-GN-INGRESS -d %s/32 -j DNAT --to-destination %s
COMMIT
`, ingress, podAddr)
	return func(t *Topology) (func() error, error) {
		return nil, gatewayRules(t, snat, dnat, restore)
	}
}

// gatewayRules makes the kernel overlay and feeds the rules atA and atB to the command's standard input.
func gatewayRules(t *Topology, atA, atB string, command ...string) error {
	if err := kernelOverlay(t); err != nil {
		return err
	}
	_, errA := t.GA.RunInput(atA, command[0], command[1:]...)
	_, errB := t.GB.RunInput(atB, command[0], command[1:]...)
	if err := errors.Join(errA, errB); err != nil {
		return fmt.Errorf("load the gateways' rules (are the packages iptables and nftables installed?): %w", err)
	}
	return nil
}
