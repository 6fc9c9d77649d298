package trace

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
)

// allowed is the verdict of a check that the packet passes: the next one decides.
const allowed = bpf.PelagoVerdictVERDICT_CONTINUE

// Packet is the TCP SYN, UDP datagram or SCTP packet that opens a flow.
type Packet struct {
	Protocol    uint8          `json:"protocol"` // IANA number: 6 TCP, 17 UDP, 132 SCTP
	Source      netip.AddrPort `json:"source"`
	Destination netip.AddrPort `json:"destination"`
}

// be32 and be16 are an address and a port in network order, as the programs hash them.
func be32(a netip.Addr) uint32 {
	if !a.IsValid() {
		return 0
	}
	b := a.As4()
	return binary.NativeEndian.Uint32(b[:])
}

func be16(p uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], p)
	return binary.NativeEndian.Uint16(b[:])
}

// hash is flow_hash() of bpf/parse.h.
func (p Packet) hash() uint32 {
	ports := uint32(be16(p.Source.Port()))<<16 | uint32(be16(p.Destination.Port()))
	return dataplane.Mix(dataplane.Mix(be32(p.Source.Addr()), be32(p.Destination.Addr())), ports^uint32(p.Protocol))
}

func (p Packet) service() dataplane.ServiceKey {
	return dataplane.ServiceKey{Address: p.Destination.Addr(), Port: p.Destination.Port(), Protocol: p.Protocol}
}

// Header is what the headers of an overlay or cable packet contain.
type Header struct {
	Source      netip.Addr `json:"source"`
	Destination netip.Addr `json:"destination"`
	Port        uint16     `json:"port"`  // UDP
	Cable       bool       `json:"cable"` // between gateways of two clusters
	Token       uint32     `json:"-"`     // a secret
	Node        uint16     `json:"node"`  // index of the node that has the flow; 0: none
	Bounced     bool       `json:"bounced"`
	// for this cluster, sent to a gateway, which picks the node
	Switch bool `json:"switch"`
	// Client identifies the client among those that share the packet's source address; 0: unknown.
	Client uint32 `json:"client,omitempty"`
}

// Step is the decision of one node's programs about a packet.
type Step struct {
	Hook string `json:"hook"`
	// Verdict is the word of enum verdict in bpf/types.h.
	Verdict string `json:"verdict"`
	// Packet is the packet after the step.
	Packet Packet `json:"packet"`
	// Header is that of the packet sent, if the verdict is sent, switched or bounced.
	Header *Header `json:"header,omitempty"`
	// Next is the node that the packet is sent to, Path the quality of the path there: good, stale,
	// lossy, bad, gone.
	Next *Place `json:"next,omitempty"`
	Path string `json:"path,omitempty"`
	// Used are the entries of the maps by which it was decided, in order.
	Used []Entry `json:"used,omitempty"`
}

// Place is a node of a cluster, by their indexes.
type Place struct {
	Cluster uint16 `json:"cluster"`
	Node    uint16 `json:"node"`
}

// Entry is what a program read from a map.
type Entry struct {
	Map   string `json:"map"`
	Key   string `json:"key"`
	Value string `json:"value"` // "none": there is no such entry
}

func (e Entry) String() string { return e.Map + "[" + e.Key + "] = " + e.Value }

// trail is recorded during a step.
type trail struct {
	used    []Entry
	next    *Place
	path    bpf.PelagoRank
	ifindex uint32 // of the device that the packet leaves by
}

// note records the entry of a map.
func (t Tables) note(name string, key any, format string, args ...any) {
	e := Entry{Map: name, Key: fmt.Sprint(key), Value: fmt.Sprintf(format, args...)}
	if t.trail != nil && !slices.Contains(t.trail.used, e) {
		t.trail.used = append(t.trail.used, e)
	}
}

// leads records where a packet is sent.
func (t Tables) leads(to Place, path bpf.PelagoRank, ifindex uint32) {
	if t.trail != nil {
		t.trail.next, t.trail.path, t.trail.ifindex = &to, path, ifindex
	}
}

// finish adds to a step what was recorded. A packet larger than the device takes is dropped:
// encap_fits() of bpf/encap.h.
func (t Tables) finish(s Step) Step {
	s.Used = t.trail.used
	if s.Header == nil {
		return s
	}
	if mtu := t.MTU[t.trail.ifindex]; mtu > 0 && t.Size+int(bpf.PelagoEncapLenENCAP_LEN) > mtu {
		t.note("devices", t.trail.ifindex, "MTU %d; a packet of %d bytes needs %d", mtu, t.Size, t.Size+int(bpf.PelagoEncapLenENCAP_LEN))
		return Step{Hook: s.Hook, Verdict: bpf.PelagoVerdictVERDICT_DROP_TOO_BIG.String(), Packet: s.Packet, Used: t.trail.used}
	}
	s.Next, s.Path = t.trail.next, t.trail.path.String()
	return s
}

// Dropped reports whether the packet ends here.
func (s Step) Dropped() bool { return strings.HasPrefix(s.Verdict, "drop-") }

// Leave is what edge_out decides about a packet of a local pod or of the node. sourcePort is the
// port after translation, of which the programs draw one at random; 0 stands for the first one of
// the node's blocks.
func (t Tables) Leave(p Packet, sourcePort uint16) Step {
	t.trail = &trail{}
	return t.finish(t.leave(p, sourcePort))
}

func (t Tables) leave(p Packet, sourcePort uint16) Step {
	step := func(verdict bpf.PelagoVerdict) Step {
		return Step{Hook: bpf.PelagoHookHOOK_EDGE_OUT.String(), Verdict: verdict.String(), Packet: p}
	}
	src, ok := t.State.Source(p.Source.Addr())
	if !t.State.Settings.Ready {
		t.note("settings", 0, "ready: false")
		return step(bpf.PelagoVerdictVERDICT_DROP_NOT_READY)
	}
	if !ok {
		t.note("sources", p.Source.Addr(), "none")
		return step(bpf.PelagoVerdictVERDICT_DROP_UNKNOWN_SOURCE)
	}
	t.note("sources", p.Source.Addr(), "%s", src.Describe())
	var cluster uint16
	d, client := p.Destination, dataplane.Mix(be32(p.Source.Addr()), uint32(bpf.PelagoSeedSEED_CLIENT))
	mapped := src.Mapped && p.Protocol == dataplane.ProtocolUDP && !src.Own.IsValid()
	vip := t.State.VIPRange.IsValid() && t.State.VIPRange.Contains(d.Addr())
	if vip {
		if _, ok := t.State.Endpoints[p.Source.Addr()]; ok {
			if to, ok := t.pickTarget(p, atClusterIP); ok && to.Cluster == t.State.Settings.Cluster {
				p.Destination = t.ownPod(p, netip.AddrPortFrom(to.Address, d.Port()))
				return Step{Hook: bpf.PelagoHookHOOK_POD_OUT.String(), Verdict: bpf.PelagoVerdictVERDICT_OWN_SERVICE.String(), Packet: p}
			}
		}
	}
	if p.Protocol == dataplane.ProtocolSCTP && !src.Own.IsValid() {
		return step(bpf.PelagoVerdictVERDICT_DROP_PROTOCOL) // its port would change
	}
	if mapped {
		if shown, ok := t.mapping(src, p.Source); ok {
			sourcePort = shown.Port()
		} else if verdict := t.findPort(src, Packet{Protocol: p.Protocol}); verdict != allowed {
			return step(verdict)
		}
	}
	if vip {
		if _, ok := t.State.VIPs[p.service()]; !ok {
			t.note("vips", p.service().Describe(), "none")
			return step(bpf.PelagoVerdictVERDICT_DROP_NO_SERVICE)
		}
		to, ok := t.pickTarget(p, t.atGlobalIP)
		if !ok {
			return step(bpf.PelagoVerdictVERDICT_DROP_NO_BACKEND)
		}
		cluster, p.Destination = to.Cluster, netip.AddrPortFrom(to.Address, d.Port())
	} else if cluster, ok = t.route(d.Addr()); !ok {
		return step(bpf.PelagoVerdictVERDICT_DROP_NO_ROUTE)
	}
	if src.Own.IsValid() {
		p.Source = netip.AddrPortFrom(src.Own, p.Source.Port())
	} else {
		if verdict := t.findPort(src, p); verdict != allowed && !mapped {
			return step(verdict)
		}
		p.Source = netip.AddrPortFrom(src.Egress, cmp.Or(sourcePort, t.State.Egresses[src.Egress][0]))
	}
	sent, self := step(bpf.PelagoVerdictVERDICT_SENT), t.State.Settings
	own := cluster == self.Cluster
	if own && self.Gateway { // received on its own pelago0
		sent.Header = &Header{Source: self.Address, Destination: self.Address, Port: dataplane.OverlayPort, Token: self.Overlay.Current, Switch: true, Client: client}
		return sent
	}
	gateway, _ := t.pickGateway(t.gatewayHash(p.hash()), cluster, 0)
	if gateway == 0 {
		return step(bpf.PelagoVerdictVERDICT_DROP_NO_GATEWAY)
	}
	if t.State.Settings.Gateway && gateway == t.State.Settings.Node {
		if sent.Header, _ = t.toCluster(cluster, p.hash()); sent.Header == nil {
			return step(bpf.PelagoVerdictVERDICT_DROP_NO_GATEWAY)
		}
	} else if sent.Header = t.toNode(gateway); sent.Header == nil {
		return step(bpf.PelagoVerdictVERDICT_DROP_UNKNOWN_NODE)
	}
	sent.Header.Switch, sent.Header.Client = own, client
	return sent
}

// findPort returns the verdict on a source for whose flow to a destination, or mapping, no port is
// free; allowed if one is.
func (t Tables) findPort(src dataplane.Source, p Packet) (verdict bpf.PelagoVerdict) {
	blocks := t.State.Egresses[src.Egress]
	if len(blocks) == 0 {
		t.note("egresses", src.Egress, "no port block")
		return bpf.PelagoVerdictVERDICT_DROP_NO_EGRESS
	}
	towards := "by mappings"
	if p.Destination.IsValid() {
		towards = fmt.Sprintf("towards %s", p.Destination)
	}
	p.Source = netip.AddrPortFrom(src.Egress, 0)
	t.note("egresses", src.Egress, "%d ports, %d in use %s", len(blocks)*dataplane.BlockPorts, t.PortsInUse[p], towards)
	if t.PortsInUse[p] >= len(blocks)*dataplane.BlockPorts {
		return bpf.PelagoVerdictVERDICT_DROP_PORTS_EXHAUSTED
	}
	return allowed
}

// Receive is what uplink_in, or wire_in, decides about a packet of another node, or edge_in about
// one that this node has sent itself.
func (t Tables) Receive(p Packet, h Header) Step {
	t.trail = &trail{}
	// rx_validate() of bpf/rx.h: a cluster bounces a packet once, whatever the other one did
	if h.Cable {
		h.Bounced, h.Switch = false, false
	}
	r := reception{Tables: t, packet: p, header: h}
	verdict := r.validate()
	if verdict == allowed {
		verdict = r.decide()
	}
	hook := bpf.PelagoHookHOOK_UPLINK_IN
	if h.Cable && t.State.Settings.CablePort == 0 {
		hook = bpf.PelagoHookHOOK_WIRE_IN
	}
	if h.Source == t.State.Settings.Address {
		hook = bpf.PelagoHookHOOK_HAIRPIN
	}
	step := Step{Hook: hook.String(), Verdict: verdict.String(), Packet: r.packet}
	if verdict == bpf.PelagoVerdictVERDICT_SWITCHED || verdict == bpf.PelagoVerdictVERDICT_BOUNCED {
		step.Header = r.to
	}
	return t.finish(step)
}

// reception is a received packet and what is decided about it.
type reception struct {
	Tables
	packet Packet
	header Header
	peer   dataplane.Peer
	to     *Header
}

// validate is rx_validate() of bpf/rx.h; allowed: the packet is valid.
func (r *reception) validate() bpf.PelagoVerdict {
	kind, tokens := dataplane.PeerNode, r.State.Settings.Overlay
	if r.header.Cable {
		kind, tokens = dataplane.PeerGateway, r.State.Settings.Cable
	}
	if r.header.Source == r.State.Settings.Address {
		r.peer = dataplane.Peer{Kind: dataplane.PeerNode, Node: r.State.Settings.Node}
		return allowed
	}
	var ok bool
	r.peer, ok = r.State.Peers[r.header.Source]
	r.note("peers", r.header.Source, "%s", r.peer.Describe())
	switch {
	case !ok || r.peer.Kind != kind:
		return bpf.PelagoVerdictVERDICT_DROP_UNKNOWN_PEER
	case r.header.Token != tokens.Current && (tokens.Old == 0 || r.header.Token != tokens.Old):
		r.note("settings", 0, "another token")
		return bpf.PelagoVerdictVERDICT_DROP_BAD_TOKEN
	case !r.State.Settings.Ready:
		return bpf.PelagoVerdictVERDICT_DROP_NOT_READY
	}
	return allowed
}

// decide is fwd_decide() of bpf/fwd.h, and deliver() of bpf/deliver.h for a new flow.
func (r *reception) decide() bpf.PelagoVerdict {
	if r.header.Cable {
		if !r.State.Settings.Gateway {
			return bpf.PelagoVerdictVERDICT_DROP_NOT_GATEWAY
		}
		if cluster, ok := r.route(r.packet.Source.Addr()); !ok || cluster != r.peer.Cluster {
			return bpf.PelagoVerdictVERDICT_DROP_SPOOFED_SOURCE
		}
		return r.toOwn()
	}
	if !r.State.Settings.Gateway {
		return r.deliver()
	}
	if r.header.Switch {
		_, known := r.State.Globals[r.packet.Source.Addr()]
		if r.header.Bounced {
			_, known = r.route(r.packet.Source.Addr())
		}
		if !known {
			return bpf.PelagoVerdictVERDICT_DROP_SPOOFED_SOURCE
		}
		return r.toOwn()
	}
	if cluster, ok := r.route(r.packet.Destination.Addr()); ok && cluster != r.State.Settings.Cluster {
		return r.toRemote(cluster)
	}
	return r.deliver()
}

// send sets the headers of the packet sent on.
func (r *reception) send(to *Header, node uint16, bounced, toGateway bool) {
	to.Node, to.Bounced, to.Switch, to.Client = node, bounced, toGateway, r.header.Client
	r.to = to
}

// sibling is a gateway to which the packet may be bounced once; nil if none exists.
func (r *reception) sibling(cluster uint16, onlyGood bool) *Header {
	if r.header.Bounced {
		return nil
	}
	node, doubtful := r.pickGateway(r.gatewayHash(r.packet.hash()), cluster, r.State.Settings.Node)
	if onlyGood && doubtful {
		return nil
	}
	return r.toNode(node)
}

// bounce sends the packet to another gateway, which picks the node.
func (r *reception) bounce(otherwise bpf.PelagoVerdict) bpf.PelagoVerdict {
	to := r.sibling(0, false)
	if to == nil {
		return otherwise
	}
	r.send(to, 0, true, true)
	return bpf.PelagoVerdictVERDICT_BOUNCED
}

// toRemote is fwd_out() of bpf/fwd.h.
func (r *reception) toRemote(cluster uint16) bpf.PelagoVerdict {
	if _, ok := r.global(r.packet.Source.Addr()); !ok {
		return bpf.PelagoVerdictVERDICT_DROP_SPOOFED_SOURCE
	}
	to, doubtful := r.toCluster(cluster, r.packet.hash())
	if to == nil || doubtful {
		if sibling := r.sibling(cluster, to != nil); sibling != nil {
			r.send(sibling, r.header.Node, true, r.header.Switch)
			return bpf.PelagoVerdictVERDICT_BOUNCED
		}
	}
	if to == nil {
		return bpf.PelagoVerdictVERDICT_DROP_NO_GATEWAY
	}
	r.send(to, r.header.Node, r.header.Bounced, r.header.Switch)
	return bpf.PelagoVerdictVERDICT_SWITCHED
}

// global is an own address that other clusters may send to, or outside the cluster and routed
// (external_routed() of bpf/encap.h).
func (r *reception) global(a netip.Addr) (dataplane.Global, bool) {
	g, ok := r.State.Globals[a]
	if src, local := r.State.Source(a); !ok && local && src.Routed {
		g, ok = dataplane.Global{Kind: dataplane.GlobalExternal, Pod: a}, true
		r.note("externals", a, "routed")
	} else {
		r.note("globals", a, "%s", g.Describe())
	}
	return g, ok
}

// toOwn is fwd_in() of bpf/fwd.h.
func (r *reception) toOwn() bpf.PelagoVerdict {
	destination, self := r.packet.Destination, r.State.Settings.Node
	g, ok := r.global(destination.Addr())
	if !ok {
		return bpf.PelagoVerdictVERDICT_DROP_NOT_OWN
	}
	node, sticky := g.Node, false
	switch g.Kind {
	case dataplane.GlobalEgress:
		first := destination.Port() &^ (dataplane.BlockPorts - 1)
		block := dataplane.BlockKey{Address: destination.Addr(), First: first}
		if node, ok = r.State.Blocks[block]; !ok {
			r.note("blocks", fmt.Sprintf("%s:%d", block.Address, first), "none")
			return r.bounce(bpf.PelagoVerdictVERDICT_DROP_UNKNOWN_BLOCK)
		}
	case dataplane.GlobalExternal:
		if node = r.header.Node; r.toNode(node) == nil {
			node = self
		} else {
			sticky = true
		}
	case dataplane.GlobalService:
		if node = r.header.Node; node == self || r.toNode(node) != nil {
			sticky = true
		} else {
			service, ok := r.service()
			if !ok {
				return bpf.PelagoVerdictVERDICT_DROP_NO_SERVICE
			}
			except := uint16(0)
			if r.header.Bounced {
				except = r.peer.Node
			}
			hash := r.serviceHash(service)
			if node = pickNode(service, hash, except); node == 0 {
				return bpf.PelagoVerdictVERDICT_DROP_NO_BACKEND
			}
			if to := r.toNode(node); to != nil && r.Paths[to.Destination].Dead() {
				node = cmp.Or(r.pickLiveNode(service, hash, except), node)
			}
		}
	}
	if node == self {
		return r.deliver()
	}
	to := r.toNode(node)
	if to == nil {
		return bpf.PelagoVerdictVERDICT_DROP_UNKNOWN_NODE
	}
	if r.pathRank(to.Destination) >= bpf.PelagoRankRANK_BAD {
		if sibling := r.sibling(0, true); sibling != nil {
			r.send(sibling, r.header.Node, true, true)
			return bpf.PelagoVerdictVERDICT_BOUNCED
		}
	}
	if sticky && r.packet.Protocol != dataplane.ProtocolTCP && r.Paths[to.Destination].Dead() {
		if node = self; g.Kind == dataplane.GlobalService {
			service, _ := r.service()
			node = r.pickLiveNode(service, r.serviceHash(service), 0)
		}
		if node == self {
			return r.deliver()
		}
		if live := r.toNode(node); live != nil {
			r.send(live, 0, r.header.Bounced, false)
			return bpf.PelagoVerdictVERDICT_SWITCHED
		}
	}
	r.send(to, r.header.Node, r.header.Bounced, false)
	return bpf.PelagoVerdictVERDICT_SWITCHED
}

func (r *reception) service() (dataplane.Service, bool) {
	s, ok := r.State.Services[r.packet.service()]
	if key := r.packet.service().Describe(); ok {
		r.note("services", key, "%d backends on this node, a table of %d slots", len(s.Backends), len(s.Table))
	} else {
		r.note("services", key, "none")
	}
	return s, ok
}

func (r *reception) serviceHash(s dataplane.Service) uint32 {
	return r.packet.serviceHash(s, r.header.Client)
}

// serviceHash is service_hash() of bpf/lb.h.
func (p Packet) serviceHash(s dataplane.Service, client uint32) uint32 {
	if s.Affinity == 0 {
		return p.hash()
	}
	source := be32(p.Source.Addr())
	if client != 0 {
		source = dataplane.Mix(source, client)
	}
	return dataplane.Mix(source, be32(p.Destination.Addr()))
}

// backend is lb_pick_backend() of bpf/lb.h for a client without a former backend.
func (p Packet) backend(s dataplane.Service, client uint32) netip.AddrPort {
	hash := p.serviceHash(s, client)
	if s.Affinity == 0 {
		return s.Backends[dataplane.Mix(hash, uint32(bpf.PelagoSeedSEED_BACKEND))%uint32(len(s.Backends))]
	}
	hash ^= uint32(bpf.PelagoSeedSEED_BACKEND)
	const most = int(bpf.PelagoSlotTriesSTICKY_BACKENDS)
	part := s.Backends[int(dataplane.Mix(hash, 0))%((len(s.Backends)+most-1)/most)*most:]
	weight := func(b netip.AddrPort) uint32 {
		return dataplane.Mix(dataplane.Mix(hash, be32(b.Addr())), uint32(be16(b.Port())))
	}
	return slices.MaxFunc(part[:min(len(part), most)], func(a, b netip.AddrPort) int { return cmp.Compare(weight(a), weight(b)) })
}

// deliver is deliver() of bpf/deliver.h for a packet that opens a flow.
func (r *reception) deliver() bpf.PelagoVerdict {
	destination := r.packet.Destination
	g, ok := r.global(destination.Addr())
	if !ok {
		return bpf.PelagoVerdictVERDICT_DROP_NOT_OWN
	}
	cluster, ok := r.route(r.packet.Source.Addr())
	if g.Restricted && !(ok && r.State.Audiences[destination.Addr()].Has(cluster)) {
		return bpf.PelagoVerdictVERDICT_DROP_NOT_EXPORTED
	}
	if !ok {
		return bpf.PelagoVerdictVERDICT_DROP_SPOOFED_SOURCE
	}
	switch g.Kind {
	case dataplane.GlobalPod, dataplane.GlobalExternal:
		if !g.Pod.IsValid() {
			return bpf.PelagoVerdictVERDICT_DROP_NO_BACKEND
		}
		r.packet.Destination = netip.AddrPortFrom(g.Pod, destination.Port())
	case dataplane.GlobalService:
		service, ok := r.service()
		if !ok {
			return bpf.PelagoVerdictVERDICT_DROP_NO_SERVICE
		}
		if len(service.Backends) == 0 {
			return r.deliverElsewhere(service)
		}
		r.packet.Destination = r.packet.backend(service, r.header.Client)
	default:
		if r.packet.Destination, ok = r.mappedIn(r.packet); !ok {
			r.packet.Destination = destination
			return bpf.PelagoVerdictVERDICT_DROP_NO_FLOW
		}
	}
	if r.packet.Protocol == dataplane.ProtocolSCTP && r.packet.Destination.Port() != destination.Port() {
		return bpf.PelagoVerdictVERDICT_DROP_PROTOCOL
	}
	return bpf.PelagoVerdictVERDICT_DELIVERED
}

// deliverElsewhere is deliver_elsewhere() of bpf/deliver.h: no pod of this node is ready.
func (r *reception) deliverElsewhere(s dataplane.Service) bpf.PelagoVerdict {
	if !r.State.Settings.Gateway {
		return r.bounce(bpf.PelagoVerdictVERDICT_DROP_NO_BACKEND)
	}
	if r.header.Bounced {
		return bpf.PelagoVerdictVERDICT_DROP_NO_BACKEND
	}
	hash, self := r.serviceHash(s), r.State.Settings.Node
	to := r.toNode(cmp.Or(r.pickLiveNode(s, hash, self), pickNode(s, hash, self)))
	if to == nil {
		return bpf.PelagoVerdictVERDICT_DROP_NO_BACKEND
	}
	r.send(to, 0, true, false)
	return bpf.PelagoVerdictVERDICT_BOUNCED
}
