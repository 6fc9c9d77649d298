package clusters

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/pelago-net/pelago/test/await"
)

// listen opens a UDP socket at a place that receives from any address.
func listen(t *testing.T, at place, port uint16) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	must(t, at.Do(func() (err error) {
		c, err = net.ListenUDP("udp4", &net.UDPAddr{Port: int(port)})
		return err
	}))
	t.Cleanup(func() { must(t, c.Close()) })
	return c
}

// send sends a text from one socket until the other has received it, and returns the source that
// the other sees.
func send(t *testing.T, from *net.UDPConn, to netip.AddrPort, at *net.UDPConn, text string) (source netip.AddrPort) {
	t.Helper()
	await.True(t, fmt.Sprintf("%q arrives at %s", text, to), func() bool {
		_, err := from.WriteToUDPAddrPort([]byte(text), to)
		must(t, err)
		must(t, at.SetReadDeadline(time.Now().Add(time.Second)))
		for {
			b := make([]byte, 100)
			n, s, err := at.ReadFromUDPAddrPort(b)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return false
			}
			must(t, err)
			if string(b[:n]) == text { // else one that was sent again before
				source = netip.AddrPortFrom(s.Addr().Unmap(), s.Port())
				return true
			}
		}
	})
	return source
}

// mappings: a socket of a pod shows one address and port to all, and is reached there by pods that
// it did not address, of the other cluster and of its own, if that is allowed (RFC 4787 REQ-1,
// REQ-8, REQ-9).
func (w *town) mappings(t *testing.T) {
	one := w.Clusters[1]
	one.Mapped, one.Open = true, true
	w.Apply(t)
	defer func() {
		one.Mapped, one.Open = false, false
		w.Apply(t)
	}()
	a, neighbour := listen(t, w.client[1], 5555), listen(t, w.client[2], 6000)
	var b [4]*net.UDPConn
	for n := 1; n <= 3; n++ {
		b[n] = listen(t, w.server[n], 6000)
	}
	at := func(n int) netip.AddrPort { return netip.AddrPortFrom(w.server[n].Global, 6000) }
	shown := send(t, a, at(1), b[1], "to the first")
	if shown.Port()&^255 != w.client[1].Node.Blocks[0] {
		t.Errorf("shown as %s; want a port of block %d", shown, w.client[1].Node.Blocks[0])
	}
	if got := send(t, a, at(2), b[2], "to the second"); got != shown {
		t.Errorf("shown as %s to the first and as %s to the second", shown, got)
	}
	if got := send(t, b[3], shown, a, "unasked"); got != at(3) {
		t.Errorf("the third one's packet comes from %s", got)
	}
	if got := send(t, a, at(3), b[3], "answer"); got != shown {
		t.Errorf("the answer comes from %s; want %s", got, shown)
	}
	source := send(t, neighbour, shown, a, "from the same cluster")
	if source.Addr().As4()[3] > 8 || source.Port()&^255 != w.client[2].Node.Blocks[0] {
		t.Errorf("the neighbour is seen as %s", source)
	}
	if got := send(t, a, source, neighbour, "to the same cluster"); got != shown {
		t.Errorf("the neighbour sees %s; want %s", got, shown)
	}

	one.Open = false
	w.Apply(t)
	other, node := listen(t, w.server[2], 6001), w.client[1].Node
	before := node.Counters(t)["uplink-in drop-no-flow"]
	await.True(t, "a packet that nobody asked for is dropped", func() bool {
		_, err := other.WriteToUDPAddrPort([]byte("filtered"), shown)
		must(t, err)
		return node.Counters(t)["uplink-in drop-no-flow"] > before
	})
	if got := send(t, b[3], shown, a, "known"); got != at(3) {
		t.Errorf("a known one's packet comes from %s", got)
	}
}
