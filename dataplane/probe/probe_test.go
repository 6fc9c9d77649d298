package probe

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pelago-net/pelago/dataplane/loader"
	"github.com/pelago-net/pelago/test/packet"
)

// What the program makes of the frame is tested by test/packet (TestProbeIsSent), with a real device by
// test/netns/clusters.
func TestFrame(t *testing.T) {
	peer := netip.MustParseAddr("172.16.1.2")
	frame := Frame(peer, 250*time.Millisecond)
	want := packet.Frame(make([]byte, 208-14))
	clear(want[:12]) // MAC addresses do not matter
	want[14], want[64] = 0x45, 250
	copy(want[14+16:], []byte{172, 16, 1, 2})
	if diff := cmp.Diff(want, frame); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestEvery(t *testing.T) {
	for _, tt := range []struct {
		path loader.Path
		want time.Duration
	}{
		{loader.Path{Used: time.Hour}, Idle},
		{loader.Path{Used: time.Second}, Busy},
		{loader.Path{Used: time.Second, SRTT: 79 * time.Millisecond}, Busy},
		{loader.Path{Used: time.Second, SRTT: 160 * time.Millisecond}, 20 * time.Millisecond},
		{loader.Path{Used: time.Hour, SRTT: time.Second}, Idle},
	} {
		if got := every(tt.path); got != tt.want {
			t.Errorf("used %s ago, RTT %s: every %s; want %s", tt.path.Used, tt.path.SRTT, got, tt.want)
		}
	}
}

func TestLargeFrame(t *testing.T) {
	frame := LargeFrame(netip.MustParseAddr("172.16.1.2"), 250*time.Millisecond, 1390)
	want := packet.Frame(make([]byte, 1390))
	clear(want[:12])
	want[14] = 250
	copy(want[14+16:], []byte{172, 16, 1, 2})
	if diff := cmp.Diff(want, frame); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
