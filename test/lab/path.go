package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/test/lab/binaries"
)

// Impairment is what a path does to packets in each direction.
type Impairment struct {
	Delay time.Duration
	Loss  float64 // share of the packets, 0–1
}

const (
	// Preferences of the router's rules; the kernel's own main table has 32766.
	cutRule    = 100
	impairRule = 200

	relayDevice  = "relay0"
	relayTable   = 200
	relayProcess = "router/relay"
)

// end is one end of a path: a node or a whole cluster.
type end struct {
	node    *Node
	cluster Cluster
	prefix  netip.Prefix
}

func (p Plan) end(name string) (end, error) {
	if n, err := p.Node(name); err == nil {
		c, err := p.Cluster(n.Cluster)
		return end{&n, c, netip.PrefixFrom(n.Address, n.Address.BitLen())}, err
	}
	c, err := p.Cluster(name)
	if err != nil {
		return end{}, fmt.Errorf("lab %s has no node or cluster %q (pelago-lab status lists them)", p.Name, name)
	}
	return end{cluster: c, prefix: c.Subnet}, nil
}

// ends finds both ends of a path; same reports whether they are nodes of one cluster.
func (p Plan) ends(a, b string) (x, y end, same bool, err error) {
	if x, err = p.end(a); err == nil {
		y, err = p.end(b)
	}
	if err != nil {
		return x, y, false, err
	}
	same = x.cluster.Name == y.cluster.Name
	if same && (x.node == nil || y.node == nil || a == b) {
		return x, y, false, fmt.Errorf("there is no path between %s and %s: name two nodes, or ends in two clusters", a, b)
	}
	return x, y, same, nil
}

// CutPath cuts one path and leaves the links of both ends as they are: packets between them vanish
// silently. Ends are two nodes of one cluster, or nodes or clusters (the hub too) on both sides of
// the router. Within a cluster one path at a time can be cut.
func (l *Lab) CutPath(a, b string) error {
	x, y, same, err := l.record.Plan.ends(a, b)
	if err == nil && same {
		err = l.isolate(x, y)
	} else if err == nil {
		err = l.betweenClusters(x, y, func(from, to end) *netlink.Rule {
			r := ruleFor(from, to, cutRule)
			r.Type = unix.FR_ACT_BLACKHOLE
			return r
		})
	}
	if err != nil {
		return fmt.Errorf("cut the path between %s and %s: %w", a, b, err)
	}
	return nil
}

// isolate makes a pair of ports that a switch does not let talk to each other.
func (l *Lab) isolate(x, y end) error {
	sw, err := openNetspace(l.record.Plan.switchNamespace(x.cluster.Name))
	if err != nil {
		return err
	}
	defer sw.close()
	isolated, err := isolatedPorts(sw)
	if err != nil {
		return err
	}
	if len(isolated) > 0 {
		return fmt.Errorf("a path is cut already in %s, and a switch supports one: heal it with pelago-lab path heal", x.cluster.Name)
	}
	for _, port := range []string{x.node.port(), y.node.port()} {
		link, err := sw.LinkByName(port)
		if err == nil {
			err = sw.LinkSetIsolated(link, true)
		}
		if err != nil {
			return fmt.Errorf("isolate port %s of %s: %w", port, sw.name, err)
		}
	}
	return nil
}

func isolatedPorts(sw *netspace) (ports []netlink.Link, err error) {
	links, err := sw.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list the ports of %s: %w", sw.name, err)
	}
	for _, link := range links {
		if link.Attrs().MasterIndex == 0 {
			continue // not in the bridge
		}
		info, err := sw.LinkGetProtinfo(link)
		if err != nil {
			return nil, fmt.Errorf("read port %s of %s: %w", link.Attrs().Name, sw.name, err)
		}
		if info.Isolated {
			ports = append(ports, link)
		}
	}
	return ports, nil
}

// betweenClusters makes the router treat packets of both directions by a rule.
func (l *Lab) betweenClusters(x, y end, rule func(from, to end) *netlink.Rule) error {
	router, err := openNetspace(l.record.Plan.Namespace(routerName))
	if err != nil {
		return err
	}
	defer router.close()
	for _, r := range []*netlink.Rule{rule(x, y), rule(y, x)} {
		if err := router.RuleAdd(r); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add a rule to the router: %w", err)
		}
	}
	return nil
}

// ruleFor matches packets as they come from a cluster, not those that come back from the relay.
func ruleFor(from, to end, preference int) *netlink.Rule {
	r := netlink.NewRule()
	r.Family, r.Priority, r.IifName = unix.AF_INET, preference, from.cluster.Name
	r.Src, r.Dst = ipNet(from.prefix), ipNet(to.prefix)
	return r
}

// ImpairPath delays and drops packets between nodes or clusters on both sides of the router, in
// each direction, by a program in the router. One impairment at a time is in force; it may be given
// to several paths.
func (l *Lab) ImpairPath(ctx context.Context, a, b string, i Impairment) error {
	x, y, same, err := l.record.Plan.ends(a, b)
	switch {
	case err == nil && same:
		err = errors.New("only paths between clusters can be impaired")
	case err == nil && (i.Delay < 0 || i.Delay > 10*time.Second || i.Loss < 0 || i.Loss > 1):
		err = fmt.Errorf("a delay of %s or a loss of %g is out of range", i.Delay, i.Loss)
	case err == nil:
		err = l.startRelay(ctx, i)
	}
	if err == nil {
		err = l.betweenClusters(x, y, func(from, to end) *netlink.Rule {
			r := ruleFor(from, to, impairRule)
			r.Table = relayTable
			return r
		})
	}
	if err != nil {
		return fmt.Errorf("impair the path between %s and %s: %w", a, b, err)
	}
	return nil
}

// startRelay starts the relay and routes its table into its device.
func (l *Lab) startRelay(ctx context.Context, i Impairment) error {
	cache, err := binaries.CacheDir()
	if err != nil {
		return err
	}
	file := filepath.Join(cache, "node", "relay")
	if err := binaries.Program(ctx, "./test/lab/relay", file); err != nil {
		return err
	}
	unlock, err := lockState(ctx, l.Name(), false)
	if err != nil {
		return err
	}
	defer unlock()
	if err := kill([]process{l.recorded(relayProcess)}); err != nil {
		return fmt.Errorf("end the former relay: %w", err)
	}
	log := filepath.Join(l.dir, "relay.log")
	_, err = l.ensureProcess(program{
		name: relayProcess, namespace: l.record.Plan.Namespace(routerName), log: log,
		argv:     []string{file, relayDevice, i.Delay.String(), strconv.FormatFloat(i.Loss, 'g', -1, 64)},
		realtime: true,
	})
	if err != nil {
		return err
	}
	router, err := openNetspace(l.record.Plan.Namespace(routerName))
	if err != nil {
		return err
	}
	defer router.close()
	for range 100 {
		if link, err := router.LinkByName(relayDevice); err == nil && link.Attrs().RawFlags&unix.IFF_UP != 0 {
			return router.RouteReplace(&netlink.Route{Table: relayTable, LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK,
				Dst: ipNet(netip.MustParsePrefix("0.0.0.0/0"))})
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("the relay does not start: %s", lastLines(log, 5))
}

// HealPaths undoes every CutPath and ImpairPath.
func (l *Lab) HealPaths() error {
	router, err := openNetspace(l.record.Plan.Namespace(routerName))
	if err != nil {
		return err
	}
	defer router.close()
	rules, err := router.RuleList(netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("list the rules of the router: %w", err)
	}
	var errs []error
	for _, r := range rules {
		if r.Priority == cutRule || r.Priority == impairRule {
			errs = append(errs, router.RuleDel(&r))
		}
	}
	// Its device, and the route into it, go with it, but maybe a moment later.
	errs = append(errs, kill([]process{l.recorded(relayProcess)}), removeFile(l.processFile(relayProcess)))
	if link, err := router.LinkByName(relayDevice); err == nil {
		if err := router.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, fmt.Errorf("remove %s of the router: %w", relayDevice, err))
		}
	}
	for _, c := range l.record.Plan.Clusters {
		errs = append(errs, l.rejoin(c.Name))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("heal the paths of lab %s: %w", l.Name(), err)
	}
	return nil
}

// rejoin lets all ports of a switch talk to each other.
func (l *Lab) rejoin(cluster string) error {
	sw, err := openNetspace(l.record.Plan.switchNamespace(cluster))
	if err != nil {
		return err
	}
	defer sw.close()
	isolated, err := isolatedPorts(sw)
	errs := []error{err}
	for _, port := range isolated {
		errs = append(errs, sw.LinkSetIsolated(port, false))
	}
	return errors.Join(errs...)
}

func removeFile(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
