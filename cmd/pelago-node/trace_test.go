package main

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/trace"
)

func TestTraceInvalidFlags(t *testing.T) {
	for _, c := range []struct {
		flags traceFlags
		want  string
	}{
		{traceFlags{from: "10.7.2.10", to: "120.2.0.20:80", protocol: "icmp"}, "tcp, udp or sctp"},
		{traceFlags{from: "pod", to: "120.2.0.20:80", protocol: "tcp"}, "--from"},
		{traceFlags{from: "10.7.2.10", to: "120.2.0.20", protocol: "tcp"}, "address:port"},
		{traceFlags{from: "fd00::1", to: "120.2.0.20:80", protocol: "tcp"}, "IPv4"},
		{traceFlags{from: "10.7.2.10", to: "[fd00::1]:80", protocol: "udp"}, "IPv4"},
		{traceFlags{from: "10.7.2.10", to: "120.2.0.20:80", protocol: "udp", cable: true}, "--received-from"},
	} {
		if _, err := c.flags.packet(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v; want an error with %q", c.flags, err, c.want)
		}
	}
}

// A dropped packet is printed too, and is an error. The secret token is not printed.
func TestTraceOutput(t *testing.T) {
	node := netip.MustParseAddr("172.16.1.1")
	tables := trace.Tables{State: dataplane.State{
		Settings: dataplane.Settings{Ready: true, Node: 2, Overlay: dataplane.Tokens{Current: 11259375}},
		Sources:  map[netip.Addr]dataplane.Source{netip.MustParseAddr("10.7.2.10"): {Own: netip.MustParseAddr("120.1.0.100")}},
		Routes:   map[netip.Prefix]uint16{netip.MustParsePrefix("120.2.0.0/24"): 2},
		Gateways: []uint16{1},
		Nodes:    map[uint16]dataplane.Hop{1: {Address: node}},
	}}
	for to, want := range map[string]string{"120.2.0.20:80": "sent", "120.3.0.20:80": "drop-no-route"} {
		flags := traceFlags{from: "10.7.2.10", to: to, protocol: "tcp"}
		packet, err := flags.packet()
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		err = flags.trace(&out, tables, packet)
		if dropped := want != "sent"; (err != nil) != dropped {
			t.Errorf("to %s: error %v", to, err)
		}
		var step trace.Step
		if err := json.Unmarshal(out.Bytes(), &step); err != nil {
			t.Fatal(err)
		}
		if step.Verdict != want || step.Hook != "edge-out" || (step.Header != nil) != (want == "sent") {
			t.Errorf("to %s: %s", to, out.String())
		}
		if strings.Contains(out.String(), "11259375") {
			t.Errorf("the output contains the token: %s", out.String())
		}
	}
}
