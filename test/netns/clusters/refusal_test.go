package clusters

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestRefused: a service of the other cluster refuses sockets of a pod and of the node: at a port
// that it lacks, and without a backend. All nodes have one kernel, so their packets are encapsulated
// ones to all programs.
func TestRefused(t *testing.T) {
	t.Parallel()
	s := New(t, Options{Nodes: 2, Gateways: 1})
	one, two := s.Clusters[1], s.Clusters[2]
	client, neighbour := one.Nodes[1].AddPod(t), two.Nodes[0].AddPod(t)
	vip := two.Expose(80, []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP})
	s.Apply(t)
	for who, from := range map[string]place{"pod": client, "node": client.Node, "pod at its own gateway": neighbour} {
		for what, port := range map[string]uint16{"no backend": 80, "no such port": 81} {
			to := netip.AddrPortFrom(vip, port)
			if c, err := dial(from, "tcp", to); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("%s, TCP from the %s: %v, %v", what, who, c, err)
			}
			for _, size := range []int{28, 29, 1000, 1422} { // shorter ones: bpf/README.md, decision 15
				c, err := dial(from, "udp", to)
				must(t, err)
				_, err = c.Write(make([]byte, size))
				must(t, err)
				must(t, c.SetReadDeadline(time.Now().Add(3*time.Second)))
				if _, err = c.Read(make([]byte, 10)); !errors.Is(err, unix.ECONNREFUSED) {
					t.Errorf("%s, UDP of %d bytes from the %s: %v", what, size, who, err)
				}
				must(t, c.Close())
			}
		}
	}
}
