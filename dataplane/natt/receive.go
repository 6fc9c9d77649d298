package natt

import (
	"errors"
	"net"
	"net/netip"
	"time"
)

// packet is a message with the addresses of the packet that brought it.
type packet struct {
	message
	peer   string // the sender's name
	socket *socket
	source netip.AddrPort
	dest   netip.AddrPort // zero address if the kernel did not tell
}

// receive reads packets until the socket is closed and hands on those that a peer made for us.
func (d *Discovery) receive(s *socket, handle func(packet)) {
	b := make([]byte, messageSize+1) // a larger packet shows by its size
	for {
		n, source, to, err := s.read(b)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			d.log.Error("read from the socket of NAT discovery", "error", err)
			select { // an error that stays must not keep a processor busy
			case <-d.done:
				return
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		m, err := d.codec.decode(b[:n])
		if err != nil {
			d.reject(source.Addr(), err)
			continue
		}
		if m.to != d.own {
			d.counts.add(notForUs) // two networks with the same addresses: a gateway of another one asked us
			continue
		}
		d.mu.Lock()
		name, ok := d.ids[m.from]
		d.mu.Unlock()
		if !ok {
			d.counts.add(unknownPeer)
			continue
		}
		handle(packet{message: m, peer: name, socket: s, source: source, dest: netip.AddrPortFrom(to, s.port)})
	}
}

// reject counts a packet that is no message, and tells the peers at its source if it was made with another key.
func (d *Discovery) reject(source netip.Addr, err error) {
	switch {
	case errors.Is(err, errMAC):
		d.counts.add(foreignKey)
		d.mu.Lock()
		for _, name := range d.byAddr[source] {
			d.peers[name].foreignKey(source)
		}
		d.mu.Unlock()
	case errors.Is(err, errVersion):
		d.counts.add(otherVersion)
	default:
		d.counts.add(malformed)
	}
}

// serve handles what comes to the published port.
func (d *Discovery) serve(p packet) {
	switch p.kind {
	case request:
		d.mu.Lock()
		allowed := d.limits.allow(p.source.Addr())
		d.mu.Unlock()
		if !allowed {
			d.counts.add(tooMany)
			return
		}
		d.counts.add(requests)
		reply := message{
			kind: answer, nonce: cookie(d.cookieKey[:], d.slot(), p.from, p.source), echo: p.nonce,
			from: d.own, to: p.from, source: p.source, destination: p.dest,
		}
		d.write(p.socket, reply, p.source, p.dest.Addr())
	case call:
		slot := d.slot()
		if p.echo != cookie(d.cookieKey[:], slot, p.from, p.source) && p.echo != cookie(d.cookieKey[:], slot-1, p.from, p.source) {
			d.counts.add(replayed)
			return
		}
		d.counts.add(calls)
		d.with(p.peer, func(t *track) {
			t.call(time.Now(), p.source, report{local: p.message.source, seen: p.source, asked: p.destination, arrived: p.dest}.rewriting())
		})
	default:
		d.counts.add(malformed)
	}
}

// take handles what comes to the port of our own requests.
func (d *Discovery) take(p packet) {
	if p.kind != answer {
		d.counts.add(malformed)
		return
	}
	// The answer's destination is the source of our request as the kernel chose it.
	r := report{local: p.dest, seen: p.message.source, asked: p.source, arrived: p.destination}
	j := stale
	d.with(p.peer, func(t *track) { j = t.answer(time.Now(), p.source, p.echo, r) })
	switch j {
	case stale:
		d.counts.add(replayed)
	case elsewhere:
		d.counts.add(fromElsewhere)
	case accepted:
		d.counts.add(answers)
		d.write(p.socket, message{kind: call, echo: p.nonce, from: d.own, to: p.from, source: p.dest, destination: p.source}, p.source, p.dest.Addr())
	}
}

// with changes a peer's track, if it still exists, and has the change looked at.
func (d *Discovery) with(peer string, change func(*track)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if w := d.peers[peer]; w != nil {
		change(w.track)
		w.dirty = true
		d.poke()
	}
}

// write sends what may be lost: the peer asks again.
func (d *Discovery) write(s *socket, m message, to netip.AddrPort, from netip.Addr) {
	if err := s.write(d.codec.encode(m), to, from); err != nil && !errors.Is(err, net.ErrClosed) {
		d.counts.add(unsent)
		d.log.Debug("send a message of NAT discovery", "to", to, "error", err)
	}
}

// slot is the present period for cookies. It begins at 1, so that there is one before it.
func (d *Discovery) slot() uint64 { return 1 + uint64(time.Since(d.start)/cookieSlot) }
