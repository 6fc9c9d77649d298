//go:build linux

package natt

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	mathrand "math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Config of a Discovery.
type Config struct {
	// Name is the name by which peers know this gateway, unique in the clusterset.
	Name string
	// Port is the UDP port for requests of peers; 0: DefaultPort.
	Port uint16
	// PSK is the key of the clusterset.
	PSK []byte
	// Changed is called with every new result and once for every change, in order, from one
	// goroutine; not for removed peers. It must not call Close.
	Changed func(name string, v Reachability)
	// Timing: zero fields take the default.
	Timing Timing
	// Log; nil: slog.Default().
	Log *slog.Logger
}

// Discovery discovers how peers are reachable and answers their requests. Its methods may be called
// from any goroutine.
type Discovery struct {
	name    string
	own     id
	codec   codec
	timing  Timing
	changed func(string, Reachability)
	log     *slog.Logger

	servers, clients []*socket
	cookieKey        [32]byte
	start            time.Time
	wake             chan struct{}
	done             chan struct{}
	running          sync.WaitGroup
	limits           *limits
	close            sync.Once

	mu     sync.Mutex
	peers  map[string]*watched
	ids    map[id]string
	byAddr map[netip.Addr][]string // names of the peers that publish an address
}

// watched is a track that is stepped only when necessary, so the cost of a message does not depend
// on the number of peers.
type watched struct {
	*track
	dirty bool         // changed since the last step
	at    time.Time    // of the next step otherwise
	last  Reachability // last passed to Changed; zero: none
}

// Open binds the port on all addresses and begins to answer requests of the peers of Set.
func Open(c Config) (*Discovery, error) {
	if c.Name == "" {
		return nil, errors.New("open NAT discovery: this gateway has no name")
	}
	code, err := newCodec(c.PSK)
	if err != nil {
		return nil, fmt.Errorf("open NAT discovery: %w", err)
	}
	d := &Discovery{
		name: c.Name, own: code.id(c.Name), codec: code, timing: c.Timing.withDefaults(), changed: c.Changed,
		log: cmp.Or(c.Log, slog.Default()), start: time.Now(), wake: make(chan struct{}, 1), done: make(chan struct{}),
		peers: map[string]*watched{}, ids: map[id]string{}, byAddr: map[netip.Addr][]string{},
		limits: newLimits(),
	}
	rand.Read(d.cookieKey[:]) // never fails (crypto/rand, Go 1.24)
	if err := d.bind(cmp.Or(c.Port, DefaultPort)); err != nil {
		return nil, errors.Join(fmt.Errorf("open NAT discovery: %w", err), d.closeSockets())
	}
	for _, s := range d.servers {
		d.running.Go(func() { d.receive(s, d.serve) })
	}
	for _, s := range d.clients {
		d.running.Go(func() { d.receive(s, d.handleAnswer) })
	}
	d.running.Go(d.run)
	return d, nil
}

// bind opens a socket for requests of peers and one for our requests, for each family. The latter
// has another port, which is not published: our requests make no mapping in a NAT box for those of
// the peer, so an answer proves that the peer is reachable.
func (d *Discovery) bind(port uint16) error {
	for _, network := range []string{"udp4", "udp6"} {
		server, err := listen(network, port)
		switch {
		case network == "udp6" && (errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL)):
			return nil // a kernel without IPv6
		case errors.Is(err, unix.EADDRINUSE):
			return fmt.Errorf("%w: end the other program (another gateway daemon on this node?) or set gateway.submariner.io/natt-discovery-port", err)
		case err != nil:
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

// Set replaces the peers. Unchanged peers are not affected. Invalid ones are left out and named in
// the error.
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
			errs = append(errs, fmt.Errorf("discover gateway %q at port %d: it needs a name and a port", p.Name, p.Port))
		case p.Name == d.name:
			errs = append(errs, fmt.Errorf("discover gateway %q: this is the own name", p.Name))
		case twice:
			errs = append(errs, fmt.Errorf("discover gateway %q: two have this name, the first one is taken", p.Name))
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

// Reachability returns the result of each peer.
func (d *Discovery) Reachability() map[string]Reachability {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make(map[string]Reachability, len(d.peers))
	for name, w := range d.peers {
		out[name] = w.last
		if w.last == (Reachability{}) { // set, and not stepped yet
			out[name] = w.assess(time.Now())
		}
	}
	return out
}

// Recheck starts a round for all peers, e.g. after a change of this node's own addresses or routes.
func (d *Discovery) Recheck() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range d.peers {
		w.recheck(time.Now())
		w.dirty = true
	}
	d.poke()
}

// Close ends all goroutines and releases the ports.
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
	for _, s := range slices.Concat(d.servers, d.clients) {
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
	for next := time.Now(); ; {
		select {
		case <-d.done:
			return
		case <-d.wake:
		case <-time.After(time.Until(next)):
		}
		// the same for step and assess, so that no deadline passes between the two
		now := time.Now()
		stepped, probes := d.step(now)
		d.send(probes)
		var changes map[string]Reachability
		changes, next = d.assess(now, stepped)
		for name, v := range changes {
			d.changed(name, v)
		}
	}
}

// step steps the peers that are dirty or due. It returns them and their requests.
func (d *Discovery) step(now time.Time) (stepped []*watched, probes []probe) {
	d.mu.Lock()
	defer d.mu.Unlock()
	draw := func() (n nonce) { rand.Read(n[:]); return n } // never fails
	interval := func() time.Duration {
		return d.timing.Recheck - time.Duration(mathrand.Float64()*float64(d.timing.Recheck)/5)
	}
	for _, w := range d.peers {
		if w.dirty || !w.at.After(now) {
			w.dirty = false
			stepped = append(stepped, w)
			probes = append(probes, w.step(now, draw, interval)...)
		}
	}
	return stepped, probes
}

// send sends requests, without the lock, since the sockets may block.
func (d *Discovery) send(probes []probe) {
	for _, p := range probes {
		err := errors.New("this node has no IPv6")
		if i := slices.IndexFunc(d.clients, func(s *socket) bool { return s.v6 == p.to.Addr().Is6() }); i >= 0 {
			m := message{kind: request, nonce: p.nonce, from: d.own, to: d.codec.id(p.peer), destination: p.to}
			err = d.clients[i].write(d.codec.encode(m), p.to, netip.Addr{})
		}
		if err == nil {
			continue
		}
		var errno syscall.Errno
		// the rest of the error names sockets, which differ in every process
		if errors.As(err, &errno) {
			err = errno
		}
		d.mu.Lock()
		if w := d.peers[p.peer]; w != nil {
			w.unsent(p.nonce, err.Error())
		}
		d.mu.Unlock()
	}
}

// assess stores the results of the stepped peers. It returns those that changed, and when the next
// step is due.
func (d *Discovery) assess(now time.Time, stepped []*watched) (map[string]Reachability, time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	changes := map[string]Reachability{}
	for _, w := range stepped {
		w.at = w.due(now)
		v := w.assess(now)
		if d.peers[w.peer.Name] == w && w.last != v {
			changes[w.peer.Name] = v
		}
		w.last = v
	}
	next := now.Add(d.timing.Recheck)
	for _, w := range d.peers {
		if w.at.Before(next) {
			next = w.at
		}
	}
	return changes, next
}
