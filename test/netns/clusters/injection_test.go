package clusters

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/test/await"
	"github.com/pelago-net/pelago/test/packet"
)

// form is how the outer packet of an injected datagram looks.
type form string

const (
	plain     form = "plain"
	options   form = "with IP options"
	fragments form = "in fragments"
)

var forms = []form{plain, options, fragments}

// injection is a sender that knows the secrets of the node it sends to.
type injection struct {
	name   string
	from   place
	source netip.Addr // outer; invalid: that of the route
	to     *Node
	at     netip.Addr // outer destination; invalid: the node's address
	port   uint16
	// of an overlay header; 0: a plain VXLAN header with the VNI of verified packets
	token uint32
	on    *Node           // the node that counts the drop
	want  map[form]string // forms that are missing here are not sent
}

func all(want string) map[form]string {
	return map[form]string{plain: want, options: want, fragments: want}
}

// injections lists the senders that reach a port of ours without passing uplink_in, or by evading
// its parser.
func (w *town) injections() []injection {
	one, two := w.Clusters[1], w.Clusters[2]
	n1, n2, n3, far := one.Nodes[0], one.Nodes[1], one.Nodes[2], two.Nodes[0]
	const overlayToken, cableToken = 0xa1, 0xcab1e
	const atEdge, atUplink, leaving = "edge-in drop-injected", "uplink-in drop-injected", "uplink-out drop-injected"
	stranger := map[form]string{plain: "uplink-in drop-unknown-peer", options: atUplink, fragments: atUplink}
	return []injection{
		{"pod, own node", w.client[3], netip.Addr{}, n3, netip.Addr{}, 4800, 0, n3, all(atEdge)},
		{"pod, own node by its address on the pods' bridge", w.client[3], netip.Addr{}, n3, n3.podAddress(1), 4800, 0, n3, all(atEdge)},
		{"pod on a gateway, own node's cable port", w.client[1], netip.Addr{}, n1, netip.Addr{}, 4500, 0, n1, all(atEdge)},
		{"pod, other node, VNI", w.client[3], netip.Addr{}, n1, netip.Addr{}, 4800, 0, n3, all(leaving)},
		{"pod, other node, token", w.client[3], netip.Addr{}, n1, netip.Addr{}, 4800, overlayToken, n3, all(leaving)},
		{"pod on a gateway, remote gateway", w.client[2], netip.Addr{}, far, netip.Addr{}, 4500, cableToken, n2, all(leaving)},
		{"pod elsewhere, remote gateway", w.client[3], netip.Addr{}, far, netip.Addr{}, 4500, cableToken, far, stranger},
		{"process in the node's network, own node", n3, netip.Addr{}, n3, netip.Addr{}, 4800, 0, n3, all(atEdge)},
		{"process in the node's network, other node", n3, netip.Addr{}, n1, netip.Addr{}, 4800, overlayToken, n3, all(leaving)},
		{"host on the underlay", w.Router, netip.Addr{}, n3, netip.Addr{}, 4800, overlayToken, n3, stranger},
		{"host on the underlay, gateway's cable port", w.Router, netip.Addr{}, n1, netip.Addr{}, 4500, cableToken, n1, stranger},
		{"host on the underlay, another address of the node", w.Router, netip.Addr{}, n3, n3.podAddress(1), 4800, 0, n3, all(atEdge)},
		{"host on the underlay under a node's address", w.Router, n1.Address, n3, netip.Addr{}, 4800, 0, n3,
			map[form]string{plain: "uplink-in drop-bad-version", options: atUplink, fragments: atUplink}},
	}
}

// injected: whatever a pod, an unmarked socket or a host of the underlay sends to our ports is
// dropped and counted, even with the VNI of verified packets and the token known.
func (w *town) injected(t *testing.T) {
	n3 := w.Clusters[1].Nodes[2]
	bridge := netip.PrefixFrom(n3.podAddress(1), 32)
	must(t, w.Router.AddRoute(bridge, n3.Address, "br1"))
	var victims []*net.UDPConn
	for _, p := range []*Pod{w.client[1], w.client[2], w.client[3], w.server[1]} {
		must(t, p.Do(func() error {
			c, err := net.ListenUDP("udp4", &net.UDPAddr{Port: 7777})
			victims = append(victims, c)
			return err
		}))
	}
	for _, i := range w.injections() {
		for _, f := range forms {
			want, ok := i.want[f]
			if !ok {
				continue
			}
			t.Run(i.name+", "+string(f), func(t *testing.T) {
				const count = 3
				before := i.on.Counters(t)[want]
				for range count {
					i.send(t, f)
				}
				await.Equal(t, before+count, func() uint64 { return i.on.Counters(t)[want] })
				t.Logf("%s counts %d as %q", i.on.Name, count, want)
			})
		}
	}
	t.Run("pod, own node, before its first tables", func(t *testing.T) {
		i := w.injections()[0]
		settings, err := ebpf.LoadPinnedMap(filepath.Join(n3.PinPath, bpf.PelagoMapSettings), nil)
		must(t, err)
		defer settings.Close()
		// as at boot: the VNI and the mark are 0
		must(t, settings.Put(uint32(0), bpf.PelagoNodeSettings{}))
		defer func() {
			n3.Loader.Refresh()
			n3.Apply(t)
		}()
		const want = "edge-in drop-unverified"
		before := n3.Counters(t)[want]
		i.send(t, plain)
		await.Equal(t, before+1, func() uint64 { return n3.Counters(t)[want] })
	})
	// Every packet above was counted as dropped, so a datagram that is here was not among them.
	for _, v := range victims {
		must(t, v.SetReadDeadline(time.Now().Add(time.Millisecond)))
		if n, from, err := v.ReadFromUDP(make([]byte, 4000)); err == nil {
			t.Errorf("a pod received %d bytes from %s", n, from)
		}
		must(t, v.Close())
	}
}

// datagramID makes the identifications of datagrams differ, for the sake of their fragments.
var datagramID uint16

// send sends one datagram to port 7777 of a pod of the node.
func (i injection) send(t *testing.T, f form) {
	t.Helper()
	destination := i.at
	if !destination.IsValid() {
		destination = i.to.Address
	}
	datagramID++
	outer := packet.Packet{
		Source: i.source, Destination: destination, TTL: 64, ID: datagramID,
		UDP: &packet.UDP{Source: 40000, Destination: i.port, NoChecksum: true}, Payload: i.payload(t),
	}
	if !outer.Source.IsValid() {
		outer.Source = netip.IPv4Unspecified() // the kernel fills it in
	}
	if f == options {
		outer.Options = []byte{1, 1, 1, 1} // no operation
	}
	pieces := [][]byte{outer.Encode()}
	if f == fragments {
		// beyond the inner packet's length
		outer.Payload = append(outer.Payload, make([]byte, 2000)...)
		pieces = packet.Fragments(outer.Encode(), 1400)
	}
	must(t, sendRaw(i.from, destination, pieces))
}

// sendRaw sends IPv4 packets as they are.
func sendRaw(from place, destination netip.Addr, packets [][]byte) error {
	return from.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for _, p := range packets {
			if err := unix.Sendto(fd, p, 0, &unix.SockaddrInet4{Addr: destination.As4()}); err != nil {
				return fmt.Errorf("send %d bytes to %s: %w", len(p), destination, err)
			}
		}
		return nil
	})
}

// payload is the data after the UDP header.
func (i injection) payload(t *testing.T) []byte {
	t.Helper()
	cookie, probeMark, err := i.to.Loader.Marks()
	must(t, err)
	source := i.to.Cluster.Other.Global(1)
	if i.to.Cluster.Plain {
		source = i.to.Cluster.Other.Nodes[0].Pods[0].Address
	}
	o := packet.Overlay{
		Source: netip.IPv4Unspecified(), Destination: netip.IPv4Unspecified(), Token: i.token, Type: packet.Forward, Version: 1,
		InnerSource: [6]byte{2}, InnerDestination: [6]byte{0x02, 0x50, 0x45, 0x4c, 0x00, 0x02},
		Inner: packet.Packet{
			Source: source, Destination: i.to.Pods[0].Address, TTL: 64, UDP: &packet.UDP{Source: 53, Destination: 7777}, Payload: []byte("injected"),
		}.Encode(),
	}
	if i.token == 0 {
		o.Type, o.Node, o.Version = uint8(cookie>>16), uint16(cookie), 0
		binary.NativeEndian.PutUint32(o.InnerSource[2:], probeMark)
	}
	return o.Encode()[42:]
}

// foreignMarks: other programs on the node write to skb->mark, match on it and route by it, as
// kube-proxy, Calico and Cilium do. Delivery must not depend on it.
func (w *town) foreignMarks(t *testing.T) {
	rules := [][]string{
		// Calico clears its bits
		{"-t", "raw", "PREROUTING", "-j", "MARK", "--set-xmark", "0x0/0xffff0000"},
		// Cilium's to-proxy
		{"-t", "mangle", "PREROUTING", "-p", "udp", "-j", "MARK", "--set-xmark", "0x200/0xf00"},
		// kube-proxy before 1.28
		{"-t", "filter", "INPUT", "-m", "mark", "--mark", "0x8000/0x8000", "-j", "DROP"},
		// whatever is left over
		{"-t", "filter", "FORWARD", "-m", "mark", "!", "--mark", "0x0/0xfffff0ff", "-j", "DROP"},
	}
	change := func(verb string) {
		for _, n := range w.Nodes() {
			for _, r := range rules {
				n.MustRun(t, "iptables", slices.Concat(r[:2], []string{verb}, r[2:])...)
			}
		}
	}
	change("-I")
	defer change("-D")
	for n := 1; n <= 3; n++ {
		if _, _, err := ask(w.client[n], netip.AddrPortFrom(w.all, 80)); err != nil {
			t.Errorf("from node %d: %v", n, err)
		}
	}
}
