package dump

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/pelago-net/pelago/dataplane"
)

// The maps of State are all dumped, each under its name, and without the secret tokens.
func TestDump(t *testing.T) {
	node := Node{State: dataplane.State{
		Settings: dataplane.Settings{Node: 2, CablePort: 4500, MSS: 1360, Overlay: dataplane.Tokens{Current: 11259375}, Cable: dataplane.Tokens{Old: 11259375}},
		Sources:  map[netip.Addr]dataplane.Source{netip.MustParseAddr("10.7.2.10"): {Egress: netip.MustParseAddr("120.1.0.3"), Ifindex: 7}},
		Globals:  map[netip.Addr]dataplane.Global{netip.MustParseAddr("120.1.0.3"): {Kind: dataplane.GlobalEgress}},
		Blocks:   map[dataplane.BlockKey]uint16{{Address: netip.MustParseAddr("120.1.0.3"), First: 1280}: 2},
		VIPs: map[dataplane.ServiceKey]dataplane.VIP{{Address: netip.MustParseAddr("120.250.0.1"), Port: 80, Protocol: 6}: {
			Targets: []dataplane.VIPTarget{{Cluster: 2, Address: netip.MustParseAddr("120.2.0.20")}, {Cluster: 3, Address: netip.MustParseAddr("120.3.0.20")}},
			Slots:   []uint8{0, 0, 0, 1},
		}},
	}}
	node.Services = []Service{{Address: netip.MustParseAddrPort("120.1.0.9:80"), Protocol: "tcp"}}
	got := map[string]string{}
	for _, d := range dumps {
		text, err := json.Marshal(d.rows(node))
		if err != nil {
			t.Fatal(err)
		}
		got[d.name] = string(text)
		if strings.Contains(string(text), "11259375") {
			t.Errorf("map %s shows a token: %s", d.name, text)
		}
	}
	for name, want := range map[string]string{
		"settings": `"cablePort":4500`,
		"sources":  `"key":"10.7.2.10","value":{"egress":"120.1.0.3","external":false,"host":false,"ifindex":7,"mapped":false,"open":false,"own":null,"routed":false}`,
		"globals":  `"kind":"egress IP"`,
		"blocks":   `"key":"120.1.0.3:1280","value":2`,
		"services": `"key":"120.1.0.9:80/tcp"`,
		"vips":     `{"cluster":2,"address":"120.2.0.20","share":0.75}`,
	} {
		if !strings.Contains(got[name], want) {
			t.Errorf("map %s is %s; want %s in it", name, got[name], want)
		}
	}
	// A new table of State needs a dump.
	named := map[string]string{"VIPRange": "vips", "VIPPods": "services"}
	state := reflect.TypeFor[dataplane.State]()
	for i := range state.NumField() {
		field := state.Field(i).Name
		name := named[field]
		if name == "" {
			name = strings.ToLower(field)
		}
		if _, ok := got[name]; !ok {
			t.Errorf("State.%s has no dump %q", field, name)
		}
	}
}

func TestJSONName(t *testing.T) {
	for field, want := range map[string]string{"Node": "node", "CablePort": "cablePort", "MSS": "mss", "RTTVar": "rttVar", "SRTT": "srtt", "OldestOpen": "oldestOpen"} {
		if got := jsonName(field); got != want {
			t.Errorf("%s: %q, want %q", field, got, want)
		}
	}
}
