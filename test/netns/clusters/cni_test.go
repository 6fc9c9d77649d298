package clusters

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/pelago-net/pelago/dataplane"
)

// Whatever devices a CNI gives pods, traffic passes in every datapath and no packet is lost. Ports of
// a switch are always strict.
func TestCNIs(t *testing.T) {
	for _, tt := range []struct {
		cni      CNI
		datapath dataplane.Datapath
	}{{SharedVeth, dataplane.Strict}, {SharedVeth, dataplane.Hybrid}, {SharedVeth, dataplane.Fast}, {Switch, dataplane.Strict}} {
		t.Run(fmt.Sprintf("%s, %s", tt.cni, tt.datapath), func(t *testing.T) {
			w := newTown(t, Options{Datapath: tt.datapath, CNI: tt.cni})
			t.Run("no packet is lost", w.noLoss)
			if tt.datapath != dataplane.Strict {
				t.Run("established connections bypass the stack", w.bypassed)
			}
			t.Run("all backends are reached", w.backends)
			t.Run("headless pods", w.headless)
		})
	}
}

// A stream of datagrams and its echoes, in both directions.
func (w *town) noLoss(t *testing.T) {
	for name, way := range map[string]struct {
		from *Pod
		to   netip.Addr
	}{"there": {w.client[3], w.server[3].Global}, "back": {w.server[2], w.client[3].Global}, "gateways": {w.client[1], w.server[1].Global}} {
		stop := stream(t, way.from, netip.AddrPortFrom(way.to, 53))
		time.Sleep(2 * time.Second)
		if sent, lost := stop(); len(lost) > 0 || sent < 100 {
			t.Errorf("%s: %d of %d datagrams are lost", name, len(lost), sent)
		}
	}
}
