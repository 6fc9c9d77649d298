package walk

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/pelago-net/pelago/control/config"
)

// ranges are the addresses of a cluster.
type ranges struct{ pods, services, global string }

// All clusters have the same pods and services with globalnet; without it g2 has others.
var (
	withGlobalnet = map[string]ranges{"g1": {PodCIDR, ServiceCIDR, GlobalCIDR1}, "g2": {PodCIDR, ServiceCIDR, GlobalCIDR2},
		"g3": {PodCIDR, ServiceCIDR, GlobalCIDR3}}
	withoutGlobalnet = map[string]ranges{"g1": {pods: PodCIDR, services: ServiceCIDR}, "g2": {pods: "10.8.0.0/16", services: "10.88.0.0/16"}}
)

// clusterIndex is what a cluster gets that joins in this order.
var clusterIndex = map[string]uint16{"g1": 1, "g2": 2, "g3": 3}

func (w *Walk) ranges(cluster string) ranges {
	if w.Plain {
		return withoutGlobalnet[cluster]
	}
	return withGlobalnet[cluster]
}

// Pods and Services are a cluster's own ranges.
func (w *Walk) Pods(cluster string) string     { return w.ranges(cluster).pods }
func (w *Walk) Services(cluster string) string { return w.ranges(cluster).services }

// ShownServices and ShownPods are where the other cluster sees a cluster's services and pods: in
// its GlobalCIDR, or where they are.
func (w *Walk) ShownServices(cluster string) string {
	if w.Plain {
		return w.ranges(cluster).services
	}
	return w.ranges(cluster).global
}

func (w *Walk) ShownPods(cluster string) string {
	if w.Plain {
		return w.ranges(cluster).pods
	}
	return w.ranges(cluster).global
}

// Shown are all ranges that a cluster has in the view of the other.
func (w *Walk) Shown(cluster string) []string {
	if !w.Plain {
		return []string{w.ranges(cluster).global}
	}
	fabric, err := config.FabricPrefix(netip.MustParsePrefix(config.DefaultFabricCIDR), clusterIndex[cluster])
	if err != nil {
		panic(err) // the numbers above are wrong
	}
	return []string{w.ranges(cluster).pods, w.ranges(cluster).services, fabric.String()}
}

// sources returns the range of source addresses of a pod's packets in the other cluster: one of the
// cluster's egress IPs, or without globalnet its own address, or its node's fabric address if it is
// in the node's network.
func (w *Walk) sources(ctx context.Context, from Pod) (first, last netip.Addr, err error) {
	if !w.Plain {
		egress := netip.MustParsePrefix(w.ranges(from.Cluster).global)
		first, last = egress.Addr().Next(), egress.Addr()
		for range egressIPCount {
			last = last.Next()
		}
		return first, last, nil
	}
	out, err := w.run(ctx, "", w.Lab.Kubectl(), "--context", from.Cluster, "-n", from.Namespace, "get", "pod", from.Name,
		"-o", `jsonpath={.status.podIP} {.spec.nodeName} {.spec.hostNetwork}`)
	if err != nil {
		return first, last, err
	}
	fields := strings.Fields(out)
	if len(fields) == 3 && fields[2] == "true" {
		first, err = w.Fabric(ctx, from.Cluster, fields[1])
		return first, first, err
	}
	if len(fields) < 2 {
		return first, last, fmt.Errorf("pod %s/%s has no address: %q", from.Namespace, from.Name, out)
	}
	first, err = netip.ParseAddr(fields[0])
	return first, first, err
}

// Fabric is the address of a node in the fabric.
func (w *Walk) Fabric(ctx context.Context, cluster, node string) (netip.Addr, error) {
	out, err := w.run(ctx, "", w.Lab.Kubectl(), "--context", cluster, "get", "nodeindex", node, "-o", "jsonpath={.spec.index}")
	if err != nil {
		return netip.Addr{}, err
	}
	index, err := strconv.ParseUint(out, 10, 16)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("read the index of node %s: %w", node, err)
	}
	return config.FabricAddress(netip.MustParsePrefix(config.DefaultFabricCIDR), clusterIndex[cluster], uint16(index))
}
