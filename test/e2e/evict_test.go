package e2e

import (
	"testing"
	"time"

	"github.com/pelago-net/pelago/test/await"
)

// evictedWithin bounds the time from the command to the last packet.
const evictedWithin = 5 * time.Second

// testEvicted rejects g2, under traffic, and accepts it again, which connects it; then it evicts g2,
// whose packets are not forwarded any more, though all runs there as before.
func testEvicted(t *testing.T, s *clusterset) {
	ctx := t.Context()
	l := s.needLoad(t)
	const rate = 100 // a second
	ends := func(verb ...string) {
		t.Helper()
		datagrams := s.ping(t, l.client, rate, l.sink.String()+":7")
		started := time.Now()
		await.True(t, "datagrams are answered for a second", func() bool { return time.Since(started) > time.Second })
		command := time.Since(started)
		_, err := s.Pelago(ctx, append([]string{"clusters"}, append(verb, "--context", "hub")...)...)
		must(t, err)
		returned := time.Since(started)
		await.True(t, "as long as packets may pass, and 2 s more", func() bool { return time.Since(started) > command+evictedWithin+2*time.Second })
		p := finish[pings](t, datagrams)
		last := time.Duration(p.FirstLost) * time.Second / rate
		t.Logf("%v: %d sent, %d lost from number %d on: the last was answered %v after the command began, which took %v",
			verb, p.Sent, p.Lost, p.FirstLost, (last - command).Round(10*time.Millisecond), (returned - command).Round(10*time.Millisecond))
		if p.Lost == 0 || last > command+evictedWithin || p.Sent-p.FirstLost > p.Lost+rate/10 {
			t.Errorf("%v: %+v; want all lost from %v after the command on", verb, p, evictedWithin)
		}
	}
	ends("reject", "g2")
	_, err := s.Pelago(ctx, "clusters", "accept", "g2", "--context", "hub")
	must(t, err)
	must(t, s.Connected(ctx))
	ends("evict", "g2", "--yes")
}
