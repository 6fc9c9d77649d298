package firewall

import (
	"fmt"
	"strings"
)

const protocolUDP = 17

// Remedy is a command, or what else makes the blocker let a packet pass.
func (b Blocker) Remedy(p Packet) string {
	port := p.Hook == Input && p.Protocol == protocolUDP && p.Port != 0
	family, table, _ := strings.Cut(b.Table, " ")
	switch {
	case table == "firewalld" && port:
		return fmt.Sprintf("firewall-cmd --permanent --add-port=%d/udp && firewall-cmd --reload", p.Port)
	case table == "firewalld":
		return "firewall-cmd --permanent --zone=trusted --add-interface=pelago0 && firewall-cmd --reload"
	case b.ofUFW() && port:
		return fmt.Sprintf("ufw allow %d/udp", p.Port)
	case b.ofUFW() && p.In.Name != "":
		return "ufw route allow in on " + p.In.Name
	case b.ofUFW():
		return "ufw route allow out on " + p.Out.Name
	case strings.HasPrefix(b.Chain, "cali-") && port:
		return fmt.Sprintf("allow UDP %d in the GlobalNetworkPolicies of the node's HostEndpoint, or add it to failsafeInboundHostPorts of the FelixConfiguration", p.Port)
	case strings.HasPrefix(b.Chain, "cali-"):
		return "allow it in the GlobalNetworkPolicies with applyOnForward of the node's HostEndpoint"
	case b.Program == "nft":
		return fmt.Sprintf("nft insert rule %s %s %s %s accept, also in the file that loads it", family, table, b.Base, p.match("iifname ", "oifname ", "udp dport %d"))
	}
	return fmt.Sprintf("%s -I %s %s -j ACCEPT, also in the file that loads it", b.Program, b.Base, p.match("-i ", "-o ", "-p udp --dport %d"))
}

func (b Blocker) ofUFW() bool {
	return strings.HasPrefix(b.Chain, "ufw-")
}

// match is the condition of a rule that accepts the packet.
func (p Packet) match(in, out, port string) string {
	switch {
	case p.Hook == Input && p.Port != 0:
		return fmt.Sprintf(port, p.Port)
	case p.Out.Name != "":
		return out + p.Out.Name
	}
	return in + p.In.Name
}
