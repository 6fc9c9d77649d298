package natt

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	mathrand "math/rand/v2"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// cookieSlot is the period of our own clock for which a cookie is made; it is good in the following one, too.
const cookieSlot = 10 * time.Second

// Config says who asks, and with which key.
type Config struct {
	// Name is the name by which peers know this gateway, unique in the clusterset.
	Name string
	// Port is the UDP port for others' requests; 0: DefaultPort.
	Port uint16
	// PSK is the key of the clusterset.
	PSK []byte
	// Changed is called with every new verdict and every change of one, from one goroutine, in order, for each change once.
	// A peer that is gone gets no call. It must not call Close. Optional.
	Changed func(name string, v Verdict)
	// Timing: zero fields take the default.
	Timing Timing
	// Log is for what an operator can do nothing about; nil: slog.Default().
	Log *slog.Logger
}

// Discovery finds out how peers are reached and answers them. Its methods may be called from any goroutine.
type Discovery struct {
	name    string
	own     id
	codec   codec
	timing  Timing
	changed func(string, Verdict)
	log     *slog.Logger
	counts  counters

	servers, clients []*socket
	cookieKey        [32]byte
	start            time.Time
	wake             chan struct{}
	done             chan struct{}
	running          sync.WaitGroup
	close            sync.Once

	mu     sync.Mutex
	peers  map[string]*watched
	ids    map[id]string
	byAddr map[netip.Addr][]string // peers that publish an address
	limits *limits
}

// watched is a track with when to look at it again, so that a message costs work for its own peer only.
type watched struct {
	*track
	dirty   bool      // something came in
	at      time.Time // else: look then
	known   bool      // verdict was told
	verdict Verdict
}

// Open binds the port, on all addresses, and begins to answer. Peers come with Set.
func Open(c Config) (*Discovery, error) {
	if c.Name == "" {
		return nil, errors.New("open NAT discovery: this gateway has no name")
	}
	code, err := newCodec(c.PSK)
	if err != nil {
		return nil, fmt.Errorf("open NAT discovery: %w", err)
	}
	d := &Discovery{
		name: c.Name, own: code.id(c.Name), codec: code, timing: c.Timing.withDefaults(), changed: c.Changed, log: c.Log,
		start: time.Now(), wake: make(chan struct{}, 1), done: make(chan struct{}),
		peers: map[string]*watched{}, ids: map[id]string{}, byAddr: map[netip.Addr][]string{}, limits: newLimits(),
	}
	if d.log == nil {
		d.log = slog.Default()
	}
	if d.changed == nil {
		d.changed = func(string, Verdict) {}
	}
	rand.Read(d.cookieKey[:]) // never fails (crypto/rand, Go 1.24)
	if c.Port == 0 {
		c.Port = DefaultPort
	}
	if err := d.bind(c.Port); err != nil {
		return nil, errors.Join(fmt.Errorf("open NAT discovery: %w", err), d.closeSockets())
	}
	for _, s := range d.servers {
		d.running.Go(func() { d.receive(s, d.serve) })
	}
	for _, s := range d.clients {
		d.running.Go(func() { d.receive(s, d.take) })
	}
	d.running.Go(d.run)
	return d, nil
}

// bind opens a socket for others' requests and one of its own for our requests. That one has a port which nobody is told:
// so our requests open no way through a NAT box for the peer's, and an answer to the peer means that it really can reach us.
func (d *Discovery) bind(port uint16) error {
	for _, network := range []string{"udp4", "udp6"} {
		server, err := listen(network, port)
		if network == "udp6" && (errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL)) {
			return nil // a kernel without IPv6
		}
		if errors.Is(err, unix.EADDRINUSE) {
			return fmt.Errorf("%w: end the other program (another gateway daemon on this node?) or set gateway.submariner.io/natt-discovery-port", err)
		}
		if err != nil {
			return err
		}
		d.servers = append(d.servers, server)
		client, err := listen(network, 0)
		if err != nil {
			return err
		}
		d.clients = append(d.clients, client)
	}
	return nil
}

// Set says which peers there are. Peers that are the same as before are not disturbed. The error names those that are
// left out; the others are taken.
func (d *Discovery) Set(peers []Peer) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	var errs []error
	want := map[string]Peer{}
	for _, p := range peers {
		_, twice := want[p.Name]
		switch {
		case p.Name == "" || p.Port == 0:
			errs = append(errs, fmt.Errorf("look for gateway %q at port %d: it needs a name and a port", p.Name, p.Port))
		case p.Name == d.name:
			errs = append(errs, fmt.Errorf("look for gateway %q: this is the own name", p.Name))
		case twice:
			errs = append(errs, fmt.Errorf("look for gateway %q: two have this name, the first one is taken", p.Name))
		default:
			p.Private, p.Public = p.Private.Unmap(), p.Public.Unmap()
			want[p.Name] = p
		}
	}
	clear(d.ids)
	clear(d.byAddr)
	for name, p := range want {
		w := d.peers[name]
		if w == nil {
			w = &watched{track: newTrack(p, d.timing, now), dirty: true}
			d.peers[name] = w
		} else if w.peer != p {
			w.set(p, now)
			w.dirty = true
		}
		d.ids[d.codec.id(name)] = name
		for _, c := range w.candidates {
			d.byAddr[c.at.Addr()] = append(d.byAddr[c.at.Addr()], name)
		}
	}
	maps.DeleteFunc(d.peers, func(name string, _ *watched) bool { _, ok := want[name]; return !ok })
	d.poke()
	return errors.Join(errs...)
}

// Verdicts returns what is known of each peer.
func (d *Discovery) Verdicts() map[string]Verdict {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make(map[string]Verdict, len(d.peers))
	for name, w := range d.peers {
		out[name] = w.verdict
		if !w.known { // set a moment ago
			out[name] = w.judge(time.Now())
		}
	}
	return out
}

// Recheck checks all verdicts now, as after a change of this node's own addresses or routes.
func (d *Discovery) Recheck() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range d.peers {
		w.recheck(time.Now())
		w.dirty = true
	}
	d.poke()
}

// Close ends everything and frees the port.
func (d *Discovery) Close() error {
	var err error
	d.close.Do(func() {
		close(d.done)
		err = d.closeSockets()
		d.running.Wait()
	})
	return err
}

func (d *Discovery) closeSockets() error {
	var errs []error
	for _, s := range append(append([]*socket(nil), d.servers...), d.clients...) {
		errs = append(errs, s.conn.Close())
	}
	return errors.Join(errs...)
}

// poke makes run step without delay.
func (d *Discovery) poke() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

func (d *Discovery) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-d.done:
			return
		case <-d.wake:
		case <-timer.C:
		}
		now := time.Now() // one for all, so that no time that is due falls between two of them
		due, probes := d.step(now)
		d.send(probes)
		changes, soonest := d.judge(now, due)
		for _, c := range changes {
			d.changed(c.peer, c.verdict)
		}
		timer.Reset(time.Until(soonest))
	}
}

// step steps the peers of which something came in or whose time has come. It returns them, and what to ask them.
func (d *Discovery) step(now time.Time) (due []*watched, probes []probe) {
	d.mu.Lock()
	defer d.mu.Unlock()
	draw := func() (n nonce) { rand.Read(n[:]); return n } // never fails
	pause := func() time.Duration {
		return d.timing.Recheck - time.Duration(mathrand.Float64()*float64(d.timing.Recheck)/5)
	}
	for _, w := range d.peers {
		if w.dirty || !w.at.After(now) {
			w.dirty = false
			due = append(due, w)
			probes = append(probes, w.step(now, draw, pause)...)
		}
	}
	return due, probes
}

func (d *Discovery) send(probes []probe) {
	for _, p := range probes {
		err := d.ask(p)
		if err == nil {
			continue
		}
		d.mu.Lock()
		if w := d.peers[p.peer]; w != nil {
			w.unsent(p.nonce, cause(err).Error())
		}
		d.mu.Unlock()
	}
}

func (d *Discovery) ask(p probe) error {
	s := d.client(p.to.Addr())
	if s == nil {
		return errors.New("this node has no IPv6")
	}
	d.counts.add(sent)
	return s.write(d.codec.encode(message{kind: request, nonce: p.nonce, from: d.own, to: d.codec.id(p.peer), destination: p.to}), p.to, netip.Addr{})
}

// client is the socket for our requests to an address; nil if there is none of its family.
func (d *Discovery) client(to netip.Addr) *socket {
	for _, s := range d.clients {
		if s.v6 == to.Is6() {
			return s
		}
	}
	return nil
}

// cause is the kernel's word alone: the rest of the error names sockets, which change with every process.
func cause(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

// told is a verdict that is to be told.
type told struct {
	peer    string
	verdict Verdict
}

// judge notes the verdicts on peers that were stepped, and returns those that changed and when the next step is due.
func (d *Discovery) judge(now time.Time, stepped []*watched) ([]told, time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []told
	for _, w := range stepped {
		w.at = w.due(now)
		v := w.judge(now)
		if d.peers[w.peer.Name] == w && (!w.known || w.verdict != v) {
			out = append(out, told{w.peer.Name, v})
		}
		w.known, w.verdict = true, v
	}
	soonest := now.Add(d.timing.Recheck)
	for _, w := range d.peers {
		if w.at.Before(soonest) {
			soonest = w.at
		}
	}
	return out, soonest
}
