package packet

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
)

// modelMapping is a mapping as RFC 4787 REQ-1 and REQ-6 want it: what it shows, and how long it has
// been idle.
type modelMapping struct {
	shown        netip.AddrPort
	replied      bool // surely; where it is not known it is false
	last, latest time.Duration
}

// maps reports whether a packet of a pod has the source of a mapping.
func (m *model) maps(c connection, pod bool) bool {
	return m.mapped && pod && c.proto == ProtocolUDP && c.source.Addr() == ip("10.7.2.10")
}

// behind is the local end of the mapping with an outside address.
func (m *model) behind(shown netip.AddrPort) (local netip.AddrPort) {
	for local, mapping := range m.mappings {
		if mapping.shown == shown {
			return local
		}
	}
	return netip.AddrPort{}
}

// inTable reads what a local end shows by the table.
func (m *model) inTable(local netip.AddrPort) (shown netip.AddrPort, ok bool) {
	key := bpf.PelagoFlowKey{
		Saddr: be32(local.Addr()), Sport: be16(local.Port()), Proto: ProtocolUDP, Direction: uint8(bpf.PelagoDirectionDIRECTION_MAPPING),
	}
	var f bpf.PelagoFlow
	if m.k.Flows.Lookup(key, &f) != nil {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(global(1, 1), be16(f.Sport)), true
}

// touchMapping notes that a packet of a mapped flow was translated between two times. first: it is
// the first reply.
func (m *model) touchMapping(f *modelFlow, pod, first bool, before, after time.Duration) {
	if !m.maps(f.opening, f.client) {
		return
	}
	local := f.opening.source
	if !pod {
		local = m.behind(f.shown.source)
	}
	mapping := m.mappings[local]
	if mapping == nil {
		return
	}
	if shown, ok := m.inTable(local); after-mapping.last > m.timers.UDP && (!ok || shown != mapping.shown) {
		delete(m.mappings, local)
		return
	}
	mapping.last, mapping.latest = max(mapping.last, before-time.Second-tick), max(mapping.latest, after)
	mapping.replied = mapping.replied || first
}

// openMapped checks the source of a flow that a mapped pod opened: that of the mapping, which is a
// new one if none exists, and no other's; the pod's own port if that is free.
func (m *model) openMapped(c, got connection, before, after time.Duration) error {
	want := c
	want.source = got.source
	if got != want || got.source.Addr() != global(1, 1) || got.source.Port()>>8<<8 != blockOf(2) {
		return fmt.Errorf("%s became %s; want an egress port of this node", c, got)
	}
	mapping := m.mappings[c.source]
	if mapping == nil || mapping.shown != got.source {
		if mapping != nil && after-mapping.last <= m.timers.UDP {
			return fmt.Errorf("%s became %s; its mapping is to %s", c, got, mapping.shown)
		}
		delete(m.mappings, c.source)
		own := netip.AddrPortFrom(global(1, 1), c.source.Port())
		if own.Port()>>8<<8 == blockOf(2) && got.source != own && !m.behind(own).IsValid() {
			return fmt.Errorf("%s became %s; its own port is free", c, got)
		}
		if local := m.behind(got.source); local.IsValid() {
			other, limit := m.mappings[local], m.timers.UDP
			if !other.replied {
				limit = m.timers.Unreplied
			}
			if after-other.last <= limit {
				return fmt.Errorf("%s became %s, which is the mapping of %s", c, got, local)
			}
			delete(m.mappings, local)
		}
		mapping = &modelMapping{shown: got.source}
		m.mappings[c.source] = mapping
	}
	mapping.last, mapping.latest = before-tick, after
	return nil
}

// clashes reports whether a mapped flow may not be opened, since another one, whose mapping has
// ended, shows the same. Its mapping is opened all the same.
func (m *model) clashes(c connection, before, after time.Duration) bool {
	shown, ok := m.inTable(c.source)
	if !ok {
		return false
	}
	got := c
	got.source = shown
	return m.openMapped(c, got, before, after) == nil && m.in[got.reverse()] != nil
}

// unasked checks a packet to an egress IP that has no flow: it passes by a mapping, and opens
// nothing.
func (m *model) unasked(c, got connection, passed bool, after time.Duration) error {
	local := m.behind(c.destination)
	want := c
	want.destination = local
	switch alive := local.IsValid() && after-m.mappings[local].last <= m.timers.UDP; {
	case passed && (!local.IsValid() || got != want):
		return fmt.Errorf("%s became %s; want it for %s", c, got, local)
	case !passed && alive:
		return fmt.Errorf("%s is dropped; want it for %s", c, local)
	}
	return nil
}

// sweepMappings compares the mappings after a sweep between two times.
func (m *model) sweepMappings(before, after time.Duration) error {
	for local, mapping := range m.mappings {
		shown, ok := m.inTable(local)
		there := ok && shown == mapping.shown
		switch {
		case !there && after-mapping.last <= m.timers.UDP:
			return fmt.Errorf("the mapping of %s is gone after %s at most", local, after-mapping.last)
		case there && before-mapping.latest > m.timers.UDP:
			return fmt.Errorf("the mapping of %s is left after %s", local, before-mapping.latest)
		case !there:
			delete(m.mappings, local)
		}
	}
	return nil
}

// mappedModel is the node of the model with open mappings.
func mappedModel() dataplane.State {
	s := state(1, 2)
	src := s.Sources[ip("10.7.2.10")]
	src.Mapped, src.Open = true, true
	s.Sources[ip("10.7.2.10")] = src
	return s
}
