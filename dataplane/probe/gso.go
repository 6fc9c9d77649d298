package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/dataplane/liveness"
)

const (
	// gsoEvery is the time between two GSO probes of a path on which they pass, gsoAgain while they
	// are lost.
	gsoEvery = 30 * time.Second
	gsoAgain = 5 * time.Second
	// gsoPatience bounds the way through the node's own stack.
	gsoPatience = time.Second
	// gsoMissing is the number of consecutive losses that count.
	gsoMissing = 3
	// gsoSegment is the length of a segment's payload, bytes.
	gsoSegment = 600
)

// gso is the state machine of one path's GSO probes.
type gso struct {
	lost   bool
	misses int
	next   time.Time
	// under: a probe is under way since sent, and the counters were these before.
	under          bool
	sent           time.Time
	handed, passed uint16
}

// waits reports whether observe has something to do.
func (g *gso) waits(now time.Time) bool { return g.under || !now.Before(g.next) }

// observe evaluates the counters, and reports whether a probe is to be sent now.
func (g *gso) observe(p liveness.LargeProbe, now time.Time) (due bool) {
	if g.next.IsZero() { // spreads those of many paths
		g.next = now.Add(rand.N(gsoAgain))
	}
	switch {
	case !g.under:
	case p.GSOPassed != g.passed:
		g.under, g.lost, g.misses, g.next = false, false, 0, now.Add(gsoEvery)
	case now.Sub(g.sent) < gsoPatience:
	case p.GSOHanded == g.handed: // it did not get as far as the stack: no evidence
		g.under, g.next = false, now.Add(gsoEvery)
	default:
		g.under, g.misses, g.next = false, g.misses+1, now
		if g.misses >= gsoMissing {
			g.lost, g.next = true, now.Add(gsoAgain)
		}
	}
	if g.under || now.Before(g.next) {
		return false
	}
	g.under, g.sent, g.handed, g.passed = true, now, p.GSOHanded, p.GSOPassed
	return true
}

// Offsets in GSOFrame, and what the header in front of it has (linux/virtio_net.h).
const (
	ipHeader, tcpHeader = 20, 20
	virtioHeader        = 10
	needsChecksum       = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM
	gsoTCPv4            = 1 // VIRTIO_NET_HDR_GSO_TCPV4
	tcpChecksumAt       = 16
)

// GSOFrame returns the frame that edge_out turns into a GSO probe, with the peer's outer address as
// IPv4 destination: a TCP packet of two segments behind a struct virtio_net_hdr.
func GSOFrame(peer netip.Addr) []byte {
	b := make([]byte, 0, virtioHeader+ethernet+ipHeader+tcpHeader+2*gsoSegment)
	b = append(b, needsChecksum, gsoTCPv4)
	for _, field := range []uint16{ethernet + ipHeader + tcpHeader, gsoSegment, ethernet + ipHeader, tcpChecksumAt} {
		b = binary.NativeEndian.AppendUint16(b, field)
	}
	b = append(b, make([]byte, 12)...) // MAC addresses
	b = append(b, 0x08, 0x00, 0x45, 0)
	b = binary.BigEndian.AppendUint16(b, ipHeader+tcpHeader+2*gsoSegment)
	b = append(b, 0, 0, 0x40, 0, 64, unix.IPPROTO_TCP, 0, 0)
	a := peer.As4()
	b = append(append(b, a[:]...), a[:]...)
	b = append(b, make([]byte, 12)...) // ports, numbers
	b = append(b, tcpHeader/4<<4, 0x10)
	return b[:cap(b)]
}

// SendGSO sends a GSO probe for peer on pelago0, whose interface index is edge.
func (s *Sender) SendGSO(edge int, peer netip.Addr) error {
	to := &unix.SockaddrLinklayer{Ifindex: edge, Protocol: 0x0008 /* ETH_P_IP in network order */, Halen: 6}
	if err := unix.Sendto(s.gso, GSOFrame(peer), 0, to); err != nil {
		return fmt.Errorf("send a GSO probe to %s: %w", peer, err)
	}
	return nil
}

// openSocket opens a packet socket with a mark; header: its frames begin with a struct
// virtio_net_hdr.
func openSocket(mark uint32, header bool) (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open a packet socket for probes: %w", err)
	}
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(mark))
	if err == nil && header {
		err = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1)
	}
	if err != nil {
		return -1, errors.Join(fmt.Errorf("set up the socket for probes: %w", err), unix.Close(fd))
	}
	return fd, nil
}
