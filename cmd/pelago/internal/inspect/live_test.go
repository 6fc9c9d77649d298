package inspect

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/dump"
	"github.com/pelago-net/pelago/dataplane/trace"
)

// A live trace reports where a packet ended by what the nodes saw of it.
func TestLiveEnd(t *testing.T) {
	opener := trace.Packet{Protocol: dataplane.ProtocolTCP, Source: netip.MustParseAddrPort("10.7.0.10:40000"), Destination: netip.MustParseAddrPort("120.2.0.21:80")}
	plain := func(cluster, node, device string, out bool) Sighting {
		return Sighting{cluster, node, trace.Sighting{Device: device, Out: out, Packet: opener}}
	}
	outer := func(cluster, node string, out bool, from, to string) Sighting {
		a, b := ip(from), ip(to)
		return Sighting{cluster, node, trace.Sighting{Device: "eth0", Out: out, Packet: opener, From: &a, To: &b}}
	}
	answer := func(s Sighting) Sighting {
		s.Answer = true
		s.Packet.Source, s.Packet.Destination = s.Packet.Destination, s.Packet.Source
		return s
	}
	way := []Sighting{
		plain("g1", "n2", "veth1", false), outer("g1", "n2", true, "1.1.1.2", "1.1.1.1"),
		outer("g1", "n1", false, "1.1.1.2", "1.1.1.1"), outer("g1", "n1", true, "1.1.1.1", "2.2.2.1"),
		outer("g2", "n1", false, "1.1.1.1", "2.2.2.1"), outer("g2", "n1", true, "2.2.2.1", "2.2.2.2"),
		outer("g2", "n2", false, "2.2.2.1", "2.2.2.2"), plain("g2", "n2", "pelago0", false), plain("g2", "n2", "veth9", true),
	}
	back := answer(outer("g1", "n2", false, "1.1.1.1", "1.1.1.2"))
	drops := func(cluster, node, verdict string) []Drop {
		return []Drop{{cluster, node, dump.Counter{Hook: "uplink-in", Verdict: verdict, Packets: 1}}}
	}
	mixed := append(slices.Clone(way), back)
	slices.Reverse(mixed)
	live := Live{Sightings: mixed}
	live.order(nodeName{"g1", "n2"})
	for i, want := range []string{"g1 n2", "g1 n2", "g1 n1", "g1 n1", "g2 n1", "g2 n1", "g2 n2", "g2 n2", "g2 n2", "g1 n2"} {
		if got := live.Sightings[i].Cluster + " " + live.Sightings[i].Node; got != want {
			t.Errorf("sighting %d is of %s, want %s", i, got, want)
		}
	}
	for name, c := range map[string]struct {
		sightings []Sighting
		drops     []Drop
		udp       bool
		host      bool // the source is a process of the node
		outcome   Outcome
		reason    string
	}{
		"answered":              {append(way[:9:9], back, answer(plain("g1", "n2", "pelago0", false)), answer(plain("g1", "n2", "veth1", true))), nil, false, false, Delivered, ""},
		"the node is answered":  {append(way[1:9:9], back, answer(plain("g1", "n2", "pelago0", false))), nil, false, true, Delivered, ""},
		"answered, fast":        {append(way[:7:7], back), nil, false, false, Delivered, ""},
		"answer dropped here":   {append(way[:9:9], back, answer(plain("g1", "n2", "pelago0", false))), nil, false, false, Dropped, "stack"},
		"answer lost":           {append(way[:9:9], answer(plain("g2", "n2", "veth9", false))), nil, false, false, Dropped, "answer-lost"},
		"no answer":             {way, nil, false, false, Dropped, "no-answer"},
		"a datagram":            {way, nil, true, false, Delivered, ""},
		"policy of the far end": {way[:8], nil, false, false, Dropped, "stack"},
		"policy, others' drops": {way[:8], drops("g2", "n2", "drop-no-flow"), false, false, Dropped, "stack"},
		"no answer, fast":       {way[:7], nil, false, false, Dropped, "no-answer"},
		"far node drops it":     {way[:7], drops("g2", "n2", "drop-no-backend"), false, false, Dropped, "drop-no-backend"},
		"gateway drops it":      {way[:5], drops("g2", "n1", "drop-bad-token"), false, false, Dropped, "drop-bad-token"},
		"others' drops":         {way, drops("g2", "n1", "drop-bad-token"), false, false, Dropped, "no-answer"},
		"lost on the wire":      {way[:4], nil, false, false, Dropped, "not-seen"},
		"gateway with XDP":      {append(way[:2:2], way[4:]...), nil, false, false, Dropped, "no-answer"},
		"policy of the source":  {way[:1], nil, false, false, Dropped, "stack"},
		"edge drops it":         {way[:1], drops("g1", "n2", "drop-ports-exhausted"), false, false, Dropped, "drop-ports-exhausted"},
		"not sent":              {nil, nil, false, false, Unknown, "not-sent"},
	} {
		p := opener
		if c.udp {
			p.Protocol = dataplane.ProtocolUDP
		}
		got := Live{Sightings: c.sightings, Drops: c.drops}.end(nodeName{"g1", "n2"}, p, c.host)
		if got.Outcome != c.outcome || got.Reason != c.reason {
			t.Errorf("%s: %s, %s (%s); want %s, %s", name, got.Outcome, got.Reason, got.Message, c.outcome, c.reason)
		}
	}
}
