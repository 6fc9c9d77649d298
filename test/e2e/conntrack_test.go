package e2e

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pelago-net/pelago/test/e2e/walk"
)

// connection is a line of `conntrack -L -o extended`.
type connection struct {
	protocol        string
	original, reply tuple
	line            string
}

// translated reports whether conntrack changed an address or a port: then the reply is not the
// reverse of the original.
func (c connection) translated() bool {
	return c.original.Source != c.reply.Destination || c.original.Destination != c.reply.Source
}

// involves reports whether one of the addresses is in one of the ranges.
func (c connection) involves(ranges ...string) bool {
	for _, text := range ranges {
		r := netip.MustParsePrefix(text)
		for _, e := range []netip.AddrPort{c.original.Source, c.original.Destination, c.reply.Source, c.reply.Destination} {
			if r.Contains(e.Addr()) {
				return true
			}
		}
	}
	return false
}

var conntrackTuple = regexp.MustCompile(`src=(\S+) dst=(\S+) (?:sport=(\d+) dport=(\d+)|type=\d+ code=\d+ id=(\d+))`)

// parseConntrack reads the entries of TCP, UDP and ICMP. An echo has its identifier in the place of
// both ports.
func parseConntrack(text string) ([]connection, error) {
	var out []connection
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 3 || !strings.Contains(" tcp udp icmp ", " "+fields[2]+" ") {
			continue
		}
		c := connection{protocol: fields[2], line: strings.TrimSpace(line)}
		found := conntrackTuple.FindAllStringSubmatch(line, -1)
		if len(found) != 2 {
			return nil, fmt.Errorf("%d tuples in %q, want 2", len(found), line)
		}
		for i, to := range []*tuple{&c.original, &c.reply} {
			m := found[i]
			if m[5] != "" {
				m[3], m[4] = m[5], m[5]
			}
			var err error
			if to.Source, err = netip.ParseAddrPort(m[1] + ":" + m[3]); err != nil {
				return nil, fmt.Errorf("read %q: %w", line, err)
			}
			if to.Destination, err = netip.ParseAddrPort(m[2] + ":" + m[4]); err != nil {
				return nil, fmt.Errorf("read %q: %w", line, err)
			}
		}
		out = append(out, c)
	}
	return out, nil
}

func TestParseConntrack(t *testing.T) {
	text := `ipv4     2 tcp      6 14 TIME_WAIT src=10.7.3.3 dst=120.2.0.9 sport=54374 dport=80 src=120.2.0.9 dst=10.7.3.3 sport=80 dport=54374 [ASSURED] mark=0 use=1
ipv4     2 udp      17 29 src=10.7.3.3 dst=120.2.0.9 sport=5000 dport=7 [UNREPLIED] src=120.2.0.9 dst=172.30.1.13 sport=7 dport=1024 mark=0 use=1
ipv4     2 icmp     1 29 src=10.7.3.3 dst=120.2.0.9 type=8 code=0 id=77 src=120.2.0.9 dst=10.7.3.3 type=0 code=0 id=77 mark=0 use=1
ipv4     2 tcp      6 9 ESTABLISHED src=10.7.3.3 dst=10.77.0.1 sport=5001 dport=443 src=172.30.1.2 dst=10.7.3.3 sport=6443 dport=5001 [ASSURED] mark=0 use=1
ipv4     2 unknown  2 500 src=172.30.1.11 dst=224.0.0.22 [UNREPLIED] src=224.0.0.22 dst=172.30.1.11 mark=0 use=1
`
	connections, err := parseConntrack(text)
	must(t, err)
	var got []string
	for _, c := range connections {
		got = append(got, fmt.Sprintf("%s global=%t translated=%t", c.protocol, c.involves(walk.GlobalRange), c.translated()))
	}
	want := []string{"tcp global=true translated=false", "udp global=true translated=true", "icmp global=true translated=false", "tcp global=false translated=true"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// testNoTranslationByConntrack: conntrack tracks the flows and translates none of them.
func testNoTranslationByConntrack(t *testing.T, s *clusterset) {
	ctx := t.Context()
	l := s.needLoad(t)
	headless := s.needHeadless(t, l.client)
	var running []*traffic
	for _, from := range []walk.Pod{l.client, l.host} {
		running = append(running, s.hold(t, from, 5, l.web.String()+":80"), s.ping(t, from, 50, l.sink.String()+":7"))
		if _, err := s.ShowIn(ctx, from, "ping", "-c", "3", "-W", "60", headless[0].String()); err != nil {
			t.Errorf("ping from pod %s: %v", from.Name, err)
		}
	}
	seen := map[string]int{}
	for cluster, other := range map[string]string{"g1": "g2", "g2": "g1"} {
		for _, node := range s.nodes(t, cluster) {
			connections, err := parseConntrack(s.node(t, node, "conntrack", "-L", "-o", "extended"))
			must(t, err)
			for _, c := range connections {
				if !c.involves(s.Shown(other)...) {
					continue
				}
				seen[cluster+" "+c.protocol]++
				if c.translated() {
					t.Errorf("conntrack of %s translates: %s", node, c.line)
				}
			}
		}
	}
	t.Logf("entries of conntrack with addresses of the other cluster: %v", seen)
	for _, want := range []string{"g1 tcp", "g1 udp", "g1 icmp", "g2 tcp", "g2 udp", "g2 icmp"} {
		if seen[want] == 0 {
			t.Errorf("no entries of %s in conntrack: a policy engine could not match their states", want)
		}
	}
	for i, tr := range running {
		if i%2 == 0 {
			onlyBrokenOf(t, tr)
		} else {
			nothingLost(t, tr)
		}
	}
}
