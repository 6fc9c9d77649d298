package main

import (
	"context"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestLosses(t *testing.T) {
	sent := []int64{10, 20, 30, 40, 50, 60}
	for name, tt := range map[string]struct {
		answered []bool
		want     []loss
	}{
		"none":                 {[]bool{true, true, true, true, true, true}, nil},
		"one in the middle":    {[]bool{true, true, false, true, true, true}, []loss{{From: 30, Until: 40, Count: 1}}},
		"two runs":             {[]bool{false, true, false, false, true, true}, []loss{{From: 10, Until: 20, Count: 1}, {From: 30, Until: 50, Count: 2}}},
		"to the end":           {[]bool{true, true, true, true, false, false}, []loss{{From: 50, Until: 60, Count: 2, Open: true}}},
		"all":                  {make([]bool, 6), []loss{{From: 10, Until: 60, Count: 6, Open: true}}},
		"the last one of them": {[]bool{true, true, true, true, true, false}, []loss{{From: 60, Until: 60, Count: 1, Open: true}}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, losses(sent, tt.answered)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// echoes starts an echo of datagrams, of which none come back while silent reports it, and of
// connections.
func echoes(t *testing.T, silent func() bool) (address string, listener net.Listener) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.ListenPacket("udp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close(); conn.Close() })
	go sendBackLines(listener)
	go sendBack(&muted{conn, silent})
	return listener.Addr().String(), listener
}

type muted struct {
	net.PacketConn
	silent func() bool
}

func (m *muted) WriteTo(b []byte, to net.Addr) (int, error) {
	if m.silent() {
		return len(b), nil
	}
	return m.PacketConn.WriteTo(b, to)
}

func TestLoad(t *testing.T) {
	start := time.Now()
	from, until := start.Add(200*time.Millisecond), start.Add(400*time.Millisecond)
	address, _ := echoes(t, func() bool { now := time.Now(); return now.After(from) && now.Before(until) })
	ctx, cancel := context.WithTimeout(t.Context(), 600*time.Millisecond)
	defer cancel()
	p := loadPlan{targets: []string{address}, flows: 2, interval: 5 * time.Millisecond, connections: 3, every: 20 * time.Millisecond, dials: 50, patience: time.Second, awake: awake{new(atomic.Int64)}}
	got, err := p.run(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range got.Flows {
		var longest loss
		for _, l := range f.Losses {
			if l.Count > longest.Count {
				longest = l
			}
		}
		if outage := time.Duration(longest.Until - longest.From); outage < 150*time.Millisecond || outage > 350*time.Millisecond {
			t.Errorf("outage of %v after %d losses, want about the 200 ms of silence", outage, longest.Count)
		}
		if f.Answered == 0 || f.Answered >= f.Sent {
			t.Errorf("%d of %d datagrams are answered, want some but not all", f.Answered, f.Sent)
		}
	}
	if c := got.Connections; c.Opened != 3 || len(c.Broken) > 0 || c.Echoes < 15 {
		t.Errorf("connections: %+v, want 3 that work", c)
	}
	if got.Dials.Done < 10 || len(got.Dials.Failed) > 0 {
		t.Errorf("dials: %+v, want about 30 that work", got.Dials)
	}
}

func TestLoadWithoutServer(t *testing.T) {
	p := loadPlan{targets: []string{"127.0.0.1:1"}, flows: 1, interval: 10 * time.Millisecond, connections: 2, every: time.Second, dials: 20, patience: time.Second, awake: awake{new(atomic.Int64)}}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	got, err := p.run(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if f := got.Flows[0]; f.Answered != 0 || len(f.Losses) != 1 || !f.Losses[0].Open || f.Losses[0].Count != f.Sent {
		t.Errorf("flow: %+v, want all of it lost", f)
	}
	if len(got.Connections.Broken) != 2 || len(got.Dials.Failed) == 0 || got.Dials.Done != 0 {
		t.Errorf("connections: %+v, dials: %+v, want none that work", got.Connections, got.Dials)
	}
}

// A connection whose echo does not come in time is broken.
func TestLoadPatience(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() // nobody accepts: the kernel does, and nothing comes back
	p := loadPlan{patience: 500 * time.Millisecond, every: time.Second, awake: awake{new(atomic.Int64)}}
	// until then it sleeps
	time.AfterFunc(time.Second, func() { p.awake.ticks.Add(int64(p.patience / awakeTick)) })
	begin := time.Now()
	c := connections{plan: p}
	c.hold(t.Context(), listener.Addr().String(), func() {})
	if len(c.result.Broken) != 1 || c.result.Opened != 0 {
		t.Errorf("%+v, want one broken", c.result)
	}
	if took := time.Since(begin); took < time.Second {
		t.Errorf("broken after %v: the time in which the program stood still counts", took)
	}
}

// A server whose queue is full swallows packets: the attempt is repeated for as long as the program
// stands still.
func TestDialPatience(t *testing.T) {
	p := loadPlan{patience: 200 * time.Millisecond, awake: awake{new(atomic.Int64)}}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := listener.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { err = syscall.Listen(int(fd), 0) }); err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	first, err := p.dial(address)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	// until then it sleeps
	time.AfterFunc(500*time.Millisecond, func() { p.awake.ticks.Add(int64(p.patience / awakeTick)) })
	begin := time.Now()
	if _, err := p.dial(address); err == nil || time.Since(begin) < 500*time.Millisecond {
		t.Errorf("nobody accepts: %v after %v, want no earlier end than after 500 ms", err, time.Since(begin))
	}
	listener.Close()
	// it would not end if it were repeated: no time passes for it
	if _, err := p.dial(address); err == nil {
		t.Error("no error of what is refused")
	}
}

func TestAwake(t *testing.T) {
	a := awake{new(atomic.Int64)}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	a.start(ctx)
	if got := a.now(); got < 100*time.Millisecond || got > 500*time.Millisecond {
		t.Errorf("awake for %v of 500 ms", got)
	}
}
