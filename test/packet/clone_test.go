package packet

import (
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/test/await"
)

// Where a probe is overdue, a packet takes one along as a clone: a small one at once, a large one
// when it is overdue for long. A packet that has come from the peer is no reason to send none: it
// proves the other direction.
func TestClonesAreSmall(t *testing.T) {
	withXDP(t)
	ga := load(t, 1, 1)
	s := state(1, 1)
	s.Settings.Edge = uint32(uplink.index) // where edge_out turns clones into probes
	ga.Apply(t, s)
	// The path has a round-trip time of 4 s, so that its interval is half a second: a probe is
	// overdue after 0.75 s.
	const second = 1e9
	overdue := func(by uint64) func(*bpf.PelagoPath) {
		return func(p *bpf.PelagoPath) {
			p.Srtt = 4e9
			p.Ring[p.Sequence%16].Sent = uint64(nanotime(t)) - 3*second/4 - by
		}
	}
	attach(t, ga.EdgeOut, ebpf.AttachTCXEgress)
	for _, tt := range []struct {
		name    string
		size    int
		overdue uint64
		heard   bool // a packet came from either peer just before
		want    uint64
	}{
		{"none is overdue", 100, 0, false, 0},
		{"a small packet", 100, second / 4, false, 1},
		{"a small packet, after one from the peer", 100, second / 4, true, 1},
		{"a large packet", 1000, second / 4, false, 0},
		{"a large packet, overdue for long", 1000, 10 * second, false, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.overdue == 0 {
				ga.answered(t) // in an hour
			} else {
				ga.answered(t, overdue(tt.overdue))
			}
			send := func(o Overlay) {
				t.Helper()
				err := uplink.ns.Do(func() error {
					r, err := ga.TryRun(ga.UplinkIn, o.Encode(), Context{})
					if err == nil && r.Action != Redirect {
						t.Errorf("action %d; want the packet sent", r.Action)
					}
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			if tt.heard {
				send(cable(2, 1, 1, answerTo(2).Encode()))
				send(cable(2, 4, 1, answerTo(2).Encode()))
			}
			before := ga.counters(t)["edge-out probe"]
			send(overlay(1, 2, 1, udpPacket(strings.Repeat("x", tt.size), from("120.1.0.1")).Encode()))
			if got := ga.counters(t)["edge-out probe"] - before; got != tt.want {
				t.Errorf("%d clones; want %d", got, tt.want)
			}
		})
	}
}

// Of a GSO packet no clone is sent, however long a probe is overdue: each of its segments would be
// a probe with the same number.
func TestNoCloneOfGSO(t *testing.T) {
	withXDP(t)
	ga := load(t, 1, 1)
	s := state(1, 1)
	s.Settings.Edge = uint32(uplink.index)
	ga.Apply(t, s)
	ga.answered(t, func(p *bpf.PelagoPath) { p.Ring[p.Sequence%16].Sent = 1 })
	attach(t, ga.EdgeOut, ebpf.AttachTCXEgress)
	tcx := attach(t, ga.UplinkIn, ebpf.AttachTCXIngress)
	mac, err := uplink.ns.MAC("un0")
	if err != nil {
		t.Fatal(err)
	}
	frame := overlay(1, 2, 1, udpPacket(strings.Repeat("x", 100), from("120.1.0.1")).Encode()).Encode()
	copy(frame, mac)
	for _, tt := range []struct {
		what    string
		segment uint16 // size; 0: no GSO
		clones  uint64
	}{{"one packet", 0, 1}, {"three segments", 60, 0}} {
		ga.answered(t, func(p *bpf.PelagoPath) { p.Ring[p.Sequence%16].Sent = 1 })
		before := ga.counters(t)
		err := uplink.ns.Do(func() error { return sendSegments("peer", frame, tt.segment) })
		if errors.Is(err, unix.EINVAL) && tt.segment > 0 && !tcx {
			t.Log("packet sockets of Linux before 6.2 send no GSO packets of UDP")
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		await.True(t, tt.what+" is switched", func() bool { return ga.counters(t)["uplink-in switched"] > before["uplink-in switched"] })
		if got := ga.counters(t)["edge-out probe"] - before["edge-out probe"]; got != tt.clones {
			t.Errorf("%s: %d clones; want %d", tt.what, got, tt.clones)
		}
	}
}

// attach attaches a program to the uplink until the test ends: by TCX, before Linux 6.6 by a clsact
// filter.
func attach(t *testing.T, program *ebpf.Program, at ebpf.AttachType) (tcx bool) {
	t.Helper()
	do := func(f func() error) {
		t.Helper()
		if err := uplink.ns.Do(f); err != nil {
			t.Fatal(err)
		}
	}
	do(func() error {
		l, err := link.AttachTCX(link.TCXOptions{Interface: uplink.index, Program: program, Attach: at})
		if tcx = !errors.Is(err, ebpf.ErrNotSupported); tcx {
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			return err
		}
		qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: uplink.index, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0)}}
		if err := netlink.QdiscAdd(qdisc); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
		filter := &netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: uplink.index, Parent: netlink.HANDLE_MIN_INGRESS, Priority: 1, Handle: 1, Protocol: unix.ETH_P_ALL},
			Fd:          program.FD(), Name: "test", DirectAction: true,
		}
		if at == ebpf.AttachTCXEgress {
			filter.Parent = netlink.HANDLE_MIN_EGRESS
		}
		t.Cleanup(func() { do(func() error { return netlink.FilterDel(filter) }) })
		return netlink.FilterReplace(filter)
	})
	return tcx
}

// sendSegments sends an Ethernet frame with UDP in IPv4 by a device, as a GSO packet if segment is
// its size.
func sendSegments(device string, frame []byte, segment uint16) error {
	const udpAt = 14 + 20
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
		return err
	}
	header := make([]byte, 10) // struct virtio_net_hdr
	if segment > 0 {
		header[0], header[1] = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM, unix.VIRTIO_NET_HDR_GSO_UDP_L4
		// lengths and offsets: header, segment, UDP, its checksum
		for i, v := range []uint16{udpAt + 8, segment, udpAt, 6} {
			binary.NativeEndian.PutUint16(header[2+2*i:], v)
		}
	}
	peer, err := net.InterfaceByName(device)
	if err != nil {
		return err
	}
	return unix.Sendto(fd, append(header, frame...), 0, &unix.SockaddrLinklayer{Ifindex: peer.Index, Protocol: 0x0008, Halen: 6})
}
