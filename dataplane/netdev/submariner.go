package netdev

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"github.com/coreos/go-iptables/iptables"
	"github.com/vishvananda/netlink"
)

// Names and numbers of Submariner on a node.
var (
	// overlay; cable by VXLAN; cable by WireGuard
	submarinerDevices = []string{"vx-submariner", "vxlan-tunnel", "submariner"}
	// prefixes, of ipsets too
	submarinerChains = []string{"SUBMARINER-", "SM-GN-"}
	// of the cable by VXLAN; with OVN; of the host network
	submarinerTables = []int{100, 149, 150}
)

const submarinerNft = "submariner" // table, from 0.22 on

// RemoveSubmariner removes what Submariner leaves in the kernel when its pods stop: devices,
// firewall chains and sets, routes to the remote ranges and the rules of their tables, and IPsec
// policies of these ranges with their states. A policy that stays would drop decapsulated packets
// of ours. It does not touch rules of others in the same tables.
func RemoveSubmariner(remote []netip.Prefix) error {
	var errs []error
	for _, name := range submarinerDevices {
		errs = append(errs, RemoveLink(name))
	}
	errs = append(errs, removeSubmarinerRoutes(remote), removeSubmarinerIPsec(remote))
	for _, path := range iptablesVariants() {
		errs = append(errs, removeSubmarinerChains(path))
	}
	return errors.Join(append(errs, removeSubmarinerSets(), removeNft(submarinerNft))...)
}

// within reports whether a range is one of a list, or part of one.
func within(n *net.IPNet, of []netip.Prefix) bool {
	if n == nil {
		return false
	}
	ip, ok := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	return ok && slices.ContainsFunc(of, func(p netip.Prefix) bool { return p.Contains(ip.Unmap()) && p.Bits() <= bits })
}

func removeSubmarinerRoutes(remote []netip.Prefix) error {
	var errs []error
	for _, table := range submarinerTables {
		routes, err := Dump(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: table}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("list the routes of table %d: %w", table, err))
			continue
		}
		kept := 0
		for _, r := range routes {
			if !within(r.Dst, remote) {
				kept++
			} else if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, syscall.ESRCH) {
				errs = append(errs, fmt.Errorf("remove the route of %s in table %d: %w", r.Dst, table, err))
			}
		}
		rules, err := rulesOf(table)
		if err != nil {
			errs = append(errs, fmt.Errorf("list the rules of table %d: %w", table, err))
		}
		for _, r := range rules {
			if kept > 0 {
				break // the table is another component's, too
			}
			if err := netlink.RuleDel(&r); err != nil && !errors.Is(err, syscall.ENOENT) {
				errs = append(errs, fmt.Errorf("remove rule %v: %w", r, err))
			}
		}
	}
	return errors.Join(errs...)
}

// removeSubmarinerIPsec removes the policies of libreswan. Policies of xfrm interfaces, such as
// ours, have an interface id.
func removeSubmarinerIPsec(remote []netip.Prefix) error {
	policies, err := Dump(func() ([]netlink.XfrmPolicy, error) { return netlink.XfrmPolicyList(netlink.FAMILY_V4) })
	if unsupported(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list IPsec policies: %w", err)
	}
	type sa struct {
		src, dst string
		reqid    int
	}
	removed := map[sa]bool{}
	var errs []error
	for _, p := range policies {
		if p.Ifid != 0 || len(p.Tmpls) == 0 || !within(p.Src, remote) && !within(p.Dst, remote) {
			continue
		}
		for _, t := range p.Tmpls {
			removed[sa{t.Src.String(), t.Dst.String(), t.Reqid}] = true
		}
		if err := netlink.XfrmPolicyDel(&p); err != nil && !errors.Is(err, syscall.ENOENT) {
			errs = append(errs, fmt.Errorf("remove IPsec policy %v: %w", p, err))
		}
	}
	states, err := Dump(func() ([]netlink.XfrmState, error) { return netlink.XfrmStateList(netlink.FAMILY_V4) })
	if err != nil {
		errs = append(errs, fmt.Errorf("list IPsec states: %w", err))
	}
	for _, s := range states {
		if s.Ifid != 0 || !removed[sa{s.Src.String(), s.Dst.String(), s.Reqid}] {
			continue
		}
		if err := netlink.XfrmStateDel(&s); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, fmt.Errorf("remove the IPsec state from %s to %s: %w", s.Src, s.Dst, err))
		}
	}
	return errors.Join(errs...)
}

func unsupported(err error) bool {
	return errors.Is(err, syscall.EPROTONOSUPPORT) || errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.EINVAL)
}

// iptablesVariants are the commands of the variants in use: Submariner's image may have used
// another one than the node.
func iptablesVariants() (paths []string) {
	names := []string{"iptables-nft"}
	if tables, err := os.ReadFile("/proc/net/ip_tables_names"); err == nil && len(tables) > 0 {
		names = append(names, "iptables-legacy") // would load the legacy tables otherwise
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			paths = append(paths, path)
		}
	}
	return paths
}

func removeSubmarinerChains(path string) error {
	ipt, err := iptables.New(iptables.Path(path), iptables.Timeout(5))
	if err != nil {
		return fmt.Errorf("run %s: %w", path, err)
	}
	ours := func(name string) bool {
		return slices.ContainsFunc(submarinerChains, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	}
	var errs []error
	for _, table := range []string{"filter", "nat", "mangle"} {
		chains, err := ipt.ListChains(table)
		if err != nil {
			errs = append(errs, fmt.Errorf("list the chains of table %s: %w", table, err))
			continue
		}
		var doomed []string
		for _, chain := range chains {
			if ours(chain) {
				doomed = append(doomed, chain)
				errs = append(errs, ipt.ClearChain(table, chain))
			}
		}
		if len(doomed) == 0 {
			continue
		}
		for _, chain := range chains {
			lines, err := ipt.List(table, chain)
			errs = append(errs, err)
			for _, line := range lines {
				fields := strings.Fields(strings.TrimPrefix(line, "-A "+chain+" "))
				if i := slices.Index(fields, "-j"); i >= 0 && i+1 < len(fields) && ours(fields[i+1]) && !ours(chain) {
					errs = append(errs, ipt.Delete(table, chain, fields...))
				}
			}
		}
		for _, chain := range doomed {
			errs = append(errs, ipt.DeleteChain(table, chain))
		}
	}
	return errors.Join(errs...)
}

// removeSubmarinerSets removes ipsets; rules that used them are gone.
func removeSubmarinerSets() error {
	sets, err := netlink.IpsetListAll()
	if err != nil {
		return nil // the kernel has no ipsets
	}
	var errs []error
	for _, s := range sets {
		if slices.ContainsFunc(submarinerChains, func(prefix string) bool { return strings.HasPrefix(s.SetName, prefix) }) {
			errs = append(errs, netlink.IpsetDestroy(s.SetName))
		}
	}
	return errors.Join(errs...)
}
