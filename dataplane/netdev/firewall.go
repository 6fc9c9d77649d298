package netdev

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/coreos/go-iptables/iptables"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/firewall"
)

const filterTable = "filter"

// ownChain is a chain of ours that accepts packets, with its rules as iptables lists them. It is
// recognised by its name: rules need no comment, for which some kernels lack the module xt_comment.
type ownChain struct {
	base, name string
	rules      []string
}

// oldComment is that of the rules which earlier versions added to the chains INPUT and FORWARD.
const oldComment = "pelago"

func ownChains(f Filter) []ownChain {
	in := []string{"-i " + Overlay + " -j ACCEPT"}
	for _, port := range slices.Concat([]uint16{dataplane.OverlayPort, f.CablePort}, f.Open) {
		if rule := "-p udp -m udp --dport " + strconv.Itoa(int(port)) + " -j ACCEPT"; port != 0 && !slices.Contains(in, rule) {
			in = append(in, rule)
		}
	}
	return []ownChain{
		{"FORWARD", "PELAGO-FORWARD", []string{"-i " + Overlay + " -j ACCEPT", "-o " + Overlay + " -j ACCEPT"}},
		{"INPUT", "PELAGO-INPUT", in},
	}
}

// Filter is what Firewall adds.
type Filter struct {
	// CablePort is the UDP port of the vxlan cable, 0 for none; Open are further UDP ports to
	// accept.
	CablePort uint16
	Open      []uint16
	// External are destinations outside the cluster: what pelago0 passes on to them is masqueraded.
	External []netip.Prefix
	// ClusterIPs are ranges that packets from pelago0 may go to: those that undergo DNAT on the
	// node are masqueraded, and packets with such a source are not forwarded to pelago0.
	ClusterIPs []netip.Prefix
	// Peers send outer packets to this node, Remote are addresses of other clusters. The rules are
	// checked with them: some examples suffice.
	Peers  []Arrival
	Remote []netip.Addr
}

// Arrival is the source and the ingress device of outer packets of a peer.
type Arrival struct {
	From    netip.Addr
	Ifindex int // the device; 0: not known
}

// Obstacles is what Firewall could not prevent. It makes no node unready: packets may pass
// nevertheless, since the programs deliver most of them past netfilter's hook INPUT.
type Obstacles struct {
	// Err: rules that accept our packets are missing, or the rules could not be read.
	Err error
	// Blocked are the packets that rules of others drop, by which, and the remedy.
	Blocked []string
}

// Firewall exempts outer packets from conntrack and packets into pelago0 from masquerading, accepts
// our packets in the chains of iptables, and checks all rules of the node. It uses the iptables
// variant of the node: legacy if its tables have rules, otherwise nft. Rules of earlier calls are
// removed.
func Firewall(f Filter) (Obstacles, error) {
	err := ensureNft(f)
	blocked, acceptErr := acceptPackets(f)
	return Obstacles{Err: acceptErr, Blocked: blocked}, err
}

func acceptPackets(f Filter) (blocked []string, err error) {
	packets := f.packets()
	var all firewall.Ruleset
	x, err := openXTables()
	var errs []error
	if err == nil {
		err = x.ensure(f, packets)
		errs = append(errs, err)
		var t *firewall.Table
		if t, err = x.list(); err == nil {
			all = t.Ruleset()
		}
	}
	errs = append(errs, err)
	parsed := err == nil && !x.legacy
	native, err := firewall.Read(func(family, table string) bool {
		return family == "ip" && (table == nftTable || parsed && table == filterTable)
	})
	errs = append(errs, err)
	all = all.With(native)
	for _, p := range packets {
		for _, b := range all.Blockers(p.Packet) {
			text := fmt.Sprintf("%s %s: %s", b, p.what, b.Remedy(p.Packet))
			if !slices.Contains(blocked, text) {
				blocked = append(blocked, text)
			}
		}
	}
	return blocked, errors.Join(errs...)
}

func removeFirewall() error {
	x, err := openXTables()
	if err == nil {
		err = x.remove()
	}
	return errors.Join(err, removeNft(nftTable))
}

// needed is a packet that must pass.
type needed struct {
	firewall.Packet
	what string
}

// packets are examples of all packets that must pass.
func (f Filter) packets() []needed {
	overlay := firewall.Device{Name: Overlay, Index: deviceIndex(Overlay)}
	peers := f.Peers
	if len(peers) == 0 {
		peers = []Arrival{{}}
	}
	var out []needed
	for _, p := range peers {
		out = append(out, needed{firewall.Packet{
			Hook: firewall.Input, In: deviceOf(p.Ifindex), Source: p.From, Protocol: unix.IPPROTO_UDP, Port: dataplane.OverlayPort, Untracked: true,
		}, fmt.Sprintf("UDP %d, so that large TCP transfers to pods of this node stall", dataplane.OverlayPort)})
	}
	for _, port := range f.Open {
		out = append(out, needed{firewall.Packet{Hook: firewall.Input, Protocol: unix.IPPROTO_UDP, Port: port},
			fmt.Sprintf("UDP %d of other gateways", port)})
	}
	remote := f.Remote
	if len(remote) == 0 {
		remote = []netip.Addr{{}}
	}
	for _, a := range remote {
		out = append(out,
			needed{firewall.Packet{Hook: firewall.Forward, In: overlay, Source: a}, "connections from other clusters to pods of this node"},
			needed{firewall.Packet{Hook: firewall.Forward, Out: overlay, Destination: a}, "connections from pods of this node to other clusters"})
	}
	return out
}

func deviceIndex(name string) uint32 {
	d, err := net.InterfaceByName(name)
	if err != nil {
		return 0
	}
	return uint32(d.Index)
}

func deviceOf(ifindex int) firewall.Device {
	d, err := net.InterfaceByIndex(ifindex)
	if ifindex == 0 || err != nil {
		return firewall.Device{}
	}
	return firewall.Device{Name: d.Name, Index: uint32(ifindex)}
}

// xtables is the iptables variant of the node.
type xtables struct {
	*iptables.IPTables
	path   string
	legacy bool
}

func openXTables() (*xtables, error) {
	x := &xtables{path: "iptables"}
	if names, err := os.ReadFile("/proc/thread-self/net/ip_tables_names"); err == nil && len(names) > 0 {
		// The legacy tables are loaded, so they are in use.
		if p, err := exec.LookPath("iptables-legacy"); err == nil {
			x.path, x.legacy = p, true
		}
	} else if p, err := exec.LookPath("iptables-nft"); err == nil {
		x.path = p
	}
	var err error
	if x.IPTables, err = iptables.New(iptables.Path(x.path), iptables.Timeout(lockSeconds)); err != nil {
		return nil, fmt.Errorf("run %s: %w (the image of pelago-node brings it; on a plain host install the package iptables)", x.path, err)
	}
	return x, nil
}

// lockSeconds bounds the wait for the lock of iptables.
const lockSeconds = 5

// list reads the table filter.
func (x *xtables) list() (*firewall.Table, error) {
	out, err := exec.Command(x.path, "--wait", strconv.Itoa(lockSeconds), "-t", filterTable, "-S").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
		}
		return nil, fmt.Errorf("list table %s of iptables: %w", filterTable, err)
	}
	program := "iptables"
	if x.legacy {
		program = "iptables-legacy"
	}
	return firewall.ParseTable(program, string(out)), nil
}

// ensure brings our chains and the rules that call them in line, and removes what earlier versions
// added.
func (x *xtables) ensure(f Filter, packets []needed) error {
	t, err := x.list()
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range ownChains(f) {
		errs = append(errs, x.fill(t, c), x.call(t, c, packets), x.removeOld(t, c.base))
	}
	return errors.Join(errs...)
}

// fill adds the rules of a chain and removes others. Their order does not matter.
func (x *xtables) fill(t *firewall.Table, c ownChain) error {
	have, ok := t.Rules(c.name)
	if !ok {
		if err := x.NewChain(filterTable, c.name); err != nil {
			return fmt.Errorf("add firewall chain %s: %w", c.name, err)
		}
	}
	var errs []error
	for _, rule := range c.rules {
		if !slices.Contains(have, rule) {
			if err := x.Append(filterTable, c.name, strings.Fields(rule)...); err != nil {
				errs = append(errs, fmt.Errorf("add firewall rule %s %s: %w", c.name, rule, err))
			}
		}
	}
	for _, rule := range have {
		if !slices.Contains(c.rules, rule) {
			if err := x.Delete(filterTable, c.name, strings.Fields(rule)...); err != nil {
				errs = append(errs, fmt.Errorf("delete firewall rule %s %s: %w", c.name, rule, err))
			}
		}
	}
	return errors.Join(errs...)
}

// call makes a chain at the hook call our chain, once: at its end, so that policy engines decide
// first and only the policy is overridden, but before a rule that drops all packets like ours.
// Rules that drop them in a chain that is called are a decision of its owner, and are reported.
func (x *xtables) call(t *firewall.Table, c ownChain, packets []needed) error {
	rule := "-j " + c.name
	rules, _ := t.Rules(c.base) // no rules if the chain is missing
	var examples []firewall.Packet
	for _, p := range packets {
		if (p.Hook == firewall.Input) == (c.base == "INPUT") {
			examples = append(examples, p.Packet)
		}
	}
	drop := t.FirstDrop(c.base, examples) - 1
	var at []int
	for i, have := range rules {
		if have == rule {
			at = append(at, i)
		}
	}
	if len(at) == 1 && (drop < 0 || at[0] < drop) {
		return nil
	}
	for range at {
		if err := x.Delete(filterTable, c.base, strings.Fields(rule)...); err != nil {
			return fmt.Errorf("delete firewall rule %s %s: %w", c.base, rule, err)
		}
	}
	var err error
	if drop < 0 {
		err = x.Append(filterTable, c.base, strings.Fields(rule)...)
	} else {
		before := len(at) - len(slices.DeleteFunc(at, func(i int) bool { return i < drop }))
		err = x.Insert(filterTable, c.base, drop-before+1, strings.Fields(rule)...)
	}
	if err != nil {
		return fmt.Errorf("add firewall rule %s %s: %w", c.base, rule, err)
	}
	return nil
}

// removeOld deletes the rules of earlier versions, recognised by their comment.
func (x *xtables) removeOld(t *firewall.Table, chain string) error {
	rules, _ := t.Rules(chain) // no rules if the chain is missing
	var errs []error
	for _, rule := range rules {
		if !strings.Contains(rule, "--comment "+oldComment+" ") {
			continue
		}
		if err := x.Delete(filterTable, chain, strings.Fields(rule)...); err != nil {
			errs = append(errs, fmt.Errorf("delete firewall rule %q: %w", rule, err))
		}
	}
	return errors.Join(errs...)
}

// remove deletes our chains and the rules that call them.
func (x *xtables) remove() error {
	t, err := x.list()
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range ownChains(Filter{}) {
		errs = append(errs, x.removeOld(t, c.base))
		if _, ok := t.Rules(c.name); !ok {
			continue
		}
		rules, _ := t.Rules(c.base) // no rules if the chain is missing
		for _, rule := range rules {
			if rule == "-j "+c.name {
				errs = append(errs, x.Delete(filterTable, c.base, "-j", c.name))
			}
		}
		errs = append(errs, x.ClearAndDeleteChain(filterTable, c.name))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove the firewall rules: %w", err)
	}
	return nil
}
