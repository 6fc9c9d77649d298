package dns

import (
	"bytes"
	"cmp"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"
)

// service is one compiled service: every name at and below
// <service>.<namespace>.svc, by what stands left of that; "" is the service.
type service struct {
	from   Service
	turns  *turns
	owners map[string]*owner
	to     map[[2]string]*destination // by cluster id and address
	names  map[netip.Addr]*owner      // with PTR records
}

// srvSet is an SRV RRset with the targets of its additional section.
type srvSet struct {
	set
	glue []glue
}

// glue is one SRV target: its full name in wire form and its addresses.
type glue struct {
	name []byte
	of   *owner
}

// builder compiles one service.
type builder struct {
	*service
	x   *index
	m   *metrics
	srv map[string][]target // by owner
	// longest is the name with the most labels that has an address: that of a pod
	// before that of its cluster, and this one before the service's.
	longest map[netip.Addr]string
}

// target is one SRV record before it is packed; prefix is its name, relative
// to the service.
type target struct {
	port   uint16
	prefix string
	to     *destination
}

// compileService applies the rules of the answers to one service. old is its
// former state or nil. Without any owner the service does not exist.
func compileService(from Service, x *index, m *metrics, old *service) *service {
	b := builder{
		service: &service{from: from, turns: turnsOf(old), owners: map[string]*owner{}, to: map[[2]string]*destination{}},
		x:       x, m: m, srv: map[string][]target{}, longest: map[netip.Addr]string{},
	}
	if from.Type == Headless {
		b.headless()
	} else {
		b.clusterSetIP()
	}
	for _, o := range b.owners {
		tidy(o.a)
		tidy(o.aaaa)
	}
	b.packSRV()
	b.packPTR()
	return b.service
}

func (b *builder) clusterSetIP() {
	self := b.owner("")
	for _, ip := range b.from.IPs {
		b.address("", ip, inOrder, "")
	}
	if len(b.from.IPs) == 0 && b.x.mode == ModeSubmariner {
		b.nearest(netip.Addr.Is4)
		b.nearest(netip.Addr.Is6)
	}
	ports := b.from.Ports
	if len(b.from.IPs) == 0 {
		ports = b.from.commonPorts() // the answer is an address of any cluster
	}
	b.ports("", "", ports, "", self.a != nil || self.aaaa != nil)
	for _, c := range b.from.Clusters {
		o := b.owner(c.ID)
		if b.x.mode == ModeMCS {
			continue // reserved: the name exists and has no records
		}
		for _, e := range c.Endpoints { // ready or not: the client chose this cluster
			b.address(c.ID, e.IP, inOrder, c.ID)
		}
		b.ports(c.ID, c.ID, b.from.portsOf(c), c.ID, o.a != nil || o.aaaa != nil)
	}
}

// nearest gives the service one address of a family: the local cluster's if it
// is ready, else those of the ready remote clusters, in rotation. Each cluster
// counts once, however many addresses it has. With session affinity it is that
// of one cluster, until that has no ready backend. Of a weighted service, clusters with a weight
// have turns in proportion to it.
func (b *builder) nearest(family func(netip.Addr) bool) {
	ready := func(c Cluster) (netip.Addr, bool) {
		for _, e := range c.Endpoints {
			if e.Ready && family(e.IP) {
				return e.IP, true
			}
		}
		return netip.Addr{}, false
	}
	if b.weighted(ready) {
		return
	}
	for _, c := range b.from.Clusters {
		if ip, ok := ready(c); ok && c.ID == b.x.local {
			b.address("", ip, inOrder, c.ID)
			return
		}
	}
	var best uint64
	var kept Cluster
	for _, c := range b.from.Clusters {
		ip, ok := ready(c)
		switch rank := b.rank(c.ID); {
		case !ok:
		case !b.from.ClientIP:
			b.address("", ip, oneByOne, c.ID)
		case rank > best:
			best, kept = rank, c
		}
	}
	if ip, ok := ready(kept); ok {
		b.address("", ip, inOrder, kept.ID)
	}
}

// weighted gives a weighted service the addresses of ready clusters, in turns, and reports whether
// one is ready and has a weight. With session affinity: of the one with the highest weight.
func (b *builder) weighted(ready func(Cluster) (netip.Addr, bool)) bool {
	var used []Cluster
	for _, c := range b.from.Clusters {
		if _, ok := ready(c); ok && b.from.Weighted && c.Weight > 0 {
			used = append(used, c)
		}
	}
	if len(used) == 0 {
		return false
	}
	if b.from.ClientIP {
		used = []Cluster{slices.MaxFunc(used, func(x, y Cluster) int {
			return cmp.Or(cmp.Compare(x.Weight, y.Weight), cmp.Compare(b.rank(x.ID), b.rank(y.ID)))
		})}
	}
	for _, c := range inTurn(used) {
		ip, _ := ready(c)
		b.address("", ip, oneByOne, c.ID)
	}
	return true
}

// maxTurns bounds the answers of a weighted service after which they repeat.
const maxTurns = 64

// inTurn lists clusters in proportion to their weights, each spread over the list (smooth weighted
// round robin).
func inTurn(clusters []Cluster) (out []Cluster) {
	if len(clusters) == 1 {
		return clusters
	}
	total, divisor := 0, 0
	for _, c := range clusters {
		total, divisor = total+c.Weight, gcd(divisor, c.Weight)
	}
	credit := make([]int, len(clusters))
	for range min(total/divisor, maxTurns) {
		next := 0
		for i, c := range clusters {
			if credit[i] += c.Weight; credit[i] > credit[next] {
				next = i
			}
		}
		credit[next] -= total
		out = append(out, clusters[next])
	}
	return out
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// rank is the rendezvous hash of a remote cluster, by local cluster and service: local clusters are
// distributed over the remote ones, and adding or removing one moves the minimum. The client's
// address is not an input, since CoreDNS forwards the queries.
func (b *builder) rank(cluster string) uint64 {
	h := fnv.New64a()
	for _, s := range []string{b.x.local, b.from.Namespace, b.from.Name, cluster} {
		_, _ = h.Write(append([]byte(s), 0)) // fnv never fails to write
	}
	return h.Sum64() | 1
}

func (b *builder) headless() {
	submariner := b.x.mode == ModeSubmariner
	if submariner {
		b.owner("")
		b.ports("", "", b.from.Ports, "", false)
	}
	for _, c := range b.from.Clusters {
		ports := b.from.portsOf(c)
		if submariner {
			b.owner(c.ID)
			b.ports(c.ID, "", ports, c.ID, false)
		}
		for _, e := range c.Endpoints {
			host := e.hostname() + "." + c.ID
			if !e.Ready {
				if submariner {
					b.owner(host)
				}
				continue
			}
			b.address("", e.IP, rotated, c.ID)
			b.address(host, e.IP, inOrder, c.ID)
			b.ports("", host, ports, c.ID, true)
			if submariner {
				b.address(c.ID, e.IP, rotated, c.ID)
				b.ports(c.ID, host, ports, c.ID, true)
			}
		}
	}
}

// commonPorts are those that every cluster with endpoints serves.
func (s Service) commonPorts() []Port {
	return slices.DeleteFunc(slices.Clone(s.Ports), func(p Port) bool {
		return slices.ContainsFunc(s.Clusters, func(c Cluster) bool {
			return len(c.Endpoints) > 0 && !slices.Contains(s.portsOf(c), p)
		})
	})
}

// portsOf are a cluster's own ports, or the merged ones if nothing is known of them.
func (s Service) portsOf(c Cluster) []Port {
	if len(c.Ports) > 0 || slices.ContainsFunc(s.Clusters, func(o Cluster) bool { return o.ID == c.ID && len(o.Ports) > 0 }) {
		return c.Ports // none: a pod without the named target port
	}
	return s.Ports
}

// owner returns the owner of a prefix; it and the names above it exist from
// now on.
func (b *builder) owner(prefix string) *owner {
	o := b.owners[prefix]
	if o == nil {
		o = new(owner)
		b.owners[prefix] = o
		if prefix != "" {
			_, above, _ := strings.Cut(prefix, ".")
			b.owner(above)
		}
	}
	return o
}

// address adds an address of a cluster ("" for a clusterset IP) to a name.
func (b *builder) address(prefix string, ip netip.Addr, order order, cluster string) {
	o := b.owner(prefix)
	s, turn := &o.a, &b.turns.a
	if ip.Is6() {
		s, turn = &o.aaaa, &b.turns.aaaa
	}
	if *s == nil {
		*s = &set{order: order, turn: turn}
	}
	if former, ok := b.longest[ip]; !ok || len(prefix) > 0 && strings.Count(prefix, ".") >= strings.Count(former, ".") {
		b.longest[ip] = prefix
	}
	(*s).records = append((*s).records, addressRecord(ip, b.x.ttl))
	(*s).name(b.destination(cluster, ip), order == oneByOne)
}

// ports adds SRV records to a name and to _port._proto below it; without
// answered the names exist and have no records.
func (b *builder) ports(prefix, targetPrefix string, ports []Port, cluster string, answered bool) {
	add := func(prefix string, p Port) {
		b.owner(prefix)
		if answered {
			t := target{port: p.Number, prefix: targetPrefix}
			if cluster != "" {
				t.to = b.destination(cluster, b.from.addressIn(cluster))
			}
			b.srv[prefix] = append(b.srv[prefix], t)
		}
	}
	for _, p := range ports {
		add(prefix, p)
		if p.Name == "" {
			continue
		}
		named := "_" + strings.ToLower(p.Name) + "._" + strings.ToLower(p.Protocol)
		if prefix != "" {
			named += "." + prefix
		}
		add(named, p)
	}
}

// packSRV turns the collected targets into records, per zone because a target
// is a full name. A target that is too long for a name is left out: its address
// could not be queried.
func (b *builder) packSRV() {
	for i, z := range b.x.zones {
		packed := map[target][]byte{} // names share their records
		for prefix, targets := range b.srv {
			s := &srvSet{}
			for _, t := range targets {
				rec, known := packed[t]
				if !known {
					rec = b.srvRecord(t, z.name)
					packed[t] = rec
				}
				if rec == nil {
					continue
				}
				s.records = append(s.records, rec)
				if t.to != nil {
					s.name(t.to, false)
				}
				s.glue = append(s.glue, glue{rec[srvTargetAt:], b.owners[t.prefix]})
			}
			tidy(&s.set)
			slices.SortFunc(s.glue, func(a, b glue) int { return bytes.Compare(a.name, b.name) })
			s.glue = slices.CompactFunc(s.glue, func(a, b glue) bool { return a.of == b.of })
			o := b.owners[prefix]
			if o.srv == nil {
				o.srv = make([]*srvSet, len(b.x.zones))
			}
			o.srv[i] = s
		}
	}
}

// srvRecord packs one target below a zone, or nothing if its name is too long.
func (b *builder) srvRecord(t target, zone string) []byte {
	name := b.from.Name + "." + b.from.Namespace + ".svc." + zone
	if t.prefix != "" {
		name = t.prefix + "." + name
	}
	wire, err := packName(name)
	if err != nil {
		return nil
	}
	return srvRecord(t.port, wire, b.x.ttl)
}

// name records the cluster of the newest record. Records are added cluster by
// cluster, so comparing the last one keeps each once.
func (s *set) name(d *destination, always bool) {
	if always || len(s.to) == 0 || s.to[len(s.to)-1] != d {
		s.to = append(s.to, d)
	}
}

// tidy sorts a set's records, so that equal tables give equal answers, and
// drops duplicates (RFC 2181 §5). A set that is given one by one keeps its
// records parallel to its clusters: one per cluster, in order of ids.
func tidy(s *set) {
	if s == nil || s.order == oneByOne {
		return
	}
	slices.SortFunc(s.records, bytes.Compare)
	s.records = slices.CompactFunc(s.records, bytes.Equal)
}

// destination is the counter of a cluster and its address for the service. Of a
// headless service a cluster has one, however many pods are in an answer.
func (b *builder) destination(cluster string, ip netip.Addr) *destination {
	key := [2]string{cluster, ""}
	if b.from.Type != Headless && ip.IsValid() {
		key[1] = ip.String()
	}
	d := b.to[key]
	if d == nil {
		d = b.m.destination(b.x.local, key, b.from.Name, b.from.Namespace)
		b.to[key] = d
	}
	return d
}

// addressIn is the first address of a cluster for the service.
func (s Service) addressIn(cluster string) (_ netip.Addr) {
	for _, c := range s.Clusters {
		if c.ID == cluster && len(c.Endpoints) > 0 {
			return c.Endpoints[0].IP
		}
	}
	return netip.Addr{}
}
