package packet

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"pgregory.net/rapid"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/test/netns"
)

// uplink is what packets come in and leave by. Without a namespace it is lo, the only device that
// is always there, with an MTU of 65536, and packets meet uplink_in only. With one it is a device
// that knows all neighbours, and uplink_xdp comes first.
var uplink = struct {
	ns    *netns.NS
	index int
}{index: 1}

// bothHooks runs a test with uplink_in alone, and again with uplink_xdp before it.
func bothHooks(t *testing.T, test func(t *testing.T)) {
	t.Run("tc", test)
	t.Run("XDP", func(t *testing.T) {
		withXDP(t)
		test(t)
	})
}

// withXDP has the rest of the test run with uplink_xdp.
func withXDP(t testing.TB) {
	t.Helper()
	ns := netns.ForTest(t, "up")
	if err := netns.Veth(netns.End{NS: ns, Name: "un0"}, netns.End{NS: ns, Name: "peer"}); err != nil {
		t.Fatal(err)
	}
	index, err := ns.Index("un0")
	if err != nil {
		t.Fatal(err)
	}
	commands := [][]string{{"ip", "route", "add", "172.16.0.0/16", "dev", "un0"}}
	for cluster := 1; cluster <= 2; cluster++ {
		for node := 1; node <= 4; node++ {
			mac := neighbour(cluster, node)
			commands = append(commands, []string{"ip", "neigh", "add", nodeIP(cluster, node).String(), "lladdr", fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x",
				mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]), "dev", "un0", "nud", "permanent"})
		}
	}
	if err := ns.Sysctl("net/ipv4/ip_forward", "1"); err != nil {
		t.Fatal(err)
	}
	for _, c := range commands {
		if _, err := ns.Run(c[0], c[1:]...); err != nil {
			t.Fatal(err)
		}
	}
	before := uplink
	uplink.ns, uplink.index = ns, index
	t.Cleanup(func() { uplink = before })
}

func neighbour(cluster, node int) [6]byte { return [6]byte{0x02, 0, 0, 0, byte(cluster), byte(node)} }

// xdpMD is struct xdp_md of linux/bpf.h.
type xdpMD struct {
	Data, DataEnd, DataMeta, IngressIfindex, RxQueueIndex, EgressIfindex uint32
}

// What uplink_xdp returns.
const (
	xdpDrop = 1
	xdpPass = 2
	xdpTX   = 3

	xdpRedirect = 4
)

func runOptions(frame, out []byte, c xdpMD) *ebpf.RunOptions {
	return &ebpf.RunOptions{Data: frame, DataOut: out, Context: &c}
}

// comeIn runs what sits on the uplink on a frame. What uplink_xdp did is notified as uplink_in
// would have done it.
func (k *Kernel) comeIn(t testing.TB, frame []byte) Result {
	t.Helper()
	if uplink.ns == nil {
		return k.Run(t, k.UplinkIn, frame, Context{})
	}
	r, _ := k.throughXDP(t, frame) // whichever of the two decided
	return r
}

// throughXDP runs uplink_xdp on a frame and, if it passes it on, uplink_in behind it. byXDP:
// uplink_xdp decided.
func (k *Kernel) throughXDP(t testing.TB, frame []byte) (r Result, byXDP bool) {
	t.Helper()
	cookie, _, err := k.Loader.Marks()
	if err != nil {
		t.Fatal(err)
	}
	source, err := uplink.ns.MAC("un0")
	if err != nil {
		t.Fatal(err)
	}
	// Frames of these tests go to no MAC address. Under a test run lo is the device of tc.
	for _, index := range []int{uplink.index, 1} {
		if err := k.Uplinks.Put(uint32(index), bpf.PelagoUplink{}); err != nil {
			t.Fatal(err)
		}
	}
	r = k.counted(t, func() (r Result, err error) {
		err = uplink.ns.Do(func() error {
			r, byXDP, err = k.tryXDP(frame, cookie, [6]byte(source))
			return err
		})
		return r, err
	})
	r.Verdict = strings.Replace(r.Verdict, "uplink-xdp ", "uplink-in ", 1)
	return r, byXDP
}

func (k *Kernel) tryXDP(frame []byte, cookie uint32, source [6]byte) (Result, bool, error) {
	out := make([]byte, len(frame)+512)
	opts := runOptions(frame, out, xdpMD{DataEnd: uint32(len(frame)), IngressIfindex: uint32(uplink.index)})
	action, err := k.UplinkXDP.Run(opts)
	if err != nil {
		return Result{}, false, fmt.Errorf("run uplink_xdp on %d bytes: %w", len(frame), err)
	}
	r := Result{Frame: opts.DataOut}
	switch action {
	case xdpPass:
		if !bytes.Equal(r.Frame, frame) {
			return r, false, fmt.Errorf("uplink_xdp changed a frame that it passed on:\n%x\n%x", frame, r.Frame)
		}
		r, err = k.TryRun(k.UplinkIn, frame, Context{})
		return r, false, err
	case xdpDrop:
		r.Action = Drop
	case xdpTX:
		r.Action, r.Mark = Redirect, cookie
		to := r.Frame[30:34]
		if got, want := [6]byte(r.Frame[:6]), neighbour(int(to[2]), int(to[3])); got != want || [6]byte(r.Frame[6:12]) != source {
			return r, true, fmt.Errorf("sent from %x to %x; want from %x to %x, who has %d", r.Frame[6:12], got, source, want, to)
		}
		copy(r.Frame[:12], frame) // tc leaves them to the kernel
	default:
		return r, true, fmt.Errorf("uplink_xdp returned %d", action)
	}
	return r, true, nil
}

// answered makes every path of the node a good one, on which no probe will be overdue, but for what
// is changed.
func (k *Kernel) answered(t testing.TB, change ...func(*bpf.PelagoPath)) {
	t.Helper()
	var key [4]byte
	var path bpf.PelagoPath
	paths := map[[4]byte]bpf.PelagoPath{}
	for it := k.Paths.Iterate(); it.Next(&key, &path); {
		path.Ready = 1
		path.Ring[path.Sequence%16].Sent = uint64(nanotime(t)) + 3600e9
		for _, f := range change {
			f(&path)
		}
		paths[key] = path
	}
	for key, path := range paths {
		k.putPath(t, key, path)
	}
}

// byXDP are the rows of TestVerdicts that uplink_xdp must do by itself.
var byXDP = []string{
	"a gateway passes a request to the node that its table names",
	"a gateway passes an answer to the owner of the port block",
	"a gateway passes an own packet to the cable",
	"a gateway passes a packet of another node to an own global IP on",
	"a probe is sent back",
	"before the first tables are in, nothing is taken in",
	"before the first tables are in, a gateway draws no traffic by answering probes",
	"overlay version 3", "overlay version 15", "version 1 with another bit in the first byte", "version 2 without the bit of VXLAN", "a vxlan header that is not ours (version 0)",
	"a wrong overlay token", "token 0 where there was none before",
	"a wrong cable token", "the cable token of before is still taken", "the overlay token on the cable",
	"a probe that is cut short",
	"the sender on the overlay is no node", "a remote gateway sends on the overlay", "a node of this cluster sends on the cable",
	"a packet to the overlay port with IP options", "the first fragment of a packet to the overlay port", "the smallest first fragment",
	"a packet to the cable port with IP options", "the first fragment of a packet to the cable port",
	"a handshake of the wire from an unknown address, one too many",
}

// Whatever comes in ends in the same bytes and the same verdict, with XDP before tc or without.
func TestBothHooks(t *testing.T) {
	withXDP(t)
	seen := map[string]bool{}
	for _, r := range rows(t) {
		if r.hook != "uplink-in" || r.own { // a full flow table takes a minute, and XDP has none
			continue
		}
		t.Run(strings.ReplaceAll(r.name, " ", "_"), func(t *testing.T) {
			k := load(t, 1, r.node)
			s := state(1, r.node)
			if r.state != nil {
				r.state(&s)
			}
			if r.loMTU != 0 {
				for _, device := range []string{"un0", "peer"} {
					if _, err := uplink.ns.Run("ip", "link", "set", "dev", device, "mtu", fmt.Sprint(r.loMTU)); err != nil {
						t.Fatal(err)
					}
				}
				defer func() {
					if _, err := uplink.ns.Run("ip", "link", "set", "dev", "un0", "mtu", "1500"); err != nil {
						t.Error(err)
					}
				}()
			}
			begin := func() []byte {
				k.Flush(t)
				k.Loader.Refresh()
				k.Apply(t, s)
				k.answered(t)
				if r.prepare != nil {
					r.prepare(t, k)
				}
				return r.frame(t, k)
			}
			frame := begin()
			var tc Result
			if err := uplink.ns.Do(func() error { tc = k.Run(t, k.UplinkIn, frame, Context{}); return nil }); err != nil {
				t.Fatal(err)
			}
			xdp, by := k.throughXDP(t, begin())
			if tc.Verdict != r.want {
				t.Errorf("tc: %q; want %q", tc.Verdict, r.want)
			}
			if err := differ(tc, xdp); err != nil {
				t.Error(err)
			}
			if want := slices.Contains(byXDP, r.name); by != want {
				t.Errorf("decided by XDP: %t; want %t", by, want)
			}
			seen[r.name] = true
		})
	}
	for _, name := range byXDP {
		if !seen[name] {
			t.Errorf("no row is called %q", name)
		}
	}
}

// differ says in what two results differ, nil if in nothing that anybody could see.
func differ(tc, xdp Result) error {
	if tc.Verdict != xdp.Verdict || tc.Action != xdp.Action {
		return fmt.Errorf("tc: action %d, %q; with XDP: action %d, %q", tc.Action, tc.Verdict, xdp.Action, xdp.Verdict)
	}
	if tc.Action == Drop {
		return nil
	}
	a, b := slices.Clone(tc.Frame), slices.Clone(xdp.Frame)
	const age = 14 + 20 + 8 + 8 + 14 + 12
	if tc.Verdict == "uplink-in probe" && len(a) >= age+4 && len(b) >= age+4 {
		clear(a[age : age+4]) // seconds
		clear(b[age : age+4])
	}
	if !bytes.Equal(a, b) || tc.Mark != xdp.Mark {
		return fmt.Errorf("tc:       mark %#x, %x\nwith XDP: mark %#x, %x", tc.Mark, a, xdp.Mark, b)
	}
	return nil
}

// Any packet from anybody, at a gateway, from both sides.
func TestBothHooksAnyPacket(t *testing.T) {
	withXDP(t)
	k := load(t, 1, 1)
	k.answered(t)
	decided := map[bool]int{}
	rapid.Check(t, func(rt *rapid.T) {
		inner := drawPacket(rt, ip(rapid.SampledFrom([]string{"120.1.0.1", "120.2.0.1", "120.2.0.20", "120.3.0.1"}).Draw(rt, "source")),
			ip(rapid.SampledFrom([]string{"120.1.0.1", "120.1.0.20", "120.1.0.21", "120.1.0.100", "120.2.0.20", "120.9.0.1"}).Draw(rt, "destination")))
		b := inner.Encode()
		if rapid.Bool().Draw(rt, "broken") {
			b[rapid.IntRange(0, len(b)-1).Draw(rt, "at")] = rapid.Byte().Draw(rt, "byte")
			b = b[:rapid.IntRange(0, len(b)).Draw(rt, "length")]
		}
		from := rapid.SampledFrom([]int{1, 2, 3, 4, 9}).Draw(rt, "from")
		o := overlay(1, from, 1, b)
		if rapid.Bool().Draw(rt, "cable") {
			o = cable(2, from, 1, b)
		}
		o.Type = rapid.SampledFrom([]uint8{Forward, Forward, Forward, Probe, ProbeReply, 0}).Draw(rt, "type")
		o.Flags = rapid.Uint8Range(0, 15).Draw(rt, "flags")
		o.Node = rapid.Uint16Range(0, 5).Draw(rt, "node")
		o.TTL = rapid.SampledFrom([]uint8{0, 1, 2, 64, 255}).Draw(rt, "TTL")
		o.TOS = rapid.Byte().Draw(rt, "TOS")
		if rapid.IntRange(0, 9).Draw(rt, "stranger") == 0 {
			o.Token++
		}
		frame := o.Encode()
		var tc Result
		if err := uplink.ns.Do(func() error { tc = k.Run(t, k.UplinkIn, frame, Context{}); return nil }); err != nil {
			rt.Fatal(err)
		}
		xdp, by := k.throughXDP(t, frame) // a flow that the first one has opened is there
		decided[by]++
		if err := differ(tc, xdp); err != nil {
			rt.Error(err)
		}
	})
	if decided[true] == 0 || decided[false] == 0 {
		t.Errorf("decided by XDP: %v; want some of both", decided)
	}
}

// XDP ignores a frame with another component's MAC address as destination: the uplink may be in
// promiscuous mode.
func TestFrameForAnotherHost(t *testing.T) {
	withXDP(t)
	k := load(t, 1, 1)
	k.answered(t)
	frame := patch(overlay(1, 2, 1, udpPacket("x", from("120.1.0.1")).Encode()).Encode(), 0, 0x02, 0, 0, 0, 9, 9)
	if r, by := k.throughXDP(t, frame); by || r.Action != Next || r.Verdict != "" {
		t.Errorf("decided by XDP: %t, action %d, %q; want it left alone", by, r.Action, r.Verdict)
	}
	var none Result
	if err := uplink.ns.Do(func() error {
		if err := k.Uplinks.Delete(uint32(uplink.index)); err != nil {
			return err
		}
		action, err := k.UplinkXDP.Run(runOptions(frame, make([]byte, 512), xdpMD{DataEnd: uint32(len(frame)), IngressIfindex: uint32(uplink.index)}))
		none.Action = int(action)
		return err
	}); err != nil || none.Action != xdpPass {
		t.Errorf("on a device that the loader has not named: %d, %v", none.Action, err)
	}
}

// Packets that XDP leaves to tc, because only tc can handle them or can decide better.
func TestLeftToTC(t *testing.T) {
	withXDP(t)
	k := load(t, 1, 1)
	out := overlay(1, 2, 1, udpPacket("x", from("120.1.0.1")).Encode()).Encode()
	in := cable(2, 1, 1, answerTo(3).Encode()).Encode()
	probe := overlay(1, 2, 1, body{Nonce: 1}.encode(), func(o *Overlay) { o.Type = Probe }).Encode()
	run := func(what string, frame []byte, want bool, verdict string) {
		t.Helper()
		if r, by := k.throughXDP(t, frame); by != want || r.Verdict != "uplink-in "+verdict {
			t.Errorf("%s: decided by XDP: %t, %q; want %t, %q", what, by, r.Verdict, want, verdict)
		}
	}
	run("no gateway has answered yet", out, false, "switched")
	run("a node that is not probed: a probe is overdue", in, false, "switched")
	k.answered(t)
	run("all is well", out, true, "switched")
	run("all is well, the other way", in, true, "switched")
	run("all is well, a probe", probe, true, "probe")
	first := udpPacket("the first part of it", from("120.1.0.1"), func(p *Packet) { p.MoreFragments = true })
	fragment := overlay(1, 2, 1, first.Encode(), func(o *Overlay) { o.Flags, o.InnerSource = Fragment, [6]byte{2, 0, 0x9c, 0x40, 0, 53} }).Encode()
	run("a fragment", fragment, false, "switched")
	k.answered(t, func(p *bpf.PelagoPath) { p.Loss, p.Lossy = 65536/5, 1 })
	run("every path loses packets", out, false, "switched")
	k.answered(t, func(p *bpf.PelagoPath) { p.Loss, p.Lossy = 0, 0 })
	run("none does", out, true, "switched")
	neigh := func(change string, arguments ...string) {
		t.Helper()
		for cluster := 1; cluster <= 2; cluster++ {
			for node := 1; node <= 4; node++ {
				mac := neighbour(cluster, node)
				args := []string{"neigh", change, nodeIP(cluster, node).String(), "dev", "un0"}
				if change == "add" {
					args = append(args, "lladdr", fmt.Sprintf("02:00:00:00:%02x:%02x", mac[4], mac[5]), "nud", "permanent")
				}
				if _, err := uplink.ns.Run("ip", append(args, arguments...)...); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	neigh("del")
	run("the neighbour is not known", out, false, "switched")
	run("the neighbour is not known, the other way", in, false, "switched")
	run("the neighbour is not known, a probe", probe, false, "probe")
	neigh("add")
	run("it is known again", out, true, "switched")
	s := state(1, 1)
	for i := range s.Clusters[2] {
		s.Clusters[2][i].Hop.Ifindex = 0
		s.Clusters[2][i].Tunnels = []uint32{7}
	}
	k.Apply(t, s)
	run("the wire is encrypted", out, false, "switched")
	run("the wire is encrypted, the other way", in, true, "switched")
	peer, err := uplink.ns.Index("peer")
	if err != nil {
		t.Fatal(err)
	}
	s = state(1, 1)
	for i := range s.Clusters[2] {
		s.Clusters[2][i].Hop.Ifindex = uint32(peer)
	}
	k.Apply(t, s)
	run("the way leads out by a device without XDP", out, false, "switched")
	k.Apply(t, state(1, 1))
	run("all is well again", out, true, "switched")
	if err := uplink.ns.Sysctl("net/ipv4/conf/un0/forwarding", "0"); err != nil {
		t.Fatal(err)
	}
	run("the device does not forward", out, false, "switched")
}

// XDP notes that a path is used, so that it is probed at the full rate.
func TestXDPUsesPath(t *testing.T) {
	withXDP(t)
	k := load(t, 1, 1)
	k.answered(t)
	used := func() (n int) {
		var key [4]byte
		var path bpf.PelagoPath
		for it := k.Paths.Iterate(); it.Next(&key, &path); {
			if path.Used > 0 {
				n++
			}
		}
		return n
	}
	if r, by := k.throughXDP(t, overlay(1, 2, 1, udpPacket("x", from("120.1.0.1")).Encode()).Encode()); !by || r.Verdict != "uplink-in switched" || used() != 1 {
		t.Errorf("by XDP: %t, %q, %d paths in use; want 1", by, r.Verdict, used())
	}
}

// Redirection to another uplink that has XDP.
func TestXDPRedirects(t *testing.T) {
	withXDP(t)
	ns, first := uplink.ns, uplink.index
	if err := netns.Veth(netns.End{NS: ns, Name: "un1"}, netns.End{NS: ns, Name: "peer2"}); err != nil {
		t.Fatal(err)
	}
	second, err := ns.Index("un1")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []string{"route add 172.16.2.0/24 dev un1", "neigh add 172.16.2.1 lladdr 02:00:00:00:02:01 dev un1 nud permanent",
		"neigh add 172.16.2.4 lladdr 02:00:00:00:02:04 dev un1 nud permanent"} {
		if _, err := ns.Run("ip", strings.Fields(c)...); err != nil {
			t.Fatal(err)
		}
	}
	k := load(t, 1, 1)
	s := state(1, 1)
	for i := range s.Clusters[2] {
		s.Clusters[2][i].Hop.Ifindex = uint32(second)
	}
	k.Apply(t, s)
	k.answered(t)
	frame := overlay(1, 2, 1, udpPacket("x", from("120.1.0.1")).Encode()).Encode()
	for _, known := range []bool{false, true} {
		if err := k.Uplinks.Put(uint32(first), bpf.PelagoUplink{}); err != nil {
			t.Fatal(err)
		}
		if known {
			if err := k.Uplinks.Put(uint32(second), bpf.PelagoUplink{}); err != nil {
				t.Fatal(err)
			}
		}
		var action uint32
		out := make([]byte, 512)
		if err := ns.Do(func() (err error) {
			action, err = k.UplinkXDP.Run(runOptions(frame, out, xdpMD{DataEnd: uint32(len(frame)), IngressIfindex: uint32(first)}))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if want := map[bool]uint32{false: xdpPass, true: xdpRedirect}[known]; action != want {
			t.Errorf("un1 has XDP: %t: action %d; want %d", known, action, want)
		}
		if mac := [6]byte(out[:6]); known && mac != neighbour(2, 1) && mac != neighbour(2, 4) {
			t.Errorf("sent to %x", mac)
		}
	}
}
