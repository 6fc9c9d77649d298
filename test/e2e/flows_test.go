package e2e

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const flowMap = "/sys/fs/bpf/pelago/flows"

// flow is one object of `pelago nat list -o json`.
type flow struct {
	NodeName   string `json:"nodeName"`
	Role       string `json:"role"`
	Protocol   string `json:"protocol"`
	Opening    tuple  `json:"opening"`
	Translated tuple  `json:"translated"`
	Pod        string `json:"pod"`
	State      string `json:"state"`
	// Idle has the kernel's resolution of about a second.
	Idle time.Duration `json:"idle"`
}

type tuple struct {
	Source      netip.AddrPort `json:"source"`
	Destination netip.AddrPort `json:"destination"`
}

// turned is the tuple of the reply.
func (t tuple) turned() tuple { return tuple{t.Destination, t.Source} }

// String is what tests compare: node, role and both tuples.
func (f flow) String() string {
	return fmt.Sprintf("%s: %s %s %s -> %s as %s -> %s", f.NodeName, f.Role, f.Protocol,
		f.Opening.Source, f.Opening.Destination, f.Translated.Source, f.Translated.Destination)
}

// flowsTowards lists the flows of both clusters that were opened towards one of the addresses,
// sorted.
func (s *clusterset) flowsTowards(t *testing.T, addresses ...netip.Addr) []flow {
	t.Helper()
	var out []flow
	for _, cluster := range []string{"g1", "g2"} {
		text, err := s.Quietly(t.Context(), s.Bin+"/pelago", "nat", "list", "--context", cluster, "-o", "json")
		must(t, err)
		out = append(out, decode[[]flow](t, text)...)
	}
	out = slices.DeleteFunc(out, func(f flow) bool { return !slices.Contains(addresses, f.Opening.Destination.Addr()) })
	slices.SortFunc(out, func(a, b flow) int { return strings.Compare(a.String(), b.String()) })
	return out
}

// entry is one element of the flow map as `bpftool -j map dump` prints it with the map's BTF.
// Addresses and ports are in network byte order (bpf/types.h).
type entry struct {
	Formatted struct {
		Key struct {
			Saddr, Daddr     uint32
			Sport, Dport     uint16
			Proto, Direction uint8
		}
		Value struct {
			State         uint64
			Saddr, Daddr  uint32
			Sport, Dport  uint16
			Role, Primary uint8
		}
	}
}

// entries reads the flow map of a node with bpftool.
func (s *clusterset) entries(t *testing.T, node string) []entry {
	t.Helper()
	return decode[[]entry](t, s.node(t, node, "bpftool", "--json", "map", "dump", "pinned", flowMap))
}

func endpoint(address uint32, port uint16) netip.AddrPort {
	var a [4]byte
	var p [2]byte
	binary.LittleEndian.PutUint32(a[:], address)
	binary.LittleEndian.PutUint16(p[:], port)
	return netip.AddrPortFrom(netip.AddrFrom4(a), binary.BigEndian.Uint16(p[:]))
}

// flow is the entry of a flow's opener in the words of the CLI.
func (e entry) flow(node string) flow {
	k, v := e.Formatted.Key, e.Formatted.Value
	return flow{
		NodeName: node, Role: map[uint8]string{1: "client", 2: "server"}[v.Role],
		Protocol:   map[uint8]string{1: "icmp", 6: "tcp", 17: "udp"}[k.Proto],
		Opening:    tuple{endpoint(k.Saddr, k.Sport), endpoint(k.Daddr, k.Dport)},
		Translated: tuple{endpoint(v.Saddr, v.Sport), endpoint(v.Daddr, v.Dport)},
	}
}

// dying reports whether the entry is being removed.
func (e entry) dying() bool { return e.Formatted.Value.State&1 != 0 }

// touches reports whether an entry, of either direction, belongs to a flow towards one of the
// addresses.
func (e entry) touches(addresses []netip.Addr) bool {
	k, v := e.Formatted.Key, e.Formatted.Value
	return slices.ContainsFunc([]uint32{k.Saddr, k.Daddr, v.Saddr, v.Daddr}, func(a uint32) bool {
		return slices.Contains(addresses, endpoint(a, 0).Addr())
	})
}

// dumped are the openers' flows towards the addresses in the maps of all nodes, sorted.
func (s *clusterset) dumped(t *testing.T, addresses ...netip.Addr) (out []string) {
	t.Helper()
	for _, cluster := range []string{"g1", "g2"} {
		for _, node := range s.nodes(t, cluster) {
			for _, e := range s.entries(t, node) {
				if f := e.flow(node); e.Formatted.Value.Primary == 1 && slices.Contains(addresses, f.Opening.Destination.Addr()) {
					out = append(out, f.String())
				}
			}
		}
	}
	slices.Sort(out)
	return out
}

// testMapAndList: the pinned map is readable with bpftool, and `pelago nat list` prints the same
// flows, as a table and as JSON.
func testMapAndList(t *testing.T, s *clusterset) {
	l := s.needLoad(t)
	connections := s.hold(t, l.client, 5, l.web.String()+":80")
	datagrams := s.ping(t, l.client, 50, l.sink.String()+":7")

	dump := s.node(t, l.clientNode, "bpftool", "map", "dump", "pinned", flowMap)
	for _, field := range []string{"saddr", "daddr", "sport", "dport", "proto", "direction", "state", "seen", "node", "cluster", "role", "primary"} {
		if !strings.Contains(dump, `"`+field+`": `) {
			t.Errorf("bpftool shows no field %q in\n%.600s", field, dump)
		}
	}
	t.Logf("bpftool map dump pinned %s begins\n%.700s", flowMap, dump)

	var listed []flow
	within(t, func() error { // flows of earlier connections end between two listings
		listed = s.flowsTowards(t, l.web, l.sink)
		var named []string
		for _, f := range listed {
			named = append(named, f.String())
		}
		if diff := cmp.Diff(s.dumped(t, l.web, l.sink), named); diff != "" {
			return fmt.Errorf("flows: -bpftool +pelago nat list -o json\n%s", diff)
		}
		for _, role := range []string{"client", "server"} {
			count := func(protocol, state string) (n int) {
				for _, f := range listed {
					if f.Role == role && f.Protocol == protocol && f.State == state {
						n++
					}
				}
				return n
			}
			if tcp, udp := count("tcp", "established"), count("udp", "active"); tcp != 5 || udp < 1 {
				return fmt.Errorf("%d established TCP and %d UDP flows with role %s, want 5 and 1\n%v", tcp, udp, role, listed)
			}
		}
		return nil
	})

	table, err := s.Pelago(t.Context(), "nat", "list", "--context", "g1", "--node", l.clientNode)
	must(t, err)
	for _, f := range listed {
		row := strings.Join([]string{f.NodeName, f.Role, f.Protocol, f.Opening.Source.String(), f.Opening.Destination.String(),
			f.Translated.Source.String(), f.Translated.Destination.String()}, " ")
		if f.NodeName == l.clientNode && !strings.Contains(strings.Join(strings.Fields(table), " "), row) {
			t.Errorf("the table has no row %q", row)
		}
	}
	onlyBrokenOf(t, connections)
	nothingLost(t, datagrams)
}
