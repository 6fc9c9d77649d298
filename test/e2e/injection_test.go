package e2e

import (
	"encoding/base64"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/pelago-net/pelago/test/e2e/walk"
	"github.com/pelago-net/pelago/test/packet"
)

// testInjection: a process in a pod has the secret token and sends packets in the format of the
// nodes.
func testInjection(t *testing.T, s *clusterset) {
	l := s.needLoad(t)
	text, err := base64.StdEncoding.DecodeString(s.kubectl(t, "g1", "-n", "pelago-system", "get", "secret", "pelago-overlay-token", "-o", "jsonpath={.data.current}"))
	must(t, err)
	token, err := strconv.ParseUint(strings.TrimSpace(string(text)), 16, 32)
	must(t, err)
	gatewayNode := "g1-n1"
	atGateway := walk.Pod{Cluster: "g1", Namespace: loadNamespace, Name: "at-gateway"}
	s.applyQuietly(t, "g1", fmt.Sprintf(loadClient, atGateway.Name, gatewayNode, false))
	s.kubectl(t, "g1", "-n", loadNamespace, "wait", "--for=condition=Ready", "pod", atGateway.Name, walk.WaitFlag)

	// The source identifies the packet, if it is forwarded anywhere.
	forged := netip.MustParseAddrPort("120.1.0.7:4242")
	inner := packet.Packet{
		Source: forged.Addr(), Destination: l.sink, TTL: 64,
		UDP: &packet.UDP{Source: forged.Port(), Destination: 7}, Payload: []byte("forged"),
	}.Encode()
	overlay := packet.Overlay{Token: uint32(token), Type: packet.Forward, Node: 3, Version: 1, Inner: inner}
	// What the kernel's own vxlan device takes: without anything in the reserved fields.
	plain := packet.Overlay{Type: packet.Forward, Node: 3, Inner: inner}
	for _, tt := range []struct {
		name          string
		from          walk.Pod
		packet        packet.Overlay
		to            string
		port          int
		counts        [2]string // cluster and node that drop it
		hook, verdict string
	}{
		{"from a pod to a gateway", l.client, overlay, "g1-n1", 4800, [2]string{"g1", l.clientNode}, "uplink-out", "drop-injected"},
		{"from a process in the node's network to a gateway", l.host, overlay, "g1-n1", 4800, [2]string{"g1", l.clientNode}, "uplink-out", "drop-injected"},
		{"from a pod to its own node", l.client, plain, l.clientNode, 4800, [2]string{"g1", l.clientNode}, "edge-in", "drop-unverified"},
		{"from a pod on a gateway to a remote gateway", atGateway, overlay, "g2-n1", 4500, [2]string{"g1", gatewayNode}, "uplink-out", "drop-injected"},
		{"from a pod elsewhere to a remote gateway", l.client, overlay, "g2-n1", 4500, [2]string{"g2", "g2-n1"}, "uplink-in", "drop-unknown-peer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, err := s.Lab.Plan().Node(tt.to)
			must(t, err)
			before := s.counter(t, tt.counts[0], tt.counts[1], tt.hook, tt.verdict)
			_, err = s.In(t.Context(), tt.from, "sh", "-c", "for i in 1 2 3; do echo "+base64.StdEncoding.EncodeToString(payload(tt.packet))+
				" | base64 -d | nc.openbsd -u -N -w 1 "+n.Address.String()+" "+strconv.Itoa(tt.port)+" & done; wait")
			must(t, err)
			if n := s.counter(t, tt.counts[0], tt.counts[1], tt.hook, tt.verdict) - before; n < 3 {
				t.Errorf("%s counts %d packets as %s at %s, want 3", tt.counts[1], n, tt.verdict, tt.hook)
			}
		})
	}
	for _, cluster := range []string{"g1", "g2"} {
		out, err := s.Quietly(t.Context(), s.Bin+"/pelago", "nat", "get", "--context", cluster, forged.String())
		if err == nil {
			t.Errorf("a forged packet was forwarded: %s", out)
		}
	}
}

// payload is an overlay packet after its outer UDP header.
func payload(o packet.Overlay) []byte {
	const outer = 14 + 20 + 8 // Ethernet, IPv4, UDP
	o.Source, o.Destination = netip.IPv4Unspecified(), netip.IPv4Unspecified()
	// bpf/encap.h
	o.InnerSource, o.InnerDestination = [6]byte{2}, [6]byte{0x02, 0x50, 0x45, 0x4c, 0x00, 0x02}
	return o.Encode()[outer:]
}
