package node

import (
	"net/netip"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/observe"
)

// View is what a scrape shows of this node's gateways. It may be called from any goroutine.
func (d *Daemon) View() observe.View {
	d.mu.Lock()
	snap, flows := d.latest, d.flows
	d.mu.Unlock()
	d.links.mu.Lock()
	defer d.links.mu.Unlock()
	v := view(snap, d.links)
	v.Flows = flows
	return v
}

func view(snap snapshot, l *links) observe.View {
	v := observe.View{
		Cluster: snap.objs.Config.ClusterID, Node: snap.objs.Name, Driver: snap.objs.Config.CableDriver, State: string(l.role),
		Reports: l.reports,
	}
	if a := snap.state.Settings.Address; a.IsValid() {
		v.Address = a.String()
	}
	for _, t := range snap.targets {
		w := l.ways[t.address]
		if w == nil {
			continue // the paths were not looked at since it came
		}
		p := observe.Peer{Cluster: t.cluster, Gateway: t.gateway, Path: t.address, Up: w.status == submarinerv1.Connected, MTU: w.size.Passes, BlackHole: w.size.BlackHole()}
		if t.far() && snap.gateway {
			c := &observe.Connection{IP: l.using(t), Status: string(w.status)}
			if w.status == submarinerv1.Connected {
				c.Established = w.since
			}
			if s, ok := l.wire[t.fabric]; ok && snap.objs.Config.CableDriver != cable.VXLANDriver {
				c.Counted, c.RxBytes, c.TxBytes = true, s.RxBytes, s.TxBytes
			}
			p.Connection = c
		}
		v.Peers = append(v.Peers, p)
	}
	if snap.gateway {
		v.Created, v.Gateways, v.Ranges = l.created, len(snap.state.Gateways), ranges(snap.objs)
	}
	return v
}

// ranges counts the global addresses that were given out, by the range that they are of.
func ranges(objs Objects) []observe.Range {
	out := make([]observe.Range, len(objs.Config.GlobalCIDRs))
	for i, p := range objs.Config.GlobalCIDRs {
		out[i].CIDR = p.String()
		if bits := p.Addr().BitLen() - p.Bits(); bits >= 2 { // the first and the last address are not given out
			out[i].Usable = 1<<bits - 2
		}
	}
	count := func(kind func(*observe.Range) *int, texts ...string) {
		for _, text := range texts {
			a, err := netip.ParseAddr(text)
			if err != nil {
				continue
			}
			for i, p := range objs.Config.GlobalCIDRs {
				if p.Contains(a) {
					*kind(&out[i])++
				}
			}
		}
	}
	if objs.ClusterEgress != nil {
		count(func(r *observe.Range) *int { return &r.ClusterEgress }, objs.ClusterEgress.Status.AllocatedIPs...)
	}
	for i := range objs.EgressIPs {
		count(func(r *observe.Range) *int { return &r.Egress }, objs.EgressIPs[i].Status.AllocatedIPs...)
	}
	for i := range objs.IngressIPs {
		count(func(r *observe.Range) *int { return &r.Ingress }, objs.IngressIPs[i].Status.AllocatedIP)
	}
	return out
}
