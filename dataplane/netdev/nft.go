package netdev

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"syscall"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/dataplane"
)

// nftTable holds those of our rules that need chains of their own. In nft syntax, for the ports of
// overlay and cable:
//
//	table ip pelago {
//	  chain prerouting { type filter hook prerouting priority raw; udp dport 4800 fib daddr type local notrack; }
//	  chain output { type filter hook output priority raw; udp sport 4800 udp dport 4800 notrack; }
//	  chain postrouting { type nat hook postrouting priority 99; oifname "pelago0" snat to ip saddr; }
//	}
//
// and where packets go to hosts outside the cluster, 192.0.2.0/24, or to ClusterIPs, 10.96.0.0/16:
//
//	chain postrouting { … iifname "pelago0" ip daddr 192.0.2.0/24 masquerade; iifname "pelago0" ct status dnat masquerade; }
//	chain forward { type filter hook forward priority filter; oifname "pelago0" ip saddr 10.96.0.0/16 drop; }
//
// Outer packets are not tracked: conntrack sees one direction only, and would give probes another
// port where both ends use the same one. Inner and foreign packets are tracked: a pod's own tunnel
// to another address must be masqueraded, a service on this port translated.
//
// The source of packets into pelago0 is translated to itself. A connection has one source
// translation, so no chain of a CNI can masquerade it; an ACCEPT in a chain of ours would not
// prevent that. Conntrack keeps the true addresses, on which policy engines rely.
//
// Without masquerading, a host outside the cluster, or the node of a pod behind a ClusterIP, could
// reply by another gateway, which has no flow. A reply's source becomes the ClusterIP only after
// the chain forward: a packet that has it in that chain is forged by a pod.
const nftTable = "pelago"

// beforeMasquerade is just before the priority of masquerading (srcnat, 100).
const beforeMasquerade = 99

// Offsets of the addresses in the IPv4 header; bit of a connection's status (enum
// ip_conntrack_status).
const (
	sourceAt, destinationAt = 12, 16
	statusDNAT              = 1 << 5
)

// address matches packets whose address at an offset lies in a range.
func address(at uint32, p netip.Prefix) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: at, Len: 4},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: net.CIDRMask(p.Bits(), 32), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Masked().Addr().AsSlice()},
	}
}

// nftRule is one rule of ours; its chain is made with it.
type nftRule struct {
	chain nftables.Chain
	exprs []expr.Any
}

func nftRules(f Filter) []nftRule {
	prerouting := nftables.Chain{
		Name: "prerouting", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw,
	}
	output := nftables.Chain{
		Name: "output", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityRaw,
	}
	postrouting := nftables.Chain{
		Name: "postrouting", Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting,
		Priority: nftables.ChainPriorityRef(beforeMasquerade),
	}
	forward := nftables.Chain{
		Name: "forward", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
	}
	udp := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_UDP}},
	}
	port := func(offset uint32, port uint16) []expr.Any {
		return []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, port)},
		}
	}
	local := []expr.Any{
		&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)},
	}
	overlay := func(key expr.MetaKey) []expr.Any {
		device := make([]byte, syscall.IFNAMSIZ)
		copy(device, Overlay)
		return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: device}}
	}
	rules := []nftRule{{postrouting, slices.Concat(overlay(expr.MetaKeyOIFNAME), []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: sourceAt, Len: 4},
		// as the kernel returns it
		&expr.NAT{Type: expr.NATTypeSourceNAT, Family: syscall.AF_INET, RegAddrMin: 1, RegAddrMax: 1},
	})}}
	for _, p := range f.External {
		rules = append(rules, nftRule{postrouting, slices.Concat(overlay(expr.MetaKeyIIFNAME), address(destinationAt, p), []expr.Any{&expr.Masq{}})})
	}
	if len(f.ClusterIPs) > 0 {
		rules = append(rules, nftRule{postrouting, slices.Concat(overlay(expr.MetaKeyIIFNAME), []expr.Any{
			&expr.Ct{Register: 1, Key: expr.CtKeySTATUS},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binary.NativeEndian.AppendUint32(nil, statusDNAT), Xor: make([]byte, 4)},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
			&expr.Masq{},
		})})
	}
	for _, p := range f.ClusterIPs {
		rules = append(rules, nftRule{forward, slices.Concat(overlay(expr.MetaKeyOIFNAME), address(sourceAt, p), []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}})})
	}
	for _, p := range []uint16{dataplane.OverlayPort, f.CablePort} {
		if p == 0 {
			continue
		}
		rules = append(rules,
			nftRule{prerouting, slices.Concat(udp, port(2, p), local, []expr.Any{&expr.Notrack{}})},
			nftRule{output, slices.Concat(udp, port(0, p), port(2, p), []expr.Any{&expr.Notrack{}})})
	}
	return rules
}

// ensureNft creates the table, or replaces it in one transaction if it differs.
func ensureNft(f Filter) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	table, rules := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: nftTable}, nftRules(f)
	have, err := nftTableExists(c, nftTable)
	if err != nil {
		return err
	}
	if have {
		if same, err := nftTableIs(c, table, rules); same || err != nil {
			return err
		}
		c.DelTable(table)
	}
	c.AddTable(table)
	chains := map[string]*nftables.Chain{}
	for _, r := range rules {
		if chains[r.chain.Name] == nil {
			chain := r.chain
			chain.Table = table
			chains[chain.Name] = c.AddChain(&chain)
		}
		c.AddRule(&nftables.Rule{Table: table, Chain: chains[r.chain.Name], Exprs: r.exprs})
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("add table %s to nftables: %w", nftTable, err)
	}
	return nil
}

func nftTableExists(c *nftables.Conn, name string) (bool, error) {
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyIPv4)
	if err != nil {
		return false, fmt.Errorf("list nftables tables: %w", err)
	}
	return slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == name }), nil
}

// nftTableIs reports whether the table has exactly these chains and rules.
func nftTableIs(c *nftables.Conn, table *nftables.Table, want []nftRule) (bool, error) {
	chains, err := c.ListChainsOfTableFamily(table.Family)
	if err != nil {
		return false, fmt.Errorf("list nftables chains: %w", err)
	}
	wanted := map[string][]nftRule{}
	for _, r := range want {
		wanted[r.chain.Name] = append(wanted[r.chain.Name], r)
	}
	for _, chain := range chains {
		if chain.Table.Name != table.Name {
			continue
		}
		expected := wanted[chain.Name]
		delete(wanted, chain.Name)
		if expected == nil || !sameChain(chain, &expected[0].chain) {
			return false, nil
		}
		rules, err := c.GetRules(table, chain)
		if err != nil {
			return false, fmt.Errorf("list the rules of nftables chain %s: %w", chain.Name, err)
		}
		if !slices.EqualFunc(rules, expected, func(a *nftables.Rule, b nftRule) bool { return reflect.DeepEqual(a.Exprs, b.exprs) }) {
			return false, nil
		}
	}
	return len(wanted) == 0, nil
}

func sameChain(a, b *nftables.Chain) bool {
	return a.Type == b.Type && a.Hooknum != nil && *a.Hooknum == *b.Hooknum && a.Priority != nil && *a.Priority == *b.Priority
}

func removeNft(name string) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	if have, err := nftTableExists(c, name); !have || err != nil {
		return err
	}
	c.DelTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: name})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("remove table %s from nftables: %w", name, err)
	}
	return nil
}
