package packet

import "testing"

// A probe with the probe mark comes from edge_out: it is handed to the vxlan receiver as a GSO
// packet of the peer, without the mark. Others are probes from the network.
func TestGSOProbe(t *testing.T) {
	ga := load(t, 1, 1)
	_, mark, err := ga.Loader.Marks()
	if err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]Overlay{"overlay": overlay(1, 4, 1, clientTCP(ACK).Encode()), "cable": cable(2, 4, 1, clientTCP(ACK).Encode())} {
		o.Type = Probe
		before := ga.largeProbe(t, o.Source)
		r := ga.Run(t, ga.UplinkIn, o.Encode(), Context{Mark: mark, GSOSize: 10})
		out, err := DecodeOverlay(r.Frame)
		if r.Action != Next || r.Verdict != "uplink-in probe" || r.Mark != 0 || err != nil || out.Source != o.Source || out.Port != overlayPort {
			t.Errorf("%s: action %d, %q, mark %d, %+v, %v; want it to go to the receiver", name, r.Action, r.Verdict, r.Mark, out, err)
		}
		if p := ga.largeProbe(t, o.Source); p.GSOHanded != before.GSOHanded+1 || p.GSOPassed != before.GSOPassed {
			t.Errorf("%s: counters %+v; want one more handed over than %+v", name, p, before)
		}
		if r := ga.Run(t, ga.UplinkIn, o.Encode(), Context{GSOSize: 10}); r.Action == Next || ga.largeProbe(t, o.Source).GSOHanded != before.GSOHanded+1 {
			t.Errorf("%s, without the mark: action %d, %q", name, r.Action, r.Verdict)
		}
	}
	stranger := overlay(1, 7, 1, clientTCP(ACK).Encode())
	stranger.Type = Probe
	if r := ga.Run(t, ga.UplinkIn, stranger.Encode(), Context{Mark: mark, GSOSize: 10}); r.Action != Drop {
		t.Errorf("of a node that is not probed: action %d, %q", r.Action, r.Verdict)
	}
}
