package inspect

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane/liveness"
	"github.com/pelago-net/pelago/dataplane/trace"
)

// Site is a cluster on the way of a packet.
type Site struct {
	Name  string
	Index uint16
	// Nodes are the names of the nodes by index.
	Nodes map[uint16]string
	// Others are the names of other clusters by index.
	Others map[uint16]string
	// Ask has a node answer a request.
	Ask func(ctx context.Context, node string, r trace.Request) (trace.Answer, error)
	// Shadow names the Service whose address a packet to this destination has, which kube-proxy
	// translates before our programs; "": none.
	Shadow func(p trace.Packet) string
	// Forbidden names the NetworkPolicy by which a pod may not send (out) or receive a packet; "":
	// none.
	Forbidden func(ctx context.Context, p trace.Packet, out bool) (string, error)
	// Refused is why this cluster does not accept the cluster that has an address; "": it does, or
	// no cluster has it.
	Refused func(a netip.Addr) string
}

// Outcome is the end of a trace.
type Outcome string

// Outcomes, with the exit status of the program.
const (
	Delivered Outcome = "delivered" // 0
	Unknown   Outcome = "unknown"   // 1
	Dropped   Outcome = "dropped"   // 2
)

// Hop is one decision on the way of a packet.
type Hop struct {
	Cluster string `json:"cluster"`
	Node    string `json:"node"`
	// Hook, Verdict and the rest are those of the step. A hook of ours is that of a program;
	// "stack" is the node's own network stack.
	trace.Step
}

// Trace is the way of a packet and its end.
type Trace struct {
	From   string       `json:"from"`
	To     string       `json:"to"`
	Packet trace.Packet `json:"packet"`
	Hops   []Hop        `json:"hops"`
	End
	// Live is what happened to a real packet.
	Live *Live `json:"live,omitempty"`
}

// End is how it ends.
type End struct {
	Outcome Outcome `json:"outcome"`
	// Reason is one of reasons.go; empty: the packet is delivered.
	Reason string `json:"reason,omitempty"`
	// Message describes it in a sentence, Remedy what to do.
	Message string `json:"message"`
	Remedy  string `json:"remedy,omitempty"`
}

// endOf is an end with the texts of its reason. detail names the object.
func endOf(o Outcome, reason, detail string) End {
	e := End{Outcome: o, Reason: reason, Message: detail}
	if r, ok := reasonOf(reason); ok {
		e.Message, e.Remedy = r.message, r.remedy
		if detail != "" {
			e.Message += ": " + detail
		}
	}
	return e
}

const maxHops = 8 // two nodes, two gateways, and each may pass a packet on once

// errNoDaemon: pelago-node does not run on a node.
var errNoDaemon = errors.New("pelago-node does not run")

// follower is a trace that is made.
type follower struct {
	*Trace
	sites map[uint16]*Site
	// doubt is the first reason why a delivery is uncertain. A certain drop further on takes
	// precedence.
	doubt *End
}

// Follow has the nodes decide about a packet, one after the other, from a local source of a node
// on.
func Follow(ctx context.Context, sites map[uint16]*Site, at trace.Place, r trace.Request, t *Trace) {
	f := &follower{Trace: t, sites: sites}
	t.Packet = r.Packet
	if t.End = f.follow(ctx, at, r); t.Outcome != Dropped && f.doubt != nil {
		t.End = *f.doubt
	}
}

func (f *follower) note(e End) {
	if f.doubt == nil || f.doubt.Outcome == Unknown && e.Outcome == Dropped {
		f.doubt = &e
	}
}

func (f *follower) follow(ctx context.Context, at trace.Place, r trace.Request) End {
	var others map[uint16]string
	for range maxHops {
		site := f.sites[at.Cluster]
		if site == nil {
			return endOf(Unknown, "remote-unseen", fmt.Sprintf("cluster %s (index %d)", others[at.Cluster], at.Cluster))
		}
		others = site.Others
		node := site.Nodes[at.Node]
		if node == "" {
			return endOf(Unknown, "unknown-node", fmt.Sprintf("cluster %s has none with index %d", site.Name, at.Node))
		}
		a, err := site.Ask(ctx, node, r)
		switch {
		case errors.Is(err, errNoDaemon):
			return endOf(Unknown, "no-daemon", err.Error())
		case err != nil:
			return endOf(Unknown, "unreadable", err.Error())
		}
		if len(f.Hops) == 0 {
			f.Packet.Source = netip.AddrPortFrom(a.Source, r.Packet.Source.Port())
		}
		if end := f.judge(ctx, site, node, r, a); end != nil {
			return *end
		}
		at = *a.Step.Next
		r = trace.Request{Packet: a.Step.Packet, Header: a.Step.Header, Token: a.Token, Size: r.Size}
	}
	return endOf(Unknown, "loop", "")
}

// judge adds a hop. The end is nil if the packet continues.
func (f *follower) judge(ctx context.Context, s *Site, node string, r trace.Request, a trace.Answer) *End {
	first, step := len(f.Hops) == 0, a.Step
	where := fmt.Sprintf("node %s of cluster %s", node, s.Name)
	add := func(step trace.Step) { f.Hops = append(f.Hops, Hop{Cluster: s.Name, Node: node, Step: step}) }
	end := func(o Outcome, reason, format string, args ...any) *End {
		e := endOf(o, reason, fmt.Sprintf(format, args...))
		return &e
	}
	forbidden := func(p trace.Packet, out bool) string {
		policy, err := s.Forbidden(ctx, p, out)
		if err != nil {
			f.note(*end(Unknown, "unreadable", "%v", err))
		}
		return policy
	}
	if a.Confirmed > liveness.StaleAfter {
		f.note(*end(Unknown, "stale-daemon", "%s has confirmed them %s ago", where, a.Confirmed.Round(time.Second)))
	}
	if first {
		if name := s.Shadow(f.Packet); name != "" {
			add(trace.Step{Hook: "stack", Verdict: "shadowed", Packet: f.Packet})
			return end(Dropped, "shadowed", "%s is an address of Service %s of cluster %s", f.Packet.Destination, name, s.Name)
		}
		if policy := forbidden(f.Packet, true); policy != "" {
			add(trace.Step{Hook: "stack", Verdict: "policy", Packet: f.Packet})
			return end(Dropped, "policy", "%s of cluster %s allows %s no egress to %s", policy, s.Name, f.Packet.Source.Addr(), f.Packet.Destination)
		}
	}
	add(step)
	switch {
	case step.Dropped():
		detail := where
		if why := s.refusal(r.Packet, step); why != "" {
			detail += "; " + why
		}
		return end(Dropped, step.Verdict, "%s", detail)
	case step.Verdict == "own-service":
		return end(Delivered, "", "cluster %s itself serves it: kube-proxy of %s goes on", s.Name, node)
	case first && a.Stack != nil && a.Stack.Device == "":
		return end(Dropped, "not-routed", "%s: %s", where, a.Stack.Error)
	case first && a.Stack != nil && !a.Stack.Overlay:
		return end(Dropped, "not-routed", "%s routes it to %s", where, a.Stack.Device)
	case step.Verdict == "delivered":
		if policy := forbidden(step.Packet, false); policy != "" {
			add(trace.Step{Hook: "stack", Verdict: "policy", Packet: step.Packet})
			return end(Dropped, "policy", "%s of cluster %s allows %s no ingress from %s", policy, s.Name, step.Packet.Destination, step.Packet.Source.Addr())
		}
		return end(Delivered, "", "%s delivers it to %s", where, step.Packet.Destination)
	case step.Next == nil || step.Header == nil:
		return end(Unknown, "unreadable", "%s does not name the next node: does it run another version?", where)
	case step.Path == bpf.PelagoRankRANK_BAD.String() || step.Path == bpf.PelagoRankRANK_GONE.String():
		reason := "gateway-down"
		if step.Header.Cable {
			reason = "wire-down"
		}
		f.note(*end(Dropped, reason, "%s gets no answers to its probes of %s", where, step.Header.Destination))
	}
	return nil
}

// refusal is why this cluster does not accept the cluster that has the address because of which the
// step dropped the packet.
func (s *Site) refusal(p trace.Packet, step trace.Step) string {
	switch v, _ := bpf.ParseVerdict(step.Verdict); v {
	case bpf.PelagoVerdictVERDICT_DROP_NO_ROUTE:
		return s.Refused(p.Destination.Addr())
	case bpf.PelagoVerdictVERDICT_DROP_SPOOFED_SOURCE, bpf.PelagoVerdictVERDICT_DROP_UNKNOWN_PEER:
		return s.Refused(p.Source.Addr())
	}
	return ""
}
