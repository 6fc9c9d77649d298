package loader

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/pelago-net/pelago/dataplane"
)

// MapRow is an entry of a map, decoded.
type MapRow struct {
	Map   string `json:"map"`
	Key   string `json:"key"`
	Value any    `json:"value"`
}

// MapInfo is a map that can be dumped.
type MapInfo struct {
	Name    string `json:"name"`
	Entries int    `json:"entries"`
	Content string `json:"content"`
}

// dumps are the maps in the order of bpf/maps.h. Those that belong together are one: a service with its backends and its table.
var dumps = []struct {
	name, content string
	rows          func(t Tables, services []Service) []MapRow
}{
	{"settings", "what the node is; the tokens are left out", func(t Tables, _ []Service) []MapRow {
		s := t.State.Settings
		s.Overlay, s.Cable = dataplane.Tokens{}, dataplane.Tokens{} // secrets
		return []MapRow{{Key: "0", Value: plain(reflect.ValueOf(s))}}
	}},
	{"routes", "remote prefix: index of its cluster", func(t Tables, _ []Service) []MapRow { return rowsOf(t.State.Routes) }},
	{"nodes", "node index: how to reach the node", func(t Tables, _ []Service) []MapRow { return rowsOf(t.State.Nodes) }},
	{"gateways", "node indexes of this cluster's gateways", func(t Tables, _ []Service) []MapRow {
		return []MapRow{{Key: "0", Value: plain(reflect.ValueOf(t.State.Gateways))}}
	}},
	{"clusters", "cluster index: its gateways", func(t Tables, _ []Service) []MapRow { return rowsOf(t.State.Clusters) }},
	{"peers", "outer address: the node or gateway that may send from it", func(t Tables, _ []Service) []MapRow { return rowsOf(t.State.Peers) }},
	{"sources", "local address: its egress IP or its own global IP", func(t Tables, _ []Service) []MapRow { return rowsOf(t.State.Sources) }},
	{"externals", "range of hosts or ClusterIPs outside the cluster: what its packets are translated to; on gateways", func(t Tables, _ []Service) []MapRow { return rowsOf(t.State.Externals) }},
	{"endpoints", "local pod: its device and datapath", func(t Tables, _ []Service) []MapRow { return rowsOf(t.State.Endpoints) }},
	{"egresses", "egress IP: first ports of the blocks in which this node opens flows", func(t Tables, _ []Service) []MapRow { return rowsOf(t.State.Egresses) }},
	{"globals", "own global address: what it is", func(t Tables, _ []Service) []MapRow { return rowsOf(t.State.Globals) }},
	{"audiences", "own global address that is restricted: indexes of the clusters that may open flows to it", func(t Tables, _ []Service) (out []MapRow) {
		for address, set := range t.State.Audiences {
			clusters := []uint16{}
			for c := range uint16(dataplane.MaxClusters) {
				if set.Has(c) {
					clusters = append(clusters, c)
				}
			}
			out = append(out, MapRow{Key: address.String(), Value: clusters})
		}
		return out
	}},
	{"blocks", "port block: index of its node; on gateways", func(t Tables, _ []Service) []MapRow { return rowsOf(t.State.Blocks) }},
	{"services", "exported port: local backends, and on gateways the weights of the nodes", func(_ Tables, services []Service) (out []MapRow) {
		for _, s := range services {
			out = append(out, MapRow{Key: fmt.Sprintf("%s/%s", s.Address, s.Protocol), Value: s})
		}
		return out
	}},
	{"vips", "port of a ClusterSetIP: the clusters that serve it, with their shares", func(t Tables, _ []Service) (out []MapRow) {
		for key, v := range t.State.VIPs {
			out = append(out, MapRow{Key: key.Describe(), Value: sharesOf(v)})
		}
		return out
	}},
	{"paths", "outer address of a peer: whether it answers", func(t Tables, _ []Service) []MapRow { return rowsOf(t.Paths) }},
}

// MapNames are the names of the maps that Dump takes.
func MapNames() (out []string) {
	for _, d := range dumps {
		out = append(out, d.name)
	}
	return out
}

// Maps lists the maps with the number of their entries.
func (l *Loader) Maps() (out []MapInfo, err error) {
	err = l.eachMap(func(name, content string, rows []MapRow) { out = append(out, MapInfo{name, len(rows), content}) })
	return out, err
}

// Dump decodes one map, sorted by key.
func (l *Loader) Dump(name string) (out []MapRow, err error) {
	if !slices.Contains(MapNames(), name) {
		return nil, fmt.Errorf("map %q is not known: name one of %s", name, strings.Join(MapNames(), ", "))
	}
	err = l.eachMap(func(found, _ string, rows []MapRow) {
		if found == name {
			out = rows
		}
	})
	return out, err
}

func (l *Loader) eachMap(yield func(name, content string, rows []MapRow)) error {
	tables, err := l.Tables()
	if err != nil {
		return err
	}
	services, err := l.Services()
	if err != nil {
		return err
	}
	for _, d := range dumps {
		rows := d.rows(tables, services)
		for i := range rows {
			rows[i].Map = d.name
		}
		slices.SortFunc(rows, func(a, b MapRow) int { return cmp.Or(cmp.Compare(len(a.Key), len(b.Key)), cmp.Compare(a.Key, b.Key)) })
		yield(d.name, d.content, rows)
	}
	return nil
}

func rowsOf[K comparable, V any](m map[K]V) (out []MapRow) {
	for k, v := range m {
		key := fmt.Sprint(k)
		if b, ok := any(k).(dataplane.BlockKey); ok {
			key = fmt.Sprintf("%s:%d", b.Address, b.First)
		}
		out = append(out, MapRow{Key: key, Value: plain(reflect.ValueOf(v))})
	}
	return out
}

// vipShare is a cluster that serves a port of a ClusterSetIP, with its share of the new connections, 0–1.
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

// plain converts a value to one with JSON field names, since the types of package dataplane have no tags.
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
