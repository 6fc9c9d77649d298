package main

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A pair of datagram sockets stands in for the device.
func TestRelay(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	n := 0
	r := &relay{tun: fds[0], delay: 50 * time.Millisecond, drop: func() bool { n++; return n == 2 }}
	for _, text := range []string{"one", "two", "three"} {
		if _, err := unix.Write(fds[1], []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	begin := time.Now()
	if err := r.take(); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 100)
	r.give(begin.Add(40 * time.Millisecond))
	if n, err := unix.Read(fds[1], buffer); err == nil {
		t.Errorf("%q is given before its time", buffer[:n])
	}
	if err := r.wait(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took < 45*time.Millisecond {
		t.Errorf("waited %v, want 50 ms", took)
	}
	r.give(time.Now().Add(time.Millisecond))
	for _, want := range []string{"one", "three"} {
		n, err := unix.Read(fds[1], buffer)
		if err != nil || string(buffer[:n]) != want {
			t.Errorf("got %q, %v, want %q", buffer[:max(n, 0)], err, want)
		}
	}
	if len(r.waiting) != 0 || len(r.free) == 0 {
		t.Errorf("%d packets wait, %d buffers are free", len(r.waiting), len(r.free))
	}
}

func TestBadUse(t *testing.T) {
	for _, args := range [][]string{nil, {"relay0", "soon", "0"}, {"relay0", "1ms", "much"}} {
		if err := run(args); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
}
