// Package firewall reads the netfilter rules of a node and decides whether they drop a packet that
// Pelago needs. It evaluates rules, so it needs no knowledge of the programs that wrote them, and
// changes nothing: package netdev adds rules. Only netdev uses it.
package firewall

import (
	"fmt"
	"net/netip"
	"slices"
)

// Hook is a netfilter hook.
type Hook uint8

// Hooks that a packet may be dropped at.
const (
	Input Hook = iota
	Forward
)

// Packet is what is known of a packet, IPv4. What is not known may have any value.
type Packet struct {
	Hook Hook
	// In and Out are devices; without a name they are not known, but not the loopback device.
	In, Out Device
	// Source and Destination are not known if invalid.
	Source, Destination netip.Addr
	// Protocol and Port, of the destination, are not known if 0.
	Protocol uint8
	Port     uint16
	// Untracked: exempt from conntrack; otherwise it opens a connection.
	Untracked bool
}

// Device is a network device.
type Device struct {
	Name  string
	Index uint32 // 0: not known
}

// answer is the result of a comparison with a packet.
type answer uint8

const (
	no answer = iota
	maybe
	yes
)

func answerOf(b bool) answer {
	if b {
		return yes
	}
	return no
}

func (a answer) not() answer { return yes - a }

// kind is what a rule does with a packet.
type kind uint8

const (
	next kind = iota // continues with the next rule
	accept
	drop
	reject
	jump
	gotoChain
	leave // returns to the calling chain
)

type action struct {
	kind  kind
	chain string // of jump and gotoChain
}

// rule returns whether it matches a packet, and what it does then. Of several actions, which one is
// not known.
type rule struct {
	text  string // as the program shows it; empty: the program has no short form
	judge func(*Packet) (answer, []action)
}

type chain struct {
	name  string
	rules []rule
}

// base is a chain that is attached to a hook.
type base struct {
	program, table string
	hook           Hook
	drops          bool // by its policy
	chain          *chain
	// called returns a chain of the same table; nil: it could not be read.
	called func(name string) *chain
}

// Ruleset is the rules at the hooks Input and Forward.
type Ruleset struct{ bases []*base }

// With returns the rules of both.
func (r Ruleset) With(other Ruleset) Ruleset {
	return Ruleset{slices.Concat(r.bases, other.bases)}
}

// Blocker is what drops a packet.
type Blocker struct {
	// Program lists the table: iptables, iptables-legacy or nft.
	Program string
	Table   string // with nft including the family
	Base    string // the chain at the hook
	Chain   string // the chain of the rule, which Base calls directly or indirectly; Base itself for its policy
	Rule    string // empty: the policy of Base, or a rule of nft
	Policy  bool
	Reject  bool // the sender gets an ICMP error
}

func (b Blocker) String() string {
	verb := "drops"
	if b.Reject {
		verb = "rejects"
	}
	switch {
	case b.Policy:
		return fmt.Sprintf("the policy of chain %s in table %s (%s) drops", b.Base, b.Table, b.Program)
	case b.Rule != "":
		return fmt.Sprintf("chain %s of table %s (%s, rule %q) %s", b.Chain, b.Table, b.Program, b.Rule, verb)
	}
	return fmt.Sprintf("chain %s of table %s (%s) %s", b.Chain, b.Table, b.Program, verb)
}

// Blockers returns what drops a packet for certain, whatever the values that are not known; at most
// one per chain at the hook.
func (r Ruleset) Blockers(p Packet) []Blocker {
	var out []Blocker
	for _, b := range r.bases {
		if b.hook != p.Hook {
			continue
		}
		w := walker{base: b, packet: &p}
		if found := w.blocker(); found != nil {
			out = append(out, *found)
		}
	}
	return out
}

const (
	// maxDepth of chains is that of nftables (NFT_JUMP_STACK_SIZE).
	maxDepth = 16
	// maxSteps bounds the rules evaluated for one packet: some programs add a rule per pod.
	maxSteps = 20000
)

// walker evaluates the chains of one hook for a packet.
type walker struct {
	base   *base
	packet *Packet
	steps  int
}

// ends are the possible ends of a packet in a chain.
type ends struct {
	accepted, left bool
	dropped        *Blocker
}

func (w *walker) blocker() *Blocker {
	e := w.walk(w.base.chain, 0)
	if e.left && !w.base.drops {
		return nil
	}
	if e.left && e.dropped == nil {
		e.dropped = &Blocker{Program: w.base.program, Table: w.base.table, Base: w.base.chain.name, Chain: w.base.chain.name, Policy: true}
	}
	if e.accepted {
		return nil
	}
	return e.dropped
}

func (w *walker) walk(c *chain, depth int) ends {
	if c == nil || depth > maxDepth {
		return ends{accepted: true, left: true}
	}
	var out ends
	for i := range c.rules {
		r := &c.rules[i]
		if w.steps++; w.steps > maxSteps {
			out.accepted = true
			return out
		}
		matches, actions := r.judge(w.packet)
		if matches == no || len(actions) == 0 {
			continue
		}
		done := matches == yes
		for _, a := range actions {
			done = !w.act(a, c, r, depth, &out) && done
		}
		if done {
			return out
		}
	}
	out.left = true
	return out
}

// act adds the ends of an action, and reports whether the packet may continue with the next rule.
func (w *walker) act(a action, c *chain, r *rule, depth int, out *ends) (continues bool) {
	switch a.kind {
	case next:
		return true
	case accept:
		out.accepted = true
	case leave:
		out.left = true
	case drop, reject:
		if out.dropped == nil {
			out.dropped = &Blocker{
				Program: w.base.program, Table: w.base.table, Base: w.base.chain.name, Chain: c.name, Rule: r.text, Reject: a.kind == reject,
			}
		}
	case jump, gotoChain:
		called := w.walk(w.base.called(a.chain), depth+1)
		out.accepted = out.accepted || called.accepted
		if out.dropped == nil {
			out.dropped = called.dropped
		}
		if a.kind == jump {
			return called.left
		}
		out.left = out.left || called.left
	}
	return false
}
