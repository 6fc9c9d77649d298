package netdev

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// rulesOf returns the rules that send packets to a routing table.
func rulesOf(table int) ([]netlink.Rule, error) {
	return Dump(func() ([]netlink.Rule, error) {
		return netlink.RuleListFiltered(netlink.FAMILY_V4, &netlink.Rule{Table: table}, netlink.RT_FILTER_TABLE)
	})
}

// ensureRule sends all packets to our table, before other tables: it holds only routes of remote
// prefixes, so packets for any other destination fall through to the next rule (ip-rule(8)). One
// rule costs each packet of the node the same, however many prefixes there are. Every other rule
// that leads to the table is removed: it comes from others, or from a version that had a rule for
// each prefix. Without a prefix there is no rule. missing: it was not there.
func ensureRule(rules []netlink.Rule, wanted bool) (missing bool, err error) {
	have := slices.DeleteFunc(slices.Clone(rules), func(r netlink.Rule) bool { return r.Table != Table })
	rule := netlink.NewRule()
	rule.Family, rule.Table, rule.Priority, rule.Protocol = netlink.FAMILY_V4, Table, RulePriority, kernelProtocol
	// To the kernel, any rule of this priority and protocol equals the one to add
	// (fib4_rule_compare ignores attributes that are not set).
	taken, there := false, false
	for _, r := range have {
		taken = taken || r.Priority == RulePriority && r.Protocol == kernelProtocol
		there = there || sameRule(r, *rule)
	}
	var errs []error
	add := func() {
		if err := netlink.RuleAdd(rule); err != nil {
			errs = append(errs, fmt.Errorf("add the rule of table %d: %w", Table, err))
		}
	}
	// before others go, so that no packet for a remote prefix leaves by the default route meanwhile
	if wanted && !taken {
		add()
	}
	for _, r := range have {
		if wanted && sameRule(r, *rule) {
			continue
		}
		if err := netlink.RuleDel(&r); err != nil {
			errs = append(errs, fmt.Errorf("remove rule %v: %w", r, err))
		}
	}
	if wanted && taken && !there {
		add()
	}
	return wanted && !there, errors.Join(errs...)
}

// sameRule compares a rule as the kernel lists it with one to make: all but the type, which the
// kernel fills in.
func sameRule(listed, wanted netlink.Rule) bool {
	listed.Type = wanted.Type
	return reflect.DeepEqual(listed, wanted)
}

// listRules returns the rules in the order of the look-up.
func listRules() ([]netlink.Rule, error) {
	rules, err := Dump(func() ([]netlink.Rule, error) { return netlink.RuleList(netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("list the rules: %w", err)
	}
	return rules, nil
}

// tablesBehind are the routing tables, besides ours, in which a packet for a remote prefix is
// looked up when our rule is away: main, and those of rules after ours, such as the tables of
// single interfaces of cloud providers' CNIs and of VPNs.
func tablesBehind(rules []netlink.Rule) []int {
	tables := []int{unix.RT_TABLE_MAIN}
	for _, r := range rules {
		switch r.Table {
		case unix.RT_TABLE_UNSPEC, unix.RT_TABLE_DEFAULT, unix.RT_TABLE_LOCAL, Table:
			continue // another action; empty, and after main; addresses of the node; ours
		}
		if r.Priority >= RulePriority {
			tables = append(tables, r.Table)
		}
	}
	slices.Sort(tables)
	return slices.Compact(tables)
}

// Preceding describes the rules of others that are looked up before ours and whose tables route one
// of the prefixes: the packets that they select never reach pelago0. Rules for marked packets are
// left out: a program marks only packets that are its own business.
func Preceding(prefixes []netip.Prefix) (problems []string, err error) {
	rules, err := listRules()
	if rules = preceding(rules); err != nil || len(rules) == 0 {
		return nil, err
	}
	routes, err := Dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list the routes: %w", err)
	}
	for _, r := range rules {
		if p, ok := routed(r, routes, prefixes); ok {
			problems = append(problems, fmt.Sprintf("rule %q goes before Pelago's of priority %d, and its table %d has a route for %s: packets that it selects do not reach other clusters; "+
				"give it a priority above %d", describe(r), RulePriority, r.Table, p, RulePriority))
		}
	}
	return problems, nil
}

// preceding are the rules before ours, in the order of the look-up, that may divert packets of
// pods.
func preceding(rules []netlink.Rule) (before []netlink.Rule) {
	for _, r := range rules {
		if r.Table == Table {
			return before
		}
		if r.Priority > RulePriority {
			return before // ours is not there
		}
		if r.Table != unix.RT_TABLE_LOCAL && r.Table != unix.RT_TABLE_UNSPEC && r.Mark == 0 && r.Goto < 0 && r.OifName == "" && r.IifName != "lo" {
			before = append(before, r)
		}
	}
	return before
}

// routed returns the first prefix for which the rule finds a route.
func routed(r netlink.Rule, routes []netlink.Route, prefixes []netip.Prefix) (netip.Prefix, bool) {
	for _, p := range prefixes {
		if r.Dst != nil && !r.Invert && !overlaps(r.Dst, p) {
			continue
		}
		for _, route := range routes {
			if route.Table != r.Table || route.Type != unix.RTN_UNICAST {
				continue
			}
			bits := 0
			if route.Dst != nil {
				bits, _ = route.Dst.Mask.Size()
			}
			if bits > r.SuppressPrefixlen && (route.Dst == nil || overlaps(route.Dst, p)) {
				return p, true
			}
		}
	}
	return netip.Prefix{}, false
}

func overlaps(n *net.IPNet, p netip.Prefix) bool {
	address, ok := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	return ok && netip.PrefixFrom(address.Unmap(), bits).Overlaps(p)
}

// describe is the rule as ip-rule(8) prints it, without attributes that packets of pods do not
// depend on.
func describe(r netlink.Rule) string {
	words := []string{fmt.Sprintf("%d:", r.Priority)}
	if r.Invert {
		words = append(words, "not")
	}
	from := "all"
	if r.Src != nil {
		from = r.Src.String()
	}
	words = append(words, "from", from)
	if r.Dst != nil {
		words = append(words, "to", r.Dst.String())
	}
	if r.IifName != "" {
		words = append(words, "iif", r.IifName)
	}
	return strings.Join(append(words, "lookup", fmt.Sprint(r.Table)), " ")
}
