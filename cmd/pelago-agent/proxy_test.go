package main

import (
	"io"
	"net"
	"sync"
	"testing"
)

// line is a TCP connection to a server that can be cut and healed: the hub as the members see it.
type line struct {
	t       testing.TB
	address string // host:port that members dial
	target  string

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]bool
}

func newLine(t testing.TB, target string) *line {
	t.Helper()
	l := &line{t: t, target: target, address: "127.0.0.1:0", conns: map[net.Conn]bool{}}
	l.heal()
	l.address = l.listener.Addr().String()
	return l
}

// heal lets connections through.
func (l *line) heal() {
	l.t.Helper()
	listener, err := net.Listen("tcp", l.address)
	if err != nil {
		l.t.Fatal(err)
	}
	l.mu.Lock()
	l.listener = listener
	l.mu.Unlock()
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go l.join(c)
		}
	}()
}

// cut refuses new connections and breaks those that are open.
func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.listener.Close()
	for c := range l.conns {
		_ = c.Close()
	}
}

func (l *line) join(near net.Conn) {
	far, err := net.Dial("tcp", l.target)
	if err != nil {
		_ = near.Close()
		return
	}
	l.mu.Lock()
	l.conns[near], l.conns[far] = true, true
	l.mu.Unlock()
	var done sync.WaitGroup
	done.Go(func() { _, _ = io.Copy(far, near); _ = far.Close() })
	done.Go(func() { _, _ = io.Copy(near, far); _ = near.Close() })
	done.Wait()
	l.mu.Lock()
	delete(l.conns, near)
	delete(l.conns, far)
	l.mu.Unlock()
}
