package member

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/deploy/manifests"
)

const (
	// maxNeeded bounds the needed addresses that a cluster publishes.
	maxNeeded = 32
	// lookupTimeout bounds the look-up of the server's name.
	lookupTimeout = 5 * time.Second
)

// needed returns the addresses of the cluster's API server and of the name servers that CoreDNS
// forwards to, then those of its nodes and of the servers and resolvers that the nodes of an earlier
// join report, without those in its own ranges. server is the host of the kubeconfig's server, empty
// for one inside the cluster.
func needed(ctx context.Context, c manifests.Cluster, own []netip.Prefix, nodes []netip.Addr) (addresses []netip.Addr, server string, err error) {
	outside := func(a netip.Addr) bool {
		return a.Is4() && a.IsGlobalUnicast() && !slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	add := func(texts ...string) {
		for _, text := range texts {
			if a, err := netip.ParseAddr(text); err == nil && outside(a.Unmap()) {
				addresses = append(addresses, a.Unmap())
			}
		}
	}
	endpoints, err := c.Typed.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=kubernetes"})
	if err != nil {
		return nil, "", fmt.Errorf("list the endpoints of the API server: %w", err)
	}
	for _, s := range endpoints.Items {
		for _, e := range s.Endpoints {
			add(e.Addresses...)
		}
	}
	if u, err := url.Parse(c.Config.Host); err == nil {
		ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
		defer cancel()
		// a name that does not resolve here may do so in the cluster
		found, _ := net.DefaultResolver.LookupNetIP(ctx, "ip4", u.Hostname())
		for _, a := range found {
			if outside(a.Unmap()) {
				server = u.Hostname()
				addresses = append(addresses, a.Unmap())
			}
		}
	}
	coredns, err := configMap(ctx, c.Typed, "coredns")
	if err != nil {
		return nil, "", err
	}
	add(forwarded(coredns["Corefile"])...)
	slices.SortFunc(addresses, netip.Addr.Compare)
	first := slices.Compact(addresses)
	addresses = nil
	for _, a := range nodes {
		add(a.String())
	}
	var indexes pelagov1alpha1.NodeIndexList
	if err := c.Client.List(ctx, &indexes); err != nil && !meta.IsNoMatchError(err) {
		return nil, "", fmt.Errorf("list NodeIndexes: %w", err)
	}
	for i := range indexes.Items {
		add(indexes.Items[i].Status.Needed...)
	}
	slices.SortFunc(addresses, netip.Addr.Compare)
	for _, a := range slices.Compact(addresses) {
		if !slices.Contains(first, a) {
			first = append(first, a)
		}
	}
	return first[:min(len(first), maxNeeded)], server, nil
}

// forwarded are the hosts that a Corefile forwards to.
func forwarded(corefile string) (out []string) {
	for _, line := range strings.Split(corefile, "\n") {
		f := strings.Fields(line)
		if len(f) < 3 || f[0] != "forward" {
			continue
		}
		for _, to := range f[2:] {
			if _, after, ok := strings.Cut(to, "://"); ok {
				to = after
			}
			if host, _, err := net.SplitHostPort(to); err == nil {
				to = host
			}
			out = append(out, to)
		}
	}
	return out
}
