// Package gateways keeps a number of gateways in a member: the agent labels nodes, and removes labels
// that Pelago has set. A label of a user is never changed. desired.go decides and knows no Kubernetes.
package gateways

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

const (
	// reboot is how long a gateway may be not Ready before another node takes its place.
	reboot = time.Minute
	// settle is how long all others must have been Ready before a gateway too many loses its label: a
	// node that has just come back may go again.
	settle = 5 * time.Minute
	// lost is how long a gateway may be not Ready before it loses its label.
	lost = 10 * time.Minute
)

// Node is a node as far as it matters here.
type Node struct {
	Name, Zone string
	// Gateway: it has the label. Kept: with our annotation, without which the label is a user's. A node
	// with the annotation alone has lost our label by a user, who does not want it as a gateway.
	Gateway, Kept bool
	// Refused: the label has another value than "true", or the node cannot run pelago-node.
	Refused      bool
	ControlPlane bool
	Ready        bool
	Since        time.Time // when Ready changed last
	// Out: drained, cordoned or being deleted.
	Out bool
	// Serving: its daemon reports that all remote gateways know it.
	Serving bool
}

// works reports whether a gateway counts: it carries traffic, or is expected to within reboot.
func (n Node) works(now time.Time) bool {
	return n.Gateway && !n.Refused && !n.Out && (n.Ready || now.Sub(n.Since) < reboot)
}

// Plan is what to change.
type Plan struct {
	Add, Remove []string
	// Serving and Missing are the numbers of gateways that serve, and that no node is left for.
	Serving, Missing int
	// Wait is the time after which the plan may be another without any event; 0: none.
	Wait time.Duration
}

// Desired plans for a number of gateways; 0: labels are the user's alone. A gateway is added before
// another one is removed, and removed only if enough others serve.
func Desired(nodes []Node, want int, now time.Time) (p Plan) {
	var working, serving int
	zones := map[string]int{} // working gateways
	again := func(left time.Duration) {
		if left > 0 && (p.Wait == 0 || left < p.Wait) {
			p.Wait = left
		}
	}
	settled := true
	for _, n := range nodes {
		if n.works(now) {
			working++
			zones[n.Zone]++
		}
		if n.works(now) && n.Ready && n.Serving {
			serving++
			again(settle - now.Sub(n.Since))
			settled = settled && now.Sub(n.Since) >= settle
		}
		if n.Gateway && !n.Ready {
			again(reboot - now.Sub(n.Since))
			again(lost - now.Sub(n.Since))
		}
	}
	p.Serving = serving
	if want == 0 {
		p.Wait = 0
		return p
	}
	for working < want {
		i := next(nodes, p.Add, zones)
		if i < 0 {
			p.Missing = want - working
			break
		}
		p.Add = append(p.Add, nodes[i].Name)
		zones[nodes[i].Zone]++
		working++
	}
	if serving < want {
		return p
	}
	if surplus := serving - want; surplus > 0 && settled {
		p.Remove = surplusOf(nodes, surplus, zones, now)
	}
	for _, n := range nodes {
		if n.Gateway && n.Kept && !n.Ready && !n.Out && now.Sub(n.Since) >= lost {
			p.Remove = append(p.Remove, n.Name)
		}
	}
	slices.Sort(p.Remove)
	return p
}

// next is the index of the best node to add, -1 if none is left: a worker if the cluster has any, in
// the zone with the fewest gateways, by name.
func next(nodes []Node, added []string, zones map[string]int) int {
	workers := slices.ContainsFunc(nodes, func(n Node) bool { return !n.Refused && !n.ControlPlane })
	best := -1
	for i, n := range nodes {
		if n.Gateway || n.Kept || n.Refused || n.Out || !n.Ready || workers && n.ControlPlane || slices.Contains(added, n.Name) {
			continue
		}
		if best < 0 || cmp.Or(cmp.Compare(zones[n.Zone], zones[nodes[best].Zone]), strings.Compare(n.Name, nodes[best].Name)) < 0 {
			best = i
		}
	}
	return best
}

// surplusOf are the gateways that lose our label, at most n: in the zone with the most gateways first.
func surplusOf(nodes []Node, n int, zones map[string]int, now time.Time) (out []string) {
	ours := slices.DeleteFunc(slices.Clone(nodes), func(n Node) bool { return !n.Kept || !n.works(now) || !n.Ready || !n.Serving })
	for range min(n, len(ours)) {
		last := slices.MaxFunc(ours, func(a, b Node) int {
			return cmp.Or(cmp.Compare(zones[a.Zone], zones[b.Zone]), strings.Compare(a.Name, b.Name))
		})
		zones[last.Zone]--
		out = append(out, last.Name)
		ours = slices.DeleteFunc(ours, func(n Node) bool { return n.Name == last.Name })
	}
	return out
}
