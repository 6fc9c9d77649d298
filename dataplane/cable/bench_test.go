package cable

import (
	"fmt"
	"sync"
	"testing"
	"time"
)

// BenchmarkThroughput sends four TCP streams from one gateway to another, spread over the tunnels. Both gateways share this
// machine's cores, so it compares wires and tunnels with each other; it does not say what a gateway of its own carries.
func BenchmarkThroughput(b *testing.B) {
	for _, tunnels := range []int{1, 2, 4} {
		b.Run(fmt.Sprintf("wireguard-%d", tunnels), func(b *testing.B) {
			s := wireguardSet(b, 2, tunnels)
			s.join(b)
			streams(b, s.gateways[0], s.gateways[1])
		})
	}
	b.Run("ipsec-1", func(b *testing.B) {
		s, _ := ipsecSet(b, 2)
		s.join(b)
		streams(b, s.gateways[0], s.gateways[1])
	})
}

func streams(b *testing.B, from, to *gateway) {
	const n, size = 4, 32 << 20
	tunnels := len(from.devices.Peers[to.local.Fabric])
	b.SetBytes(n * size)
	for b.Loop() {
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				if err := transfer(from, to, size, i%tunnels); err != nil {
					b.Error(err)
				}
			})
		}
		all.Wait()
	}
}

// BenchmarkWireGuardRekey shows what a change of session keys costs, which WireGuard makes every 120 s (a constant of the
// protocol): run it with -benchtime 1x, it takes five minutes.
func BenchmarkWireGuardRekey(b *testing.B) {
	s := wireguardSet(b, 2, 1)
	s.join(b)
	from, to := s.gateways[0], s.gateways[1]
	for b.Loop() {
		handshakes := map[time.Time]bool{}
		there, back := stream(b, from, to), stream(b, to, from)
		// Long enough for two changes of keys.
		for end := time.Now().Add(290 * time.Second); time.Now().Before(end); time.Sleep(time.Second) {
			handshakes[from.status(b, to).Handshake] = true
		}
		sent, lost := there()
		sentBack, lostBack := back()
		b.ReportMetric(float64(sent+sentBack), "datagrams")
		b.ReportMetric(float64(len(lost)+len(lostBack)), "lost")
		b.ReportMetric(float64(len(handshakes)-1), "rekeys")
	}
}
