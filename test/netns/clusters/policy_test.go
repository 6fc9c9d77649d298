package clusters

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/pelago-net/pelago/test/await"
	"github.com/pelago-net/pelago/test/packet"
)

var pair = regexp.MustCompile(`\b(src|dst|sport|dport|id)=(\S+)`)

// Conntrack sees every flow on the pods' nodes, and none of its entries has another address or port
// in the reply than in the original.
func (w *town) conntrack(t *testing.T) {
	if err := bulk(w.client[1], netip.AddrPortFrom(w.all, 81), bulkSize); err != nil {
		t.Error(err)
	}
	c, err := dial(w.client[1], "udp", netip.AddrPortFrom(w.all, 53))
	must(t, err)
	defer c.Close()
	must(t, ping(c, 100))
	seen := map[string]bool{}
	for _, n := range w.Nodes() {
		out, err := n.Run("conntrack", "-L")
		must(t, err)
		for line := range strings.Lines(string(out)) {
			var tuples [2]map[string]string
			for i := range tuples {
				tuples[i] = map[string]string{}
			}
			for _, m := range pair.FindAllStringSubmatch(line, -1) {
				i := 0
				if _, again := tuples[0][m[1]]; again {
					i = 1
				}
				tuples[i][m[1]] = m[2]
			}
			original, reply := tuples[0], tuples[1]
			inverted := map[string]string{"src": reply["dst"], "dst": reply["src"]}
			if reply["sport"] != "" {
				inverted["sport"], inverted["dport"] = reply["dport"], reply["sport"]
			}
			if reply["id"] != "" {
				inverted["id"] = reply["id"]
			}
			if !maps.Equal(inverted, original) {
				t.Errorf("%s: conntrack translates: %s", n.Name, line)
			}
			seen[strings.Fields(line)[0]+" "+original["src"]+" > "+original["dst"]] = true
			if original["dport"] == "4800" || original["dport"] == "4500" {
				t.Errorf("%s: conntrack follows outer packets: %s", n.Name, line)
			}
		}
	}
	for _, want := range []string{
		fmt.Sprintf("tcp %s > %s", w.client[1].Address, w.all), fmt.Sprintf("udp %s > %s", w.client[1].Address, w.all),
		fmt.Sprintf("tcp %s > %s", w.client[3].Global, w.server[3].Address),
	} {
		if !seen[want] {
			t.Errorf("conntrack does not know %q; it would prove nothing: %v", want, seen)
		}
	}
}

// A policy engine that allows what is established, refuses what is invalid and denies a port, in
// front of chains whose policy is DROP.
func (w *town) defaultDeny(t *testing.T) {
	rules := []string{
		"-N ENGINE",
		"-A ENGINE -m conntrack --ctstate INVALID -j DROP",
		"-A ENGINE -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
		"-A ENGINE -p tcp --dport 81 -j DROP",
		"-I FORWARD 1 -j ENGINE",
		"-I INPUT 1 -j ENGINE",
		"-P FORWARD DROP",
		"-P INPUT DROP",
	}
	undo := []string{"-P FORWARD ACCEPT", "-P INPUT ACCEPT", "-D INPUT -j ENGINE", "-D FORWARD -j ENGINE", "-F ENGINE", "-X ENGINE"}
	for _, n := range w.Nodes() {
		for _, r := range rules {
			n.MustRun(t, "iptables", strings.Fields(r)...)
		}
	}
	defer func() {
		for _, n := range w.Nodes() {
			for _, r := range undo {
				n.MustRun(t, "iptables", strings.Fields(r)...)
			}
		}
	}()
	for _, from := range []*Pod{w.client[1], w.client[3]} {
		for range 10 {
			if _, _, err := ask(from, netip.AddrPortFrom(w.all, 80)); err != nil {
				t.Errorf("an allowed port: %v", err)
			}
		}
		if _, _, err := ask(from, netip.AddrPortFrom(w.hosts, 8080)); err != nil {
			t.Errorf("an allowed port of the node: %v", err)
		}
		c, err := dial(from, "udp", netip.AddrPortFrom(w.all, 53))
		must(t, err)
		for _, size := range []int{100, 5000} {
			if err := pingPath(c, size); err != nil {
				t.Errorf("datagrams of %d bytes: %v", size, err)
			}
		}
		must(t, c.Close())
		if out, err := from.Run("busybox", "ping", "-c", "2", "-i", "0.05", "-W", "2", w.server[3].Global.String()); err != nil {
			t.Errorf("ping: %v\n%s", err, out)
		}
		// An error about a datagram is related to it.
		if c, err = dial(from, "udp", netip.AddrPortFrom(w.server[3].Global, 9)); err != nil {
			t.Fatal(err)
		}
		must(t, c.SetDeadline(time.Now().Add(2*time.Second)))
		_, err = c.Write([]byte("x"))
		must(t, err)
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a datagram to a closed port: %v; want connection refused", err)
		}
		must(t, c.Close())
	}
	if c, err := dial(w.client[1], "tcp", netip.AddrPortFrom(w.all, 81)); err == nil {
		t.Error("the denied port is open: the engine does not see our packets")
		must(t, c.Close())
	}
}

// forgery is an attempt to get a packet in by the back door.
type forgery struct {
	name string
	from place
	to   netip.AddrPort
	on   *Node  // where it is to be stopped
	want string // as what
}

// Whoever sends to the ports of overlay and cable unsolicited is stopped and counted, even
// if he knows the token.
func (w *town) forged(t *testing.T) {
	one, two := w.Clusters[1], w.Clusters[2]
	node := func(c *Cluster, n int) *Node { return c.Nodes[n-1] }
	overlay := func(n *Node) netip.AddrPort { return netip.AddrPortFrom(n.Address, 4800) }
	cable := func(n *Node) netip.AddrPort { return netip.AddrPortFrom(n.Address, 4500) }
	attempts := []forgery{
		{"a pod, to its own node", w.client[3], overlay(node(one, 3)), node(one, 3), "edge-in drop-unverified"},
		{"a pod on a gateway, to its own node", w.client[1], overlay(node(one, 1)), node(one, 1), "edge-in drop-unverified"},
		{"a pod on a gateway, to the cable port of its own node", w.client[1], cable(node(one, 1)), node(one, 1), "edge-in drop-unverified"},
		{"a pod, to another node", w.client[3], overlay(node(one, 1)), node(one, 3), "uplink-out drop-injected"},
		{"a pod, to the cable port of its gateway", w.client[3], cable(node(one, 1)), node(one, 1), "uplink-in drop-unknown-peer"},
		{"a pod, to a remote gateway", w.client[3], cable(node(two, 1)), node(two, 1), "uplink-in drop-unknown-peer"},
		{"a pod on a gateway, to a remote gateway", w.client[2], cable(node(two, 1)), node(one, 2), "uplink-out drop-injected"},
		{"a pod, to a node of the other cluster", w.client[3], overlay(node(two, 3)), node(two, 3), "uplink-in drop-unknown-peer"},
		{"a process of a node, to another node", node(one, 3), overlay(node(one, 1)), node(one, 3), "uplink-out drop-injected"},
		{"somebody on the underlay, to a node", w.Router, overlay(node(one, 3)), node(one, 3), "uplink-in drop-unknown-peer"},
		{"somebody on the underlay, to a gateway", w.Router, cable(node(one, 1)), node(one, 1), "uplink-in drop-unknown-peer"},
	}
	var victims []*net.UDPConn
	for _, p := range []*Pod{w.client[1], w.client[2], w.client[3], w.server[1], w.server[2], w.server[3]} {
		must(t, p.Do(func() error {
			c, err := net.ListenUDP("udp4", &net.UDPAddr{Port: 7777})
			victims = append(victims, c)
			return err
		}))
	}
	for _, f := range attempts {
		t.Run(f.name, func(t *testing.T) {
			before := f.on.Counters(t)[f.want]
			c, err := dial(f.from, "udp", f.to)
			must(t, err)
			defer c.Close()
			sent := uint64(0)
			for _, payload := range w.forgeries() {
				_, _ = c.Write(payload) // being refused is fine
				// Straight at the kernel's vxlan socket: that drops what has our reserved bits by
				// itself.
				if f.want != "edge-in drop-unverified" || payload[7] == 0 && payload[1]|payload[2]|payload[3] == 0 {
					sent++
				}
			}
			t.Logf("%s is to count %d packets as %q", f.on.Name, sent, f.want)
			await.Equal(t, before+sent, func() uint64 { return f.on.Counters(t)[f.want] })
		})
	}
	time.Sleep(50 * time.Millisecond) // nothing may arrive
	for _, v := range victims {
		must(t, v.SetReadDeadline(time.Now().Add(time.Millisecond)))
		if n, from, err := v.ReadFromUDP(make([]byte, 100)); err == nil {
			t.Errorf("a pod received %d bytes from %s", n, from)
		}
		must(t, v.Close())
	}
}

// forgeries are overlay packets for port 7777 of every pod, with our header and the right token of
// each wire, and with that of plain vxlan.
func (w *town) forgeries() [][]byte {
	var out [][]byte
	inner := func(source, destination netip.Addr) []byte {
		return packet.Packet{Source: source, Destination: destination, TTL: 64, UDP: &packet.UDP{Source: 53, Destination: 7777}, Payload: []byte("forged")}.Encode()
	}
	header := func(token uint32, kind, version uint8) packet.Overlay {
		return packet.Overlay{
			Source: netip.IPv4Unspecified(), Destination: netip.IPv4Unspecified(), Token: token, Type: kind, Version: version,
			InnerSource: [6]byte{2}, InnerDestination: [6]byte{0x02, 0x50, 0x45, 0x4c, 0x00, 0x02},
		}
	}
	for _, p := range []*Pod{w.client[1], w.client[2], w.client[3], w.server[1]} {
		global := p.Global
		if !global.IsValid() {
			global = w.back
		}
		for _, o := range []packet.Overlay{
			header(0xa1, packet.Forward, 1), header(0xa2, packet.Forward, 1), header(0xcab1e, packet.Forward, 1), header(0, 0, 0), header(0, 7, 0),
		} {
			for _, b := range [][]byte{inner(w.server[2].Global, p.Address), inner(w.server[2].Global, global)} {
				o.Inner = b
				out = append(out, o.Encode()[42:]) // what comes behind UDP
			}
		}
	}
	return out
}

// A pod may run a tunnel of its own on our ports to another component: it is masqueraded like all
// that leaves the cluster, on gateways too, where outer packets of ours are kept out of conntrack.
func (w *town) ownTunnels(t *testing.T) {
	for _, port := range []uint16{4500, 4800} {
		var far *net.UDPConn
		must(t, w.Router.Do(func() (err error) {
			far, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(172, 16, 1, 254), Port: int(port)})
			return err
		}))
		defer far.Close()
		for n := 1; n <= 3; n++ {
			c, err := dial(w.client[n], "udp", netip.AddrPortFrom(w.Clusters[1].router(), port))
			must(t, err)
			defer c.Close()
			_, err = c.Write([]byte("out"))
			must(t, err)
			must(t, far.SetDeadline(time.Now().Add(2*time.Second)))
			_, peer, err := far.ReadFromUDPAddrPort(make([]byte, 10))
			if err != nil || peer.Addr() != w.client[n].Node.Address {
				t.Errorf("UDP %d from a pod of node %d is seen as %s, %v; want it masqueraded", port, n, peer, err)
				continue
			}
			if _, err := far.WriteToUDPAddrPort([]byte("back"), peer); err != nil {
				t.Error(err)
			}
			must(t, c.SetDeadline(time.Now().Add(2*time.Second)))
			if _, err := c.Read(make([]byte, 10)); err != nil {
				t.Errorf("the answer to UDP %d of node %d: %v", port, n, err)
			}
		}
	}
}

// counter makes a program that counts packets and ends with an action.
func counter(t *testing.T, action int32) (*ebpf.Program, *ebpf.Map) {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	must(t, err)
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "end"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, action).WithSymbol("end"),
		asm.Return(),
	}})
	must(t, err)
	t.Cleanup(func() {
		must(t, p.Close())
		must(t, m.Close())
	})
	return p, m
}

// Foreign programs on the same device keep working, before and after ours, and ours go on. On
// ingress ours consume overlay packets, so a program after them sees the others only: the two
// pings.
func (w *town) foreignPrograms(t *testing.T) {
	const next, pass = -1, 0
	n := w.Clusters[1].Nodes[2]
	index, err := n.NS.Index("un0")
	must(t, err)
	type foreign struct {
		name    string
		attach  ebpf.AttachType
		anchor  link.Anchor
		action  int32
		atLeast uint64
		m       *ebpf.Map
	}
	const pings, segments = 2, 60 // of 20 connections
	programs := []*foreign{
		{name: "in, before ours", attach: ebpf.AttachTCXIngress, anchor: link.Head(), action: next, atLeast: segments + pings},
		{name: "in, after ours, with the last word", attach: ebpf.AttachTCXIngress, anchor: link.Tail(), action: pass, atLeast: pings},
		{name: "out, before ours", attach: ebpf.AttachTCXEgress, anchor: link.Head(), action: next, atLeast: segments + pings},
		{name: "out, after ours, with the last word", attach: ebpf.AttachTCXEgress, anchor: link.Tail(), action: pass, atLeast: segments + pings},
	}
	for _, f := range programs {
		p, m := counter(t, f.action)
		f.m = m
		must(t, n.Do(func() error {
			l, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: p, Attach: f.attach, Anchor: f.anchor})
			if err == nil {
				t.Cleanup(func() { must(t, l.Close()) })
			}
			return err
		}))
	}
	n.Apply(t) // as after a daemon's restart
	for range 20 {
		if _, _, err := ask(w.client[3], netip.AddrPortFrom(w.all, 80)); err != nil {
			t.Error(err)
		}
	}
	if out, err := n.Run("busybox", "ping", "-c", "2", "-i", "0.05", "-W", "2", "172.16.1.254"); err != nil {
		t.Errorf("what is not ours: %v\n%s", err, out)
	}
	for _, f := range programs {
		var packets uint64
		must(t, f.m.Lookup(uint32(0), &packets))
		if packets < f.atLeast {
			t.Errorf("the program %s saw %d packets; want %d at least", f.name, packets, f.atLeast)
		}
	}
}

// Without pelago0 (deleted by a person or a network manager) packets for the other cluster are
// refused on the node; none takes the default route.
func (w *town) noLeak(t *testing.T) {
	n := w.Clusters[1].Nodes[2]
	seen := w.seenInClear(t)
	n.MustRun(t, "ip", "link", "del", "pelago0")
	for name, from := range map[string]place{"pod": w.client[3], "node": n} {
		start := time.Now()
		c, err := dial(from, "tcp", netip.AddrPortFrom(w.all, 80))
		if !errors.Is(err, syscall.EHOSTUNREACH) && !errors.Is(err, syscall.ENETUNREACH) {
			t.Errorf("from a %s: %v after %s; want it unreachable at once", name, err, time.Since(start))
		}
		if err == nil {
			must(t, c.Close())
		}
	}
	if out := seen(); out != "" {
		t.Errorf("packets left by the default route:\n%s", out)
	}
	n.Apply(t) // the daemon makes it again
	if _, _, err := ask(w.client[3], netip.AddrPortFrom(w.all, 80)); err != nil {
		t.Errorf("after the repair: %v", err)
	}
}

// seenInClear counts, between the clusters, packets for cluster 2's global addresses that left as
// they were; "" stands for none.
func (w *town) seenInClear(t *testing.T) (seen func() string) {
	t.Helper()
	var remote []string
	for _, p := range w.Clusters[2].routed() {
		remote = append(remote, p.String())
	}
	for _, command := range []string{
		"add table ip leak", "add chain ip leak seen { type filter hook prerouting priority 0; }",
		"add rule ip leak seen ip daddr { " + strings.Join(remote, ", ") + " } counter",
	} {
		_, err := w.Router.Run("nft", command)
		must(t, err)
	}
	return func() string {
		out, err := w.Router.Run("nft", "list", "table", "ip", "leak")
		must(t, err)
		_, err = w.Router.Run("nft", "delete", "table", "ip", "leak")
		must(t, err)
		if strings.Contains(string(out), "counter packets 0 bytes 0") {
			return ""
		}
		return string(out)
	}
}

// Something on the node removes what is not its own, the rule or all of our routes, again and again
// under traffic of a pod and of the node, as systemd-networkd does when a link changes: what is lost
// does not leave in the clear, and once it stops, everything passes.
func (w *town) rulesRemoved(t *testing.T) {
	n := w.client[3].Node
	for name, damage := range map[string]string{"the rule": "ip rule del lookup 4800", "the routes": "ip route flush table 4800", "both": "ip rule del lookup 4800; ip route flush table 4800"} {
		seen := w.seenInClear(t)
		stops := []func() (int, []uint64){
			stream(t, w.client[3], netip.AddrPortFrom(w.server[3].Global, 53)), stream(t, n, netip.AddrPortFrom(w.server[3].Global, 53)),
		}
		for range 20 {
			n.MustRun(t, "sh", "-c", damage)
			time.Sleep(25 * time.Millisecond) // traffic without them
			n.Apply(t)
			time.Sleep(25 * time.Millisecond) // and with them
		}
		for _, stop := range stops {
			if sent, lost := stop(); len(lost) == 0 || len(lost) == sent {
				t.Errorf("%s removed: %d of %d datagrams lost; want some, and not all", name, len(lost), sent)
			}
		}
		if out := seen(); out != "" {
			t.Errorf("%s removed: packets left by the default route:\n%s", name, out)
		}
		if _, _, err := ask(w.client[3], netip.AddrPortFrom(w.all, 80)); err != nil {
			t.Errorf("%s removed, and restored: %v", name, err)
		}
	}
}
