package dataplane

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

var equal = []cmp.Option{
	cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{}), cmpopts.EquateEmpty(),
}

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

// small is a state with one entry in every table, of which each refers to another where it can.
func small() State {
	return State{
		Settings:  Settings{Address: ip("172.16.0.1"), Node: 1, Gateway: true, Ready: true},
		Nodes:     map[uint16]Hop{2: {Address: ip("172.16.0.2")}},
		Gateways:  []uint16{1, 2},
		Clusters:  map[uint16][]RemoteGateway{7: {{Node: 1, Port: 4500}}},
		Routes:    map[netip.Prefix]uint16{netip.MustParsePrefix("120.7.0.0/24"): 7},
		Peers:     map[netip.Addr]Peer{ip("172.16.0.2"): {Kind: PeerNode, Node: 2}},
		Egresses:  map[netip.Addr][]uint16{ip("120.1.0.1"): {1024}},
		Sources:   map[netip.Addr]Source{ip("10.7.0.5"): {Egress: ip("120.1.0.1")}},
		Endpoints: map[netip.Addr]Endpoint{ip("10.7.0.5"): {Ifindex: 9, Datapath: Hybrid}},
		Blocks:    map[BlockKey]uint16{{ip("120.1.0.1"), 1024}: 2},
		Services:  map[ServiceKey]Service{{ip("120.1.0.20"), 80, 6}: {Table: []uint16{2}}},
		Globals:   map[netip.Addr]Global{ip("120.1.0.20"): {Kind: GlobalService}},
	}
}

func TestDiffOrder(t *testing.T) {
	changed := func(change func(*State)) State {
		s := small()
		change(&s)
		return s
	}
	closed := State{Settings: Settings{Address: ip("172.16.0.1"), Node: 1}}
	tests := []struct {
		name       string
		have, want State
		changes    []string
	}{
		{"nothing to do", small(), small(), nil},
		{"an empty list is no list", changed(func(s *State) {
			s.Services, s.Clusters = map[ServiceKey]Service{{ip("120.1.0.20"), 80, 6}: {}}, map[uint16][]RemoteGateway{7: nil}
		}), changed(func(s *State) {
			s.Services = map[ServiceKey]Service{{ip("120.1.0.20"), 80, 6}: {Backends: []netip.AddrPort{}, Table: []uint16{}}}
			s.Clusters = map[uint16][]RemoteGateway{7: {}}
		}), nil},
		{"from nothing: what is referred to comes first, and the gate opens last", State{}, small(), []string{
			"put nodes", "put clusters", "put peers", "put blocks", "put services", "put globals", "put gateways", "put routes", "put egresses",
			"put sources", "put endpoints", "put settings",
		}},
		{"to nothing: the gate closes first, and what is referred to goes last", small(), State{}, []string{
			"put settings", "put gateways", "remove endpoints", "remove sources", "remove egresses", "remove routes", "remove globals", "remove services",
			"remove blocks", "remove peers", "remove clusters", "remove nodes", "put settings",
		}},
		{"a node is replaced by another as the second gateway", small(), changed(func(s *State) {
			s.Nodes = map[uint16]Hop{3: {Address: ip("172.16.0.3")}}
			s.Gateways = []uint16{1, 3}
		}), []string{"put nodes", "put gateways", "remove nodes"}},
		{"a pod moves to another egress IP", small(), changed(func(s *State) {
			s.Egresses = map[netip.Addr][]uint16{ip("120.1.0.2"): {1024}}
			s.Sources = map[netip.Addr]Source{ip("10.7.0.5"): {Egress: ip("120.1.0.2")}}
		}), []string{"put egresses", "put sources", "remove egresses"}},
		{"it ceases to be a gateway and becomes ready", closedGateway(), State{Settings: Settings{Node: 1, Ready: true}}, []string{
			"put settings gateway=false ready=false", "put settings gateway=false ready=true",
		}},
		{"only a secret changes", closed, State{Settings: Settings{Address: ip("172.16.0.1"), Node: 1, Overlay: Tokens{Current: 5}}}, []string{"put settings"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			changes := Diff(tt.have, tt.want, steps)
			for _, c := range changes {
				line := c.what
				if tt.name == "it ceases to be a gateway and becomes ready" {
					line += fmt.Sprintf(" gateway=%t ready=%t", c.settings.Gateway, c.settings.Ready)
				}
				got = append(got, line)
			}
			if diff := cmp.Diff(tt.changes, got, equal...); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
		})
	}
}

func closedGateway() State { return State{Settings: Settings{Node: 1, Gateway: true}} }

// step is one of a test: it changes a State.
type step struct {
	what     string // put or remove, and the table
	entry    string
	settings Settings
	apply    func(*State)
}

var steps = Steps[step]{
	Settings: func(v Settings) step {
		return step{"put settings", fmt.Sprint(v), v, func(s *State) { s.Settings = v }}
	},
	Gateways: func(v []uint16) step {
		return step{what: "put gateways", entry: fmt.Sprint(v), apply: func(s *State) { s.Gateways = v }}
	},
	VIPRange: func(v netip.Prefix) step {
		return step{what: "put VIP range", entry: fmt.Sprint(v), apply: func(s *State) { s.VIPRange = v }}
	},
	Routes:    stepOf("routes", func(s *State) *map[netip.Prefix]uint16 { return &s.Routes }),
	Nodes:     stepOf("nodes", func(s *State) *map[uint16]Hop { return &s.Nodes }),
	Clusters:  stepOf("clusters", func(s *State) *map[uint16][]RemoteGateway { return &s.Clusters }),
	Peers:     stepOf("peers", func(s *State) *map[netip.Addr]Peer { return &s.Peers }),
	Sources:   stepOf("sources", func(s *State) *map[netip.Addr]Source { return &s.Sources }),
	Externals: stepOf("externals", func(s *State) *map[netip.Prefix]Source { return &s.Externals }),
	Endpoints: stepOf("endpoints", func(s *State) *map[netip.Addr]Endpoint { return &s.Endpoints }),
	Egresses:  stepOf("egresses", func(s *State) *map[netip.Addr][]uint16 { return &s.Egresses }),
	Globals:   stepOf("globals", func(s *State) *map[netip.Addr]Global { return &s.Globals }),
	Audiences: stepOf("audiences", func(s *State) *map[netip.Addr]ClusterSet { return &s.Audiences }),
	Blocks:    stepOf("blocks", func(s *State) *map[BlockKey]uint16 { return &s.Blocks }),
	Services:  stepOf("services", func(s *State) *map[ServiceKey]Service { return &s.Services }),
	VIPPods:   stepOf("vip pods", func(s *State) *map[VIPPod]uint16 { return &s.VIPPods }),
	VIPs:      stepOf("vips", func(s *State) *map[ServiceKey]VIP { return &s.VIPs }),
	// no field of State
	Backings: stepOf("backings", func(*State) *map[netip.Addr]netip.Addr { return &map[netip.Addr]netip.Addr{} }),
}

func stepOf[K comparable, V any](table string, field func(*State) *map[K]V) func(K, *V) step {
	return func(k K, v *V) step {
		out := step{what: "put " + table, entry: fmt.Sprint(k)}
		if v == nil {
			out.what = "remove " + table
		} else {
			out.entry += fmt.Sprintf(": %+v", *v)
		}
		out.apply = func(s *State) {
			m := maps.Clone(*field(s))
			switch {
			case v == nil:
				delete(m, k)
			case m == nil:
				m = map[K]V{k: *v}
			default:
				m[k] = *v
			}
			*field(s) = m
		}
		return out
	}
}

// words are the steps without the functions that take them.
func words(steps []step) (out []string) {
	for _, s := range steps {
		out = append(out, s.what+" "+s.entry)
	}
	return out
}

// problems are the references of a state to what is not there.
func problems(s State) (out []string) {
	node := func(what string, index uint16) {
		if _, ok := s.Nodes[index]; !ok && index != s.Settings.Node {
			out = append(out, fmt.Sprintf("%s names node %d, which is not there", what, index))
		}
	}
	for _, g := range s.Gateways {
		node("the set of gateways", g)
	}
	for p, cluster := range s.Routes {
		if _, ok := s.Clusters[cluster]; !ok && s.Settings.Gateway {
			out = append(out, fmt.Sprintf("route %s names cluster %d, which has no gateways", p, cluster))
		}
	}
	for a, source := range s.Sources {
		if _, ok := s.Egresses[source.Egress]; !ok && source.Egress.IsValid() {
			out = append(out, fmt.Sprintf("source %s names egress IP %s, which has no blocks", a, source.Egress))
		}
	}
	for key, index := range s.Blocks {
		node(fmt.Sprintf("block %v", key), index)
	}
	services := map[netip.Addr]bool{}
	for key, service := range s.Services {
		services[key.Address] = true
		for _, index := range service.Table {
			node(fmt.Sprintf("service %v", key), index)
		}
	}
	for a, g := range s.Globals {
		if g.Kind == GlobalPod {
			node("global IP "+a.String(), g.Node)
		}
		if _, ok := s.Audiences[a]; g.Restricted && !ok {
			out = append(out, fmt.Sprintf("global IP %s is restricted to nobody", a))
		}
		if g.Kind == GlobalService && !services[a] {
			out = append(out, fmt.Sprintf("global IP %s is of a service that has no port", a))
		}
	}
	return out
}

// drawState draws a state without problems. Few keys, so that two of them overlap.
func drawState(t *rapid.T, label string) State {
	s := State{
		Settings: Settings{
			Address: ip("172.16.0.1"), Node: 1, Ready: rapid.Bool().Draw(t, label+" ready"), Gateway: rapid.Bool().Draw(t, label+" gateway"),
			MSS: rapid.SampledFrom([]uint16{0, 1410}).Draw(t, label+" mss"),
		},
		Nodes: map[uint16]Hop{}, Clusters: map[uint16][]RemoteGateway{}, Routes: map[netip.Prefix]uint16{}, Peers: map[netip.Addr]Peer{},
		Egresses: map[netip.Addr][]uint16{}, Sources: map[netip.Addr]Source{}, Blocks: map[BlockKey]uint16{},
		Services: map[ServiceKey]Service{}, Globals: map[netip.Addr]Global{}, Audiences: map[netip.Addr]ClusterSet{},
	}
	few := func(what string) []int {
		return rapid.SliceOfNDistinct(rapid.IntRange(2, 5), 0, 4, rapid.ID).Draw(t, label+" "+what)
	}
	variant := func(what string) byte { return byte(rapid.IntRange(0, 2).Draw(t, label+" "+what)) }
	nodes := []uint16{1}
	for _, n := range few("nodes") {
		a := netip.AddrFrom4([4]byte{172, 16, variant("node's address"), byte(n)})
		s.Nodes[uint16(n)], s.Peers[a] = Hop{Address: a, Next: a}, Peer{Kind: PeerNode, Node: uint16(n)}
		nodes = append(nodes, uint16(n))
	}
	anyNode := func(what string) uint16 { return rapid.SampledFrom(nodes).Draw(t, label+" "+what) }
	for range variant("gateways") {
		s.Gateways = append(s.Gateways, anyNode("gateway"))
	}
	for _, n := range few("clusters") {
		s.Clusters[uint16(n)] = []RemoteGateway{{Node: uint16(variant("remote gateway"))}}
		s.Routes[netip.PrefixFrom(netip.AddrFrom4([4]byte{120, byte(n), 0, 0}), 24)] = uint16(n)
	}
	for _, n := range few("egress IPs") {
		a := netip.AddrFrom4([4]byte{120, 1, 0, byte(n)})
		s.Egresses[a], s.Globals[a] = []uint16{1024 * uint16(1+variant("block"))}, Global{Kind: GlobalEgress}
		s.Blocks[BlockKey{a, 1024}] = anyNode("owner")
		s.Sources[netip.AddrFrom4([4]byte{10, 7, 0, variant("source")})] = Source{Egress: a}
	}
	for _, n := range few("services") {
		a := netip.AddrFrom4([4]byte{120, 1, 1, byte(n)})
		s.Services[ServiceKey{a, 80, 6}], s.Globals[a] = Service{Table: []uint16{anyNode("backend")}}, Global{Kind: GlobalService}
		if clusters := variant("audience"); clusters > 0 {
			s.Globals[a], s.Audiences[a] = Global{Kind: GlobalService, Restricted: true}, ClusterSet{uint64(clusters)}
		}
	}
	for _, n := range few("pods") {
		s.Globals[netip.AddrFrom4([4]byte{120, 1, 2, byte(n)})] = Global{Kind: GlobalPod, Node: anyNode("pod")}
	}
	return s
}

// From any state to any other: the steps lead there, no intermediate state has a dangling reference
// or an open gate that is closed at either end, and the steps do not depend on map iteration order.
func TestDiffLeadsThere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		have, want := drawState(t, "have"), drawState(t, "want")
		if p := slices.Concat(problems(have), problems(want)); len(p) > 0 {
			t.Fatalf("the test draws broken states: %v", p)
		}
		s := have
		changes := Diff(have, want, steps)
		for i, c := range changes {
			c.apply(&s)
			if p := problems(s); len(p) > 0 {
				t.Fatalf("after step %d (%s %s): %v", i, c.what, c.entry, p)
			}
			if half := i < len(changes)-1; half && (s.Settings.Ready && !(have.Settings.Ready && want.Settings.Ready) ||
				s.Settings.Gateway && !(have.Settings.Gateway && want.Settings.Gateway)) {
				t.Fatalf("after step %d (%s %s) of %d a gate is open: %+v", i, c.what, c.entry, len(changes), s.Settings)
			}
		}
		if diff := cmp.Diff(want, s, equal...); diff != "" {
			t.Fatalf("the steps lead elsewhere (-want +got):\n%s", diff)
		}
		if again := Diff(s, want, steps); len(again) > 0 {
			t.Fatalf("there is something to do at the end: %q", words(again))
		}
		if diff := cmp.Diff(words(changes), words(Diff(have, want, steps))); diff != "" {
			t.Fatalf("a second time the steps are others:\n%s", diff)
		}
	})
}
