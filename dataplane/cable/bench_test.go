//go:build linux

package cable

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

// BenchmarkThroughput sends four TCP streams from one gateway to another, spread over the tunnels.
// Both gateways share this machine's cores, so it compares wires and tunnels with each other; it
// does not report what a gateway of its own carries.
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

// BenchmarkTunnels does the same over WireGuard with 1, 2 and 4 tunnels in turn, so that what else
// the machine does meets all alike, and reports the medians in MB/s and of each round's ratio to
// one tunnel.
func BenchmarkTunnels(b *testing.B) {
	numbers := []int{1, 2, 4}
	var sets []*set
	for _, tunnels := range numbers {
		s := wireguardSet(b, 2, tunnels)
		s.join(b)
		streamsOnce(b, s.gateways[0], s.gateways[1]) // warm up
		sets = append(sets, s)
	}
	rates, ratios := make([][]float64, len(numbers)), make([][]float64, len(numbers))
	for b.Loop() {
		for i, s := range sets {
			begin := time.Now()
			streamsOnce(b, s.gateways[0], s.gateways[1])
			rate := streamBytes / time.Since(begin).Seconds() / 1e6
			rates[i] = append(rates[i], rate)
			ratios[i] = append(ratios[i], rate/rates[0][len(rates[0])-1])
		}
	}
	b.ReportMetric(0, "ns/op")
	for i, n := range numbers {
		b.ReportMetric(median(rates[i]), fmt.Sprintf("MB/s-%d", n))
		if n > 1 {
			b.ReportMetric(median(ratios[i]), fmt.Sprintf("ratio-%d", n))
		}
	}
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// parallel streams and their bytes in all.
const (
	parallel    = 4
	streamBytes = parallel * 32 << 20
)

func streams(b *testing.B, from, to *gateway) {
	b.SetBytes(streamBytes)
	for b.Loop() {
		streamsOnce(b, from, to)
	}
}

func streamsOnce(b *testing.B, from, to *gateway) {
	b.Helper()
	tunnels := len(from.devices.Peers[to.local.Fabric])
	var all sync.WaitGroup
	for i := range parallel {
		all.Go(func() {
			if err := transfer(from, to, streamBytes/parallel, i%tunnels); err != nil {
				b.Error(err)
			}
		})
	}
	all.Wait()
}

// BenchmarkWireGuardRekey shows what a change of session keys costs, which WireGuard makes every
// 120 s (a constant of the protocol): run it with -benchtime 1x, it takes five minutes.
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
