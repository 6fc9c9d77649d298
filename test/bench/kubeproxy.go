package main

import (
	"fmt"
	"strings"

	"github.com/pelago-net/pelago/test/netns"
)

const (
	kubeServices  = 50 // services of the simulated cluster
	kubeEndpoints = 3  // endpoints of each
)

// kubeProxyRules loads the rules of a node that runs kube-proxy in iptables mode: they turn
// conntrack on for everything that passes the node's stack, as on any real node.
func kubeProxyRules(n *netns.NS) error {
	if _, err := n.RunInput(kubeProxy(), "iptables-nft-restore"); err != nil {
		return fmt.Errorf("load kube-proxy's ruleset (is the package iptables installed?): %w", err)
	}
	return nil
}

// kubeProxy is the ruleset in the format of iptables-restore: the chains that kube-proxy makes
// (Kubernetes 1.34, pkg/proxy/iptables, without the nfacct counters), none of whose services the
// benchmark addresses. A new connection walks the list of services once; every packet is checked
// for the states INVALID and ESTABLISHED.
func kubeProxy() string {
	var nat, chains strings.Builder
	for s := range kubeServices {
		svc := fmt.Sprintf("KUBE-SVC-%04d", s)
		fmt.Fprintf(&chains, ":%s - [0:0]\n", svc)
		fmt.Fprintf(&nat, "-A KUBE-SERVICES -d 10.77.0.%d/32 -p tcp -m comment --comment \"demo/svc-%d cluster IP\" -m tcp --dport 80 -j %s\n", s+10, s, svc)
		fmt.Fprintf(&nat, "-A %s ! -s %s -d 10.77.0.%d/32 -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ\n", svc, podCIDR, s+10)
		for e := range kubeEndpoints {
			sep := fmt.Sprintf("KUBE-SEP-%04d%d", s, e)
			fmt.Fprintf(&chains, ":%s - [0:0]\n", sep)
			chance := ""
			if left := kubeEndpoints - e; left > 1 {
				chance = fmt.Sprintf("-m statistic --mode random --probability %.10f ", 1/float64(left))
			}
			fmt.Fprintf(&nat, "-A %s %s-j %s\n", svc, chance, sep)
			fmt.Fprintf(&nat, "-A %s -s 10.7.%d.%d/32 -j KUBE-MARK-MASQ\n", sep, 2+e, 10+s)
			fmt.Fprintf(&nat, "-A %s -p tcp -m tcp -j DNAT --to-destination 10.7.%d.%d:8080\n", sep, 2+e, 10+s)
		}
	}
	return `*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
` + chains.String() + `-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
` + nat.String() + `-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
COMMIT
*filter
:KUBE-FORWARD - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
`
}
