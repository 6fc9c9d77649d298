package node

import (
	"bufio"
	"bytes"
	"context"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// neededInterval is the time between two look-ups of the servers' names, and between two reads
	// of resolv.conf.
	neededInterval = 30 * time.Second
	// neededTimeout bounds the look-up of one name.
	neededTimeout = 5 * time.Second
	// resolvConf names the node's resolvers: the pod has dnsPolicy Default.
	resolvConf = "/etc/resolv.conf"
)

// needed finds the addresses that the node works by and that no peer's range takes
// (tables.Host.Needed): of the servers of its own API connection, of the kubeconfig that the cluster
// joined with and of the hub, and of its resolvers. It depends on no API object but the
// configuration, which is saved on the node: a peer that was accepted by mistake must not keep the
// node from the notification that it is gone.
type needed struct {
	own        string // server of the daemon's API connection: URL, HOST or HOST:PORT
	resolvConf string
	names      NameResolver
	changed    func()
	wake       chan struct{}

	mu        sync.Mutex
	hosts     []string
	known     map[string][]netip.Addr // by host; the last result of those whose look-up fails
	resolvers []netip.Addr
	read      bool // resolvers have been read
}

func newNeeded(own, resolvConf string, names NameResolver, changed func()) *needed {
	return &needed{own: own, resolvConf: resolvConf, names: names, changed: changed, wake: make(chan struct{}, 1), known: map[string][]netip.Addr{}}
}

// addresses returns the known addresses, sorted, and has those of further servers looked up.
func (n *needed) addresses(servers ...string) []netip.Addr {
	var hosts []string
	for _, s := range append(servers, n.own) {
		if h := hostOf(s); h != "" && !slices.Contains(hosts, h) {
			hosts = append(hosts, h)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.read {
		n.resolvers, n.read = readResolvers(n.resolvConf), true
	}
	if !slices.Equal(hosts, n.hosts) {
		n.hosts = hosts
		select {
		case n.wake <- struct{}{}:
		default:
		}
	}
	return n.union()
}

// union returns what is known of the present hosts; n.mu is held.
func (n *needed) union() []netip.Addr {
	out := slices.Clone(n.resolvers)
	for _, h := range n.hosts {
		if a, err := netip.ParseAddr(h); err == nil {
			out = append(out, a.Unmap())
		}
		out = append(out, n.known[h]...)
	}
	out = slices.DeleteFunc(out, func(a netip.Addr) bool { return !a.Is4() || !a.IsGlobalUnicast() })
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// run keeps the addresses current until ctx ends.
func (n *needed) run(ctx context.Context) {
	tick := time.NewTicker(neededInterval)
	defer tick.Stop()
	for {
		n.refresh(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-n.wake:
		}
	}
}

func (n *needed) refresh(ctx context.Context) {
	resolvers := readResolvers(n.resolvConf)
	n.mu.Lock()
	hosts := slices.Clone(n.hosts)
	n.mu.Unlock()
	found := map[string][]netip.Addr{}
	for _, h := range hosts {
		if _, err := netip.ParseAddr(h); err == nil {
			continue
		}
		if a, err := n.lookUp(ctx, h); err == nil {
			found[h] = a
		}
	}
	n.mu.Lock()
	before := n.union()
	if len(resolvers) > 0 { // the file is empty while it is being rewritten
		n.resolvers = resolvers
	}
	for h, a := range found {
		n.known[h] = a
	}
	differs := !slices.Equal(before, n.union())
	n.mu.Unlock()
	if differs {
		n.changed()
	}
}

func (n *needed) lookUp(ctx context.Context, host string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, neededTimeout)
	defer cancel()
	found, err := n.names.LookupNetIP(ctx, "ip4", host)
	for i := range found {
		found[i] = found[i].Unmap()
	}
	return found, err
}

// hostOf is the host of a URL, HOST or HOST:PORT.
func hostOf(server string) string {
	if strings.Contains(server, "://") {
		u, err := url.Parse(server)
		if err != nil {
			return ""
		}
		return u.Hostname()
	}
	if host, _, err := net.SplitHostPort(server); err == nil {
		return host
	}
	return server
}

// readResolvers returns the name servers of a resolv.conf(5), none without the file.
func readResolvers(path string) (out []netip.Addr) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	for lines := bufio.NewScanner(bytes.NewReader(content)); lines.Scan(); {
		if f := strings.Fields(lines.Text()); len(f) > 1 && f[0] == "nameserver" {
			if a, err := netip.ParseAddr(f[1]); err == nil {
				out = append(out, a.Unmap())
			}
		}
	}
	return out
}
