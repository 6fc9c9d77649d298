package apiserver

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
)

// Line is a TCP connection to a server that can be cut and healed: the network path of a remote
// client.
type Line struct {
	t       testing.TB
	config  *rest.Config
	address string // host:port that is dialled
	target  string

	mu       sync.Mutex
	listener net.Listener  // nil while cut
	ended    chan struct{} // closed when the listener accepts no more
	conns    map[net.Conn]bool
}

// NewLine leads to the server of config and ends with the test.
func NewLine(t testing.TB, config *rest.Config) *Line {
	t.Helper()
	server, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	l := &Line{t: t, config: config, target: server.Host, address: "127.0.0.1:0", conns: map[net.Conn]bool{}}
	l.Heal()
	t.Cleanup(l.Cut)
	l.address = l.listener.Addr().String()
	return l
}

// Address is the host:port of the near end.
func (l *Line) Address() string { return l.address }

// Config is access to the server over the line, with the rights of the config that the line was
// made for.
func (l *Line) Config() *rest.Config {
	c := rest.CopyConfig(l.config)
	c.Host = "https://" + l.address
	return c
}

// Heal lets connections through.
func (l *Line) Heal() {
	l.t.Helper()
	listener, err := net.Listen("tcp", l.address)
	if err != nil {
		l.t.Fatal(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	ended := make(chan struct{})
	l.listener, l.ended = listener, ended
	go func() {
		defer close(ended)
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			go l.join(listener, near)
		}
	}()
}

// Cut refuses new connections and breaks those that are open.
func (l *Line) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.listener == nil {
		return
	}
	closeAll(l.listener)
	<-l.ended // the kernel completes connections until Accept has returned
	l.listener = nil
	for c := range l.conns {
		closeAll(c)
	}
}

// join copies both ways until one end or a cut closes both.
func (l *Line) join(of net.Listener, near net.Conn) {
	far, err := net.Dial("tcp", l.target)
	if err != nil {
		closeAll(near)
		return
	}
	l.mu.Lock()
	if l.listener != of { // cut while it dialled
		l.mu.Unlock()
		closeAll(near, far)
		return
	}
	l.conns[near], l.conns[far] = true, true
	l.mu.Unlock()
	var done sync.WaitGroup
	for to, from := range map[net.Conn]net.Conn{far: near, near: far} {
		done.Go(func() {
			_, _ = io.Copy(to, from) // however it ends, both ends close
			closeAll(near, far)
		})
	}
	done.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, near)
	delete(l.conns, far)
}

// closeAll closes connections that are no longer needed.
func closeAll(all ...io.Closer) {
	for _, c := range all {
		_ = c.Close() // it has ended already
	}
}
