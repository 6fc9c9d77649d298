package netdev

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/coreos/go-iptables/iptables"

	"github.com/pelago-net/pelago/dataplane"
)

// rule is a firewall rule of ours. It is the last of its chain, so policy engines decide first; it
// overrides only the chain's policy, which Docker or a distribution may set to DROP.
type rule struct {
	table, chain string
	spec         []string
}

const comment = "pelago"

// chains may contain rules of ours.
var chains = [][2]string{{"filter", "FORWARD"}, {"filter", "INPUT"}}

func rules(cablePort uint16, open []uint16) []rule {
	tagged := func(verdict []string, spec ...string) []string {
		return append(append(spec, "-m", "comment", "--comment", comment), verdict...)
	}
	accept := []string{"-j", "ACCEPT"}
	out := []rule{
		{"filter", "FORWARD", tagged(accept, "-i", Overlay)},
		{"filter", "FORWARD", tagged(accept, "-o", Overlay)},
		{"filter", "INPUT", tagged(accept, "-i", Overlay)},
	}
	for _, port := range append([]uint16{dataplane.OverlayPort, cablePort}, open...) {
		if port != 0 {
			out = append(out, rule{"filter", "INPUT", tagged(accept, "-p", "udp", "-m", "udp", "--dport", strconv.Itoa(int(port)))})
		}
	}
	return out
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
}

// Firewall adds our rules and removes those of earlier calls, exempts outer packets from conntrack
// and packets into pelago0 from masquerading. It uses the iptables variant of the node: legacy if
// its tables have rules, otherwise nft.
func Firewall(f Filter) error {
	ipt, err := openIPTables()
	if err != nil {
		return err
	}
	want := rules(f.CablePort, f.Open)
	var errs []error
	for _, r := range want {
		if err := ipt.AppendUnique(r.table, r.chain, r.spec...); err != nil {
			errs = append(errs, fmt.Errorf("add firewall rule %s: %w", r, err))
		}
	}
	return errors.Join(append(errs, removeRules(ipt, want), ensureNft(f))...)
}

func removeFirewall() error {
	ipt, err := openIPTables()
	if err != nil {
		return err
	}
	return errors.Join(removeRules(ipt, nil), removeNft(nftTable))
}

// removeRules deletes our rules, recognised by their comment, except those to keep.
func removeRules(ipt *iptables.IPTables, keep []rule) error {
	var errs []error
	for _, chain := range chains {
		lines, err := ipt.List(chain[0], chain[1])
		if err != nil {
			errs = append(errs, fmt.Errorf("list chain %s: %w", chain[1], err))
			continue
		}
		for _, line := range lines {
			spec, ours := strings.CutPrefix(line, "-A "+chain[1]+" ")
			if !ours || !strings.Contains(spec, "--comment "+comment+" ") {
				continue
			}
			fields := strings.Fields(spec)
			if slices.ContainsFunc(keep, func(r rule) bool { return r.table == chain[0] && r.chain == chain[1] && sameSpec(r.spec, fields) }) {
				continue
			}
			if err := ipt.Delete(chain[0], chain[1], fields...); err != nil {
				errs = append(errs, fmt.Errorf("delete firewall rule %q: %w", line, err))
			}
		}
	}
	return errors.Join(errs...)
}

// sameSpec compares a rule with its listed form, which may have another order.
func sameSpec(a, b []string) bool {
	a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	return slices.Equal(a, b)
}

func (r rule) String() string { return r.table + " " + r.chain + " " + strings.Join(r.spec, " ") }

func openIPTables() (*iptables.IPTables, error) {
	path := "iptables"
	if names, err := os.ReadFile("/proc/net/ip_tables_names"); err == nil && len(names) > 0 {
		// The legacy tables are loaded, so they are in use.
		if p, err := exec.LookPath("iptables-legacy"); err == nil {
			path = p
		}
	} else if p, err := exec.LookPath("iptables-nft"); err == nil {
		path = p
	}
	ipt, err := iptables.New(iptables.Path(path), iptables.Timeout(5))
	if err != nil {
		return nil, fmt.Errorf("run %s: %w (the image of pelago-node brings it; on a plain host install the package iptables)", path, err)
	}
	return ipt, nil
}
