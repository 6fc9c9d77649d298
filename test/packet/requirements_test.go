package packet

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// requirement is one rule of the RFCs on address translation: what tests it, or why we do
// otherwise. Scope: what leaves under an egress IP is translated by address and port, all rules are
// for it; addresses of services and headless pods are translated one to one, for which pools and
// timers mean nothing.
type requirement struct {
	id    string
	level string // M must, S should or recommended, O may
	rule  string // in our words
	test  string // a test of this package, or of test/netns/clusters
	why   string // we do otherwise
}

const (
	endpointDependent = "mapping of TCP and ICMP depends on the endpoint: 256 ports of a node then serve every remote service at once, and hosts behind are never to be reached unasked (bpf/README.md)"
)

var requirements = []requirement{
	{"RFC 4787 REQ-1", "M", "one outside address and port for an inside one, whatever the remote endpoint: a mode of egress objects, else as that of TCP", "TestMapping", ""},
	{"RFC 4787 REQ-2", "S", "an inside address has one outside address", "TestPortsOfBlocks", ""},
	{"RFC 4787 REQ-3", "M", "no two flows on one outside port", "TestPortsAreNeverShared", ""},
	{"RFC 4787 REQ-3a", "S", "a port below 1024 stays below", "", "blocks of egress IPs begin at 1024: the ports below are four blocks of an IP, too few for every node. With an own global IP, a ClusterSetIP of the own cluster and without globalnet it stays (TestPortPreservation, TestVIPSourcePort)"},
	{"RFC 4787 section 4.2.1", "O", "the source port is kept where it is in a block of the node and free", "TestPortPreservation", ""},
	{"RFC 4787 REQ-4", "S", "even ports stay even", "", "RFC 7857 section 8 lets it be; it would halve the ports of a block"},
	{"RFC 4787 REQ-5", "M", "a mapping lives for 2 minutes at least, 5 by default; less only for well-known ports", "TestDefaultTimers", ""},
	{"RFC 4787 REQ-6", "M", "what goes out refreshes", "TestTrafficRefreshes", ""},
	{"RFC 4787 REQ-6 mappings", "M", "what goes out, or answers, refreshes the mapping; what nobody asked for does not", "TestMappingTimers", ""},
	{"RFC 4787 REQ-7", "M", "inside and outside addresses may overlap", "TestTown", ""},
	{"RFC 4787 REQ-8", "S", "filtering is independent of the endpoint, or stricter for security", "TestFiltering", ""},
	{"RFC 4787 REQ-8 open", "S", "a mode of egress objects: all addresses of accepted clusters", "TestOpenMapping", ""},
	{"RFC 4787 REQ-9", "M", "hairpinning", "TestHairpin", ""},
	{"RFC 4787 REQ-9a", "M", "hairpinned packets have the outside address and port as source", "TestMappingHairpin", ""},
	{"RFC 4787 REQ-10", "S", "payloads are not touched", "TestTranslationIsUndone", ""},
	{"RFC 4787 REQ-11", "M", "behaviour does not change with load", "TestPortsOfBlocks", ""},
	{"RFC 4787 REQ-12", "M", "an ICMP error ends no mapping", "TestICMPErrorKeepsFlow", ""},
	{"RFC 4787 REQ-13", "M", "too big: an ICMP error, or fragments", "TestTown/path_MTU", ""},
	{"RFC 4787 REQ-14", "M", "fragments are carried", "TestFragments", ""},
	{"RFC 4787 REQ-14 out of order", "M", "also if the first one comes late", "TestTown/fragments_out_of_order", ""},
	{"RFC 4787 REQ-14a", "M", "a flood of fragments harms no one else", "TestFragmentsPerSource", ""},

	{"RFC 5382 REQ-1", "M", "as RFC 4787 REQ-1", "", endpointDependent},
	{"RFC 5382 REQ-2", "M", "every valid sequence, simultaneous open included", "TestFiltering", ""},
	{"RFC 5382 REQ-3", "S", "as RFC 4787 REQ-8", "TestFiltering", ""},
	{"RFC 5382 REQ-4", "M", "no answer to an unsolicited SYN", "TestFiltering", ""},
	{"RFC 5382 REQ-5", "M", "established 2 h 4 min, transitory 4 min", "TestTimers", ""},
	{"RFC 5382 REQ-6", "S", "payloads are not touched", "TestTranslationIsUndone", ""},
	{"RFC 5382 REQ-7", "M", "no two connections on one outside port", "TestPortsAreNeverShared", ""},
	{"RFC 5382 REQ-8", "M", "hairpinning", "TestHairpin", ""},
	{"RFC 5382 REQ-9", "S", "destination unreachable is translated", "TestICMPErrors", ""},
	{"RFC 5382 REQ-10", "M", "an ICMP error ends no connection", "TestICMPErrorKeepsFlow", ""},

	{"RFC 5508 REQ-1", "M", "echo requests pass", "TestTranslationIsUndone", ""},
	{"RFC 5508 REQ-1a", "S", "one identifier whatever the remote endpoint", "", endpointDependent},
	{"RFC 5508 REQ-2", "M", "a query lives for 60 s", "TestTimers", ""},
	{"RFC 5508 REQ-3a", "S", "errors with wrong checksums are dropped", "", "they stay wrong and the receiver drops them (TestICMPErrorWithWrongChecksum)"},
	{"RFC 5508 REQ-3b", "M", "options of the quoted header are skipped", "TestICMPErrors", ""},
	{"RFC 5508 REQ-3c", "S", "the quoted transport checksum is not checked", "TestICMPErrors", ""},
	{"RFC 5508 REQ-3d", "S", "extensions of RFC 4884 behind the quoted packet stay intact", "", "carried as they are: the quoted packet is translated in place, its length and what follows are not read; the ICMP checksum is updated, so it covers them"},
	{"RFC 5508 REQ-4", "M", "errors from outside reach the sender of what they quote", "TestICMPErrors", ""},
	{"RFC 5508 REQ-5", "M", "errors from inside do too", "TestICMPErrors", ""},
	{"RFC 5508 REQ-6", "M", "an error refreshes nothing and ends nothing", "TestICMPErrorKeepsFlow", ""},
	{"RFC 5508 REQ-7", "M", "hairpinned errors", "TestHairpin", ""},
	{"RFC 5508 REQ-8", "S", "no resources: administratively prohibited", "TestExhaustionIsAnswered", ""},
	{"RFC 5508 REQ-9", "O", "a policy may stop ICMP towards a side", "", "errors from the node's stack are under its own policy; those of the programs answer a local pod, or the client of a service (bpf/answer.h)"},
	{"RFC 5508 REQ-10b", "S", "other queries, such as timestamps, pass if they can", "", "dropped and counted as drop-protocol: no client in use today sends them, and each has its own identifier"},
	{"RFC 5508 REQ-11", "S", "what is no query and no error is handled by policy", "TestVerdicts", ""},
	{"RFC 5508 REQ-10a", "M", "unreachable, time exceeded and echo", "TestAnyICMPError", ""},

	{"RFC 7857 section 2", "S", "a reset connection is kept for 4 minutes, unless its port is needed", "TestTimers", ""},
	{"RFC 7857 section 3", "M", "one outside port for several remote endpoints only if configured", "", "the default is a port for several inside ones towards different endpoints; nat-mapping of an egress object ends that for UDP (TestMapping). " + endpointDependent},
	{"RFC 7857 section 4", "M", "paired pooling holds under the limits of a subscriber; what then happens is documented", "", "a pod keeps its egress IP while the node has ports of it: a flow without a port is dropped and counted, it never leaves under another address (pickIP of control/node/tables)"},
	{"RFC 7857 section 5", "S", "mappings of UDP and TCP are independent by default", "", "they are, as every part of the tuple: " + endpointDependent},
	{"RFC 7857 section 6", "S", "so is filtering", "", "a reply must be of the protocol, address and port that was contacted (TestFiltering); services are open by their own ports"},
	{"RFC 7857 section 11", "O", "the timer of ICMP queries can be set", "", "60 s as RFC 5508 REQ-2 has it; timers are constants of the programs (bpf/config.h), so that all nodes of a clusterset agree"},
	{"RFC 7857 section 12", "M", "hairpinned ICMP", "TestHairpin", ""},
	{"RFC 7857 section 7", "S", "refresh from outside can be switched off", "", "one setting less: only the endpoint that was addressed can refresh"},
	{"RFC 7857 section 9", "S", "ports are hard to guess", "TestPortsOfBlocks", ""},
	{"RFC 7857 section 10", "S", "identifications of fragments stay unique", "", "carried as they are: two pods behind one egress IP collide as two behind any NAT that does not renumber; UDP and TCP checksums find it"},

	{"RFC 6888 REQ-1", "M", "the rules of each transport protocol, above, hold", "TestRequirements", ""},
	{"RFC 6888 REQ-2", "M", "paired pooling by default", "TestPortsOfBlocks", ""},
	{"RFC 6888 REQ-3", "M", "a pool may be scattered", "TestPortsOfBlocks", ""},
	{"RFC 6888 REQ-4", "M", "ports per subscriber are limited: an eighth of each block is for those with few flows", "TestPortsPerSource", ""},
	{"RFC 6888 REQ-4 clusters", "M", "ports are limited per source only: remote clusters take none of another's", "TestPortsPerCluster", ""},
	{"RFC 6888 REQ-4 mappings", "M", "those of mappings are, to half of the node's", "TestMappingPorts", ""},
	{"RFC 6888 REQ-5", "M", "so is the state that a subscriber takes", "TestFlowShares", ""},
	{"RFC 6888 REQ-6", "M", "translation can be off for a destination", "TestForeignPackets", ""},
	{"RFC 6888 REQ-7", "S", "filtering is independent of the endpoint", "TestOpenMapping", ""},
	{"RFC 6888 REQ-8", "S", "a freed port rests for 120 s", "", "expired ones do not rest, closed TCP rests 2 s if needed: a block would serve 2 new connections a second (bpf/README.md)"},
	{"RFC 6888 REQ-9", "M", "subscribers control mappings", "", "our counterpart is the export of a service or a headless pod"},
	{"RFC 6888 REQ-10", "S", "it can be managed", "", "metrics, `pelago nat list|stats`, NodeIndex, PortBlock and their Events; no MIB"},
	{"RFC 6888 REQ-11", "M", "no port left: the new flow is dropped, no live one is touched", "TestVerdicts", ""},
	{"RFC 6888 REQ-12", "S", "destinations are not logged", "", "flows are shown to who may read the node's maps, and logged nowhere"},
	{"RFC 6888 REQ-13", "S", "ports are well used", "TestPortsOfBlocks", ""},
	{"RFC 6888 REQ-14", "S", "the log stays small", "", "a line for each lease of 256 ports and one for its end, with both times, in the agent's log (control/agent/ipam); none for flows"},
	{"RFC 6888 REQ-15", "S", "ports are hard to guess", "TestPortsOfBlocks", ""},
}

// Every rule has a test that exists, or a reason.
func TestRequirements(t *testing.T) {
	tests := map[string]bool{}
	for _, pattern := range []string{"*_test.go", "../netns/clusters/*_test.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("no files %s: %v", pattern, err)
		}
		for _, name := range files {
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.FuncDecl:
					tests[n.Name.Name] = true
				case *ast.BasicLit: // the name of a subtest
					tests["/"+strings.ReplaceAll(strings.Trim(n.Value, `"`), " ", "_")] = true
				}
				return true
			})
		}
	}
	for _, r := range requirements {
		if (r.test == "") == (r.why == "") || r.rule == "" || !strings.Contains("MSO", r.level) || len(r.level) != 1 {
			t.Errorf("%s: it needs a rule, a level, and either a test or a reason", r.id)
		}
		name, sub, _ := strings.Cut(r.test, "/")
		if r.test != "" && (!tests[name] || sub != "" && !tests["/"+sub]) {
			t.Errorf("%s: there is no test %s", r.id, r.test)
		}
	}
}
