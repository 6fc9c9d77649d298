package firewall

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

var (
	overlay = Packet{
		Hook: Input, In: Device{Name: "eth0", Index: 2}, Source: netip.MustParseAddr("172.31.1.12"), Protocol: protocolUDP, Port: 4800, Untracked: true,
	}
	inward  = Packet{Hook: Forward, In: Device{Name: "pelago0", Index: 7}, Source: netip.MustParseAddr("242.1.0.1")}
	outward = Packet{Hook: Forward, Out: Device{Name: "pelago0", Index: 7}, Destination: netip.MustParseAddr("242.1.0.1")}
)

const policies = "-P INPUT ACCEPT\n-P FORWARD ACCEPT\n-P OUTPUT ACCEPT\n"

// What iptables drops is found by evaluating its rules; a rule whose conditions are not known drops
// nothing for certain.
func TestIPTables(t *testing.T) {
	type blocked struct{ Overlay, Inward, Outward string }
	for name, tt := range map[string]struct {
		rules string
		want  blocked
	}{
		"no rules": {policies, blocked{}},
		"chains that end with REJECT": {policies + `
-A INPUT -m state --state RELATED,ESTABLISHED -j ACCEPT
-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT
-A INPUT -j REJECT --reject-with icmp-host-prohibited
-A FORWARD -j REJECT --reject-with icmp-host-prohibited`, blocked{
			`chain INPUT of table filter (iptables, rule "-j REJECT --reject-with icmp-host-prohibited") rejects: iptables -I INPUT -p udp --dport 4800 -j ACCEPT, also in the file that loads it`,
			`chain FORWARD of table filter (iptables, rule "-j REJECT --reject-with icmp-host-prohibited") rejects: iptables -I FORWARD -i pelago0 -j ACCEPT, also in the file that loads it`,
			`chain FORWARD of table filter (iptables, rule "-j REJECT --reject-with icmp-host-prohibited") rejects: iptables -I FORWARD -o pelago0 -j ACCEPT, also in the file that loads it`,
		}},
		"our rules before": {policies + `
-N PELAGO-FORWARD
-N PELAGO-INPUT
-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT
-A INPUT -j PELAGO-INPUT
-A INPUT -j REJECT --reject-with icmp-host-prohibited
-A FORWARD -j PELAGO-FORWARD
-A FORWARD -j REJECT --reject-with icmp-host-prohibited
-A PELAGO-FORWARD -i pelago0 -j ACCEPT
-A PELAGO-FORWARD -o pelago0 -j ACCEPT
-A PELAGO-INPUT -p udp -m udp --dport 4800 -j ACCEPT`, blocked{}},
		"ufw": {`-P INPUT DROP
-P FORWARD DROP
-P OUTPUT ACCEPT
-N ufw-before-input
-N ufw-before-forward
-N ufw-after-input
-N ufw-reject-input
-N ufw-not-local
-N ufw-user-input
-N ufw-skip-to-policy-input
-A INPUT -j ufw-before-input
-A INPUT -j ufw-after-input
-A INPUT -j ufw-reject-input
-A FORWARD -j ufw-before-forward
-A ufw-after-input -p udp -m udp --dport 137 -j ufw-skip-to-policy-input
-A ufw-before-input -i lo -j ACCEPT
-A ufw-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-input -m conntrack --ctstate INVALID -j DROP
-A ufw-before-input -p icmp -m icmp --icmp-type 8 -j ACCEPT
-A ufw-before-input -p udp -m udp --sport 67 --dport 68 -j ACCEPT
-A ufw-before-input -j ufw-not-local
-A ufw-before-input -j ufw-user-input
-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-not-local -m addrtype --dst-type LOCAL -j RETURN
-A ufw-not-local -m addrtype --dst-type MULTICAST -j RETURN
-A ufw-not-local -j DROP
-A ufw-reject-input -j REJECT --reject-with icmp-port-unreachable
-A ufw-skip-to-policy-input -j DROP
-A ufw-user-input -p tcp -m tcp --dport 22 -j ACCEPT`, blocked{
			`chain ufw-reject-input of table filter (iptables, rule "-j REJECT --reject-with icmp-port-unreachable") rejects: ufw allow 4800/udp`,
			`the policy of chain FORWARD in table filter (iptables) drops: iptables -I FORWARD -i pelago0 -j ACCEPT, also in the file that loads it`,
			`the policy of chain FORWARD in table filter (iptables) drops: iptables -I FORWARD -o pelago0 -j ACCEPT, also in the file that loads it`,
		}},
		"Calico with a host endpoint": {policies + `
-N cali-INPUT
-N cali-FORWARD
-N cali-from-hep
-N cali-from-wl
-N cali-fh-eth0
-A INPUT -m comment --comment "cali:Cz_u1IQiXIMmKD4c" -j cali-INPUT
-A FORWARD -m comment --comment "cali:wUHhoiAYhphO9Mso" -j cali-FORWARD
-A FORWARD -m comment --comment "cali:S93hcgKJrXEqnTfs" -m mark --mark 0x10000/0x10000 -j ACCEPT
-A cali-INPUT -m comment --comment "cali:x" -i cali+ -g cali-from-wl
-A cali-INPUT -m comment --comment "cali:y" -j cali-from-hep
-A cali-FORWARD -i cali+ -j cali-from-wl
-A cali-FORWARD -o cali+ -j cali-from-wl
-A cali-from-wl -j DROP
-A cali-from-hep -i eth0 -g cali-fh-eth0
-A cali-fh-eth0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A cali-fh-eth0 -p tcp -m multiport --dports 22,6443 -j ACCEPT
-A cali-fh-eth0 -m comment --comment "Drop if no profiles matched" -j DROP`, blocked{
			Overlay: `chain cali-fh-eth0 of table filter (iptables, rule "-m comment --comment \"Drop if no profiles matched\" -j DROP") drops: allow UDP 4800 in the GlobalNetworkPolicies of the node's HostEndpoint, or add it to failsafeInboundHostPorts of the FelixConfiguration`,
		}},
		"kube-proxy": {policies + `
-N KUBE-FIREWALL
-N KUBE-FORWARD
-A INPUT -j KUBE-FIREWALL
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
-A KUBE-FORWARD -m conntrack --ctstate INVALID -m nfacct --nfacct-name ct_state_invalid_dropped_pkts -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT`, blocked{}},
		"sources and devices": {`-P INPUT DROP
-P FORWARD ACCEPT
-A INPUT -s 172.31.1.0/24 ! -i eth1 -p udp -m multiport --dports 53,4800:4801 -j ACCEPT
-A FORWARD ! -s 10.0.0.0/8 -i pelago+ -j DROP
-A FORWARD ! -d 10.0.0.0/8 -o eth0 -j DROP`, blocked{
			Inward: `chain FORWARD of table filter (iptables, rule "! -s 10.0.0.0/8 -i pelago+ -j DROP") drops: iptables -I FORWARD -i pelago0 -j ACCEPT, also in the file that loads it`,
		}},
		"a return to the policy": {`-P INPUT DROP
-P FORWARD ACCEPT
-N edge
-A INPUT -p udp -j edge
-A INPUT -p udp -j ACCEPT
-A FORWARD -g edge
-A FORWARD -j DROP
-A edge -p udp -m udp --dport 4800 -j RETURN
-A edge -p udp -j DROP`, blocked{}},
		"what is not known": {`-P INPUT DROP
-P FORWARD DROP
-A INPUT -m recent --rcheck --seconds 60 --name ok --mask 255.255.255.255 --rsource -j ACCEPT
-A FORWARD -j NFQUEUE --queue-num 0`, blocked{}},
	} {
		t.Run(name, func(t *testing.T) {
			r := ParseTable("iptables", tt.rules).Ruleset()
			describe := func(p Packet) string {
				var out []string
				for _, b := range r.Blockers(p) {
					out = append(out, b.String()+": "+b.Remedy(p))
				}
				return strings.Join(out, "; ")
			}
			if diff := cmp.Diff(tt.want, blocked{describe(overlay), describe(inward), describe(outward)}); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// A rule may stand before the first that drops the packet itself, not before one of a chain that is
// called.
func TestFirstDrop(t *testing.T) {
	table := ParseTable("iptables", policies+`
-N engine
-A INPUT -j engine
-A INPUT -p tcp -j DROP
-A INPUT -m limit --limit 5/min -j DROP
-A INPUT -p udp -j REJECT
-A INPUT -j DROP
-A engine -j DROP`)
	if got := table.FirstDrop("INPUT", []Packet{{Hook: Input, Protocol: 1}, overlay}); got != 4 {
		t.Errorf("rule %d; want 4", got)
	}
	if got := table.FirstDrop("FORWARD", []Packet{inward}); got != 0 {
		t.Errorf("rule %d of an empty chain", got)
	}
	want := []string{"-j DROP"}
	if got, ok := table.Rules("engine"); !ok || !cmp.Equal(want, got) {
		t.Errorf("rules %q, %t", got, ok)
	}
	if _, ok := table.Rules("nobody's"); ok {
		t.Error("a chain that does not exist is there")
	}
}

// Chains that call each other do not end: such rules, which no kernel accepts, drop nothing for
// certain.
func TestEndless(t *testing.T) {
	r := ParseTable("iptables", policies+"-N a\n-N b\n-A INPUT -j a\n-A INPUT -j DROP\n-A a -j b\n-A a -j b\n-A b -j a\n-A b -j a\n").Ruleset()
	if got := r.Blockers(overlay); got != nil {
		t.Errorf("blocked: %v", got)
	}
}

// Intervals, maps and expressions of nftables, as the kernel returns them.
func TestMachine(t *testing.T) {
	attribute := func(kind uint16, value []byte) []byte {
		b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
		b = append(binary.NativeEndian.AppendUint16(b, kind), value...)
		return append(b, make([]byte, (4-len(b)%4)%4)...)
	}
	jumps := append(attribute(1, binary.BigEndian.AppendUint32(nil, uint32(0xffffffff-2))), attribute(2, []byte("zone\x00"))...)
	kindOf := func(k expr.VerdictKind) []byte {
		return attribute(1, binary.BigEndian.AppendUint32(nil, uint32(int32(k))))
	}
	port := func(n uint16) []byte { return binary.BigEndian.AppendUint16(nil, n) }
	sets := map[string]*set{
		"ports":  {interval: true, elements: []nftables.SetElement{{Key: port(0), IntervalEnd: true}, {Key: port(4801), IntervalEnd: true}, {Key: port(4790)}}},
		"others": {interval: true, elements: []nftables.SetElement{{Key: port(4800), IntervalEnd: true}, {Key: port(4790)}, {Key: port(4801)}}},
		"next":   {interval: true, elements: []nftables.SetElement{{Key: port(4800)}, {Key: port(4800), IntervalEnd: true}, {Key: port(4790)}}},
		"zones":  {elements: []nftables.SetElement{{Key: port(53), Val: kindOf(expr.VerdictAccept)}, {Key: port(4800), Val: jumps}}},
		"empty":  {},
		"rest":   {elements: []nftables.SetElement{{Key: port(53)}, {Val: kindOf(expr.VerdictDrop)}}},
	}
	destination := &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}
	source := &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 2}
	drops := &expr.Verdict{Kind: expr.VerdictDrop}
	in := func(name string) *expr.Lookup { return &expr.Lookup{SourceRegister: 1, SetName: name} }
	mapped := func(name string) *expr.Lookup {
		return &expr.Lookup{SourceRegister: 1, SetName: name, IsDestRegSet: true}
	}
	type result struct {
		Matches answer
		Actions []action
	}
	dropped := result{yes, []action{{kind: drop}}}
	for name, tt := range map[string]struct {
		exprs []expr.Any
		want  result
	}{
		"in an interval":                    {[]expr.Any{destination, in("ports"), drops}, dropped},
		"between intervals":                 {[]expr.Any{destination, in("others"), drops}, result{no, nil}},
		"where one begins and one ends":     {[]expr.Any{destination, in("next"), drops}, dropped},
		"in no set":                         {[]expr.Any{destination, in("empty"), drops}, result{no, nil}},
		"a set that cannot be read":         {[]expr.Any{destination, in("gone"), drops}, result{maybe, []action{{kind: drop}}}},
		"a catch-all element":               {[]expr.Any{destination, in("rest"), drops}, result{maybe, []action{{kind: drop}}}},
		"a map of verdicts":                 {[]expr.Any{destination, mapped("zones")}, result{yes, []action{{kind: jump, chain: "zone"}}}},
		"a map, the port is not known":      {[]expr.Any{source, mapped("zones")}, result{maybe, []action{{kind: next}, {kind: accept}, {kind: jump, chain: "zone"}}}},
		"not in":                            {[]expr.Any{destination, &expr.Lookup{SourceRegister: 1, SetName: "others", Invert: true}, drops}, dropped},
		"a register that nothing loads":     {[]expr.Any{&expr.Cmp{Op: expr.CmpOpEq, Register: 2, Data: port(1)}, drops}, result{maybe, []action{{kind: drop}}}},
		"a range":                           {[]expr.Any{destination, &expr.Range{Register: 1, FromData: port(4000), ToData: port(5000)}, drops}, dropped},
		"not in a range":                    {[]expr.Any{destination, &expr.Range{Op: expr.CmpOpNeq, Register: 1, FromData: port(4000), ToData: port(5000)}, drops}, result{no, nil}},
		"the beginning of a device":         {[]expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, &expr.Cmp{Register: 1, Data: []byte("eth")}, drops}, dropped},
		"another device":                    {[]expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, &expr.Cmp{Register: 1, Data: append([]byte("eth1"), make([]byte, 12)...)}, drops}, result{no, nil}},
		"the number of a device":            {[]expr.Any{&expr.Meta{Key: expr.MetaKeyIIF, Register: 1}, &expr.Cmp{Register: 1, Data: binary.NativeEndian.AppendUint32(nil, 1)}, drops}, result{no, nil}},
		"an address in a prefix":            {[]expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4}, &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: []byte{255, 255, 0, 0}, Xor: make([]byte, 4)}, &expr.Cmp{Register: 1, Data: []byte{172, 31, 0, 0}}, drops}, dropped},
		"untracked":                         {[]expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: 1}, &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binary.NativeEndian.AppendUint32(nil, 6), Xor: make([]byte, 4)}, &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)}, drops}, result{no, nil}},
		"the status of no connection":       {[]expr.Any{&expr.Ct{Key: expr.CtKeySTATUS, Register: 1}, drops}, result{no, nil}},
		"a mark":                            {[]expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: 1}, &expr.Cmp{Register: 1, Data: make([]byte, 4)}, drops}, result{maybe, []action{{kind: drop}}}},
		"a limit":                           {[]expr.Any{&expr.Limit{}, drops}, result{maybe, []action{{kind: drop}}}},
		"counted and logged":                {[]expr.Any{&expr.Counter{}, &expr.Log{}, &expr.Reject{}}, result{yes, []action{{kind: reject}}}},
		"a match of iptables":               {[]expr.Any{&expr.Match{Name: "mark"}, &expr.Target{Name: "REJECT"}}, result{maybe, []action{{kind: reject}}}},
		"a comment of iptables":             {[]expr.Any{&expr.Match{Name: "comment"}, &expr.Target{Name: "REJECT"}}, result{yes, []action{{kind: reject}}}},
		"a program decides":                 {[]expr.Any{&expr.Queue{}}, result{yes, []action{{kind: accept}, {kind: next}}}},
		"nothing":                           {[]expr.Any{&expr.Verdict{Kind: expr.VerdictContinue}, &expr.Counter{}}, result{yes, nil}},
		"two fields of a concatenation":     {[]expr.Any{destination, &expr.Payload{DestRegister: 9, Base: expr.PayloadBaseNetworkHeader, Offset: 9, Len: 1}, in("pairs"), drops}, result{maybe, []action{{kind: drop}}}},
		"an address that is not known":      {[]expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4}, &expr.Cmp{Register: 1, Data: make([]byte, 4)}, drops}, result{maybe, []action{{kind: drop}}}},
		"an address of this node":           {[]expr.Any{&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true}, &expr.Cmp{Register: 1, Data: binary.NativeEndian.AppendUint32(nil, 2)}, drops}, dropped},
		"a value that is written, not read": {[]expr.Any{&expr.Immediate{Register: 1, Data: make([]byte, 4)}, &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1}, drops}, dropped},
	} {
		t.Run(name, func(t *testing.T) {
			p := overlay
			m := machine{packet: &p, set: func(name string) *set { return sets[name] }}
			matches, actions := m.run(tt.exprs)
			if diff := cmp.Diff(tt.want, result{matches, actions}, cmp.AllowUnexported(action{})); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}
