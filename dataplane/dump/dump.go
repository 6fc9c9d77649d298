// Package dump holds what the maps of a node contain, decoded for people and for JSON: flows,
// packet counters, exported services and the rows of any map. It is plain Go: package loader reads
// the maps of a node; the CLI prints them, and reads the answers of nodes.
package dump

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/liveness"
)

// Row is an entry of a map, decoded.
type Row struct {
	Map   string `json:"map"`
	Key   string `json:"key"`
	Value any    `json:"value"`
}

// Map is a map that can be dumped.
type Map struct {
	Name    string `json:"name"`
	Entries int    `json:"entries"`
	Content string `json:"content"`
}

// dumps are the maps in the order of bpf/maps.h. Those that belong together are one: a service with
// its backends and its table.
var dumps = []struct {
	name, content string
	rows          func(n Node) []Row
}{
	{"settings", "what the node is; the tokens are left out", func(n Node) []Row {
		s := n.State.Settings
		s.Overlay, s.Cable = dataplane.Tokens{}, dataplane.Tokens{} // secrets
		return []Row{{Key: "0", Value: plain(reflect.ValueOf(s))}}
	}},
	{"routes", "remote prefix: index of its cluster", func(n Node) []Row { return rowsOf(n.State.Routes) }},
	{"nodes", "node index: how to reach the node", func(n Node) []Row { return rowsOf(n.State.Nodes) }},
	{"gateways", "node indexes of this cluster's gateways", func(n Node) []Row {
		return []Row{{Key: "0", Value: plain(reflect.ValueOf(n.State.Gateways))}}
	}},
	{"clusters", "cluster index: its gateways", func(n Node) []Row { return rowsOf(n.State.Clusters) }},
	{"peers", "outer address: the node or gateway that may send from it", func(n Node) []Row { return rowsOf(n.State.Peers) }},
	{"sources", "local address: its egress IP or its own global IP", func(n Node) []Row { return rowsOf(n.State.Sources) }},
	{"externals", "range of hosts or ClusterIPs outside the cluster: what its packets are translated to; on gateways", func(n Node) []Row { return rowsOf(n.State.Externals) }},
	{"endpoints", "local pod: its device and datapath", func(n Node) []Row { return rowsOf(n.State.Endpoints) }},
	{"egresses", "egress IP: first ports of the blocks in which this node opens flows", func(n Node) []Row { return rowsOf(n.State.Egresses) }},
	{"globals", "own global address: what it is", func(n Node) []Row { return rowsOf(n.State.Globals) }},
	{"audiences", "own global address that is restricted: indexes of the clusters that may open flows to it", func(n Node) (out []Row) {
		for address, set := range n.State.Audiences {
			clusters := []uint16{}
			for c := range uint16(dataplane.MaxClusters) {
				if set.Has(c) {
					clusters = append(clusters, c)
				}
			}
			out = append(out, Row{Key: address.String(), Value: clusters})
		}
		return out
	}},
	{"blocks", "port block: index of its node; on gateways", func(n Node) []Row { return rowsOf(n.State.Blocks) }},
	{"services", "exported port: local backends, and on gateways the weights of the nodes; port of a ClusterSetIP: the pods of this cluster", func(n Node) (out []Row) {
		for _, s := range n.Services {
			out = append(out, Row{Key: fmt.Sprintf("%s/%s", s.Address, s.Protocol), Value: s})
		}
		return out
	}},
	{"vips", "port of a ClusterSetIP: the clusters that serve it, with their shares", func(n Node) (out []Row) {
		for key, v := range n.State.VIPs {
			out = append(out, Row{Key: key.Describe(), Value: sharesOf(v)})
		}
		return out
	}},
	{"hairpins", "ClusterIP behind a ClusterSetIP: its global IP, for clients without an entry in endpoints", func(n Node) []Row { return rowsOf(n.State.Hairpins) }},
	{"paths", "outer address of a peer: whether it answers", func(n Node) []Row { return rowsOf(n.Paths) }},
}

// Names are the names of the maps that Rows takes.
func Names() (out []string) {
	for _, d := range dumps {
		out = append(out, d.name)
	}
	return out
}

// Node is what the maps of a node contain.
type Node struct {
	State    dataplane.State
	Paths    map[netip.Addr]liveness.Path
	Services []Service
}

// Maps lists the maps with the number of their entries.
func (n Node) Maps() (out []Map) {
	for _, d := range dumps {
		out = append(out, Map{d.name, len(d.rows(n)), d.content})
	}
	return out
}

// CheckName returns an error unless name is that of a map that can be dumped.
func CheckName(name string) error {
	if !slices.Contains(Names(), name) {
		return fmt.Errorf("map %q is not known: name one of %s", name, strings.Join(Names(), ", "))
	}
	return nil
}

// Rows decodes one map, sorted by key.
func (n Node) Rows(name string) (rows []Row, err error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	for _, d := range dumps {
		if d.name == name {
			rows = d.rows(n)
		}
	}
	for i := range rows {
		rows[i].Map = name
	}
	slices.SortFunc(rows, func(a, b Row) int { return cmp.Or(cmp.Compare(len(a.Key), len(b.Key)), cmp.Compare(a.Key, b.Key)) })
	return rows, nil
}

func rowsOf[K comparable, V any](m map[K]V) (out []Row) {
	for k, v := range m {
		key := fmt.Sprint(k)
		if b, ok := any(k).(dataplane.BlockKey); ok {
			key = fmt.Sprintf("%s:%d", b.Address, b.First)
		}
		out = append(out, Row{Key: key, Value: plain(reflect.ValueOf(v))})
	}
	return out
}

// vipShare is a cluster that serves a port of a ClusterSetIP, with its share of the new
// connections, 0–1.
type vipShare struct {
	Cluster uint16     `json:"cluster"`
	Address netip.Addr `json:"address"`
	Share   float64    `json:"share"`
}

func sharesOf(v dataplane.VIP) []vipShare {
	out := []vipShare{}
	for i, t := range v.Targets {
		slots := 0
		for _, s := range v.Slots {
			if int(s) == i {
				slots++
			}
		}
		out = append(out, vipShare{t.Cluster, t.Address, float64(slots) / float64(max(1, len(v.Slots)))})
	}
	return out
}

// plain converts a value to one with JSON field names, since the types of package dataplane have no
// tags.
func plain(v reflect.Value) any {
	switch x := v.Interface().(type) {
	case netip.Addr:
		if !x.IsValid() {
			return nil
		}
		return x.String()
	case [6]byte:
		return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", x[0], x[1], x[2], x[3], x[4], x[5])
	case dataplane.GlobalKind:
		return dataplane.Global{Kind: x}.Describe()
	case dataplane.PeerKind:
		return map[dataplane.PeerKind]string{dataplane.PeerNode: "node", dataplane.PeerGateway: "gateway"}[x]
	case time.Duration:
		return x.String()
	case fmt.Stringer:
		return x.String()
	}
	switch v.Kind() {
	case reflect.Struct:
		out := map[string]any{}
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				out[jsonName(f.Name)] = plain(v.Field(i))
			}
		}
		return out
	case reflect.Slice, reflect.Array:
		out := []any{}
		for i := range v.Len() {
			out = append(out, plain(v.Index(i)))
		}
		return out
	}
	return v.Interface()
}

// jsonName is the name of a field in JSON: CablePort is cablePort, MSS is mss, RTTVar is rttVar.
func jsonName(field string) string {
	n := 1 // capitals that become small: all at the start but that of the next word
	for n < len(field) && field[n] < 'a' && (n+1 == len(field) || field[n+1] < 'a') {
		n++
	}
	return strings.ToLower(field[:n]) + field[n:]
}
