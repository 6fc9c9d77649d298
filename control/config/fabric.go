package config

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// The fabric is one IPv4 /8 of the clusterset in which every node of every cluster has an address,
// the same for all clusters: prefix | cluster index << 14 | node index. Wires carry packets between
// fabric addresses, and without globalnet the processes of a node speak from its own.
const (
	// DefaultFabricCIDR lies in 240.0.0.0/4, which is reserved (RFC 1112 section 4) and routed by
	// Linux.
	DefaultFabricCIDR = "241.0.0.0/8"
	// DefaultClusterSetIPRange is what ClusterSetIPs are taken from unless deploy-broker gives
	// another range.
	DefaultClusterSetIPRange = "243.0.0.0/8"
	// MaxFabricCluster and MaxFabricNode are the largest indexes that have an address.
	MaxFabricCluster = 1023
	MaxFabricNode    = 1<<fabricNodeBits - 1

	fabricBits        = 8
	fabricNodeBits    = 14
	fabricClusterBits = 32 - fabricNodeBits
)

// CheckFabric returns why p cannot be the fabric of a clusterset, or nil.
func CheckFabric(p netip.Prefix) error {
	switch {
	case !p.IsValid():
		return errors.New("there is no fabric range: give a /8 such as " + DefaultFabricCIDR)
	case !p.Addr().Is4() || p.Bits() != fabricBits:
		return fmt.Errorf("fabric range %s is no IPv4 /8: it has %d addresses for each of %d clusters, so give a /8 such as %s",
			p, 1<<fabricNodeBits, MaxFabricCluster, DefaultFabricCIDR)
	case p != p.Masked():
		return fmt.Errorf("fabric range %s has host bits: write %s", p, p.Masked())
	}
	if err := CheckRange(p); err != nil {
		return fmt.Errorf("fabric %w: choose another /8 such as %s", err, DefaultFabricCIDR)
	}
	return nil
}

// FabricPrefix is the /18 that belongs to a cluster, by its index from 1 to MaxFabricCluster.
// fabric is a /8 that CheckFabric accepts.
func FabricPrefix(fabric netip.Prefix, cluster uint16) (netip.Prefix, error) {
	if !fabric.IsValid() {
		return netip.Prefix{}, CheckFabric(fabric)
	}
	if cluster == 0 || cluster > MaxFabricCluster {
		return netip.Prefix{}, fmt.Errorf("cluster index %d is not from 1 to %d: it has no fabric addresses", cluster, MaxFabricCluster)
	}
	return netip.PrefixFrom(inFabric(fabric, cluster, 0), fabricClusterBits), nil
}

// FabricAddress is the address of a node, by the index of its cluster and its own, from 1 to
// MaxFabricNode. fabric is as for FabricPrefix.
func FabricAddress(fabric netip.Prefix, cluster, node uint16) (netip.Addr, error) {
	if _, err := FabricPrefix(fabric, cluster); err != nil {
		return netip.Addr{}, err
	}
	if node == 0 || node > MaxFabricNode {
		return netip.Addr{}, fmt.Errorf("node index %d is not from 1 to %d: it has no fabric address", node, MaxFabricNode)
	}
	return inFabric(fabric, cluster, node), nil
}

func inFabric(fabric netip.Prefix, cluster, node uint16) netip.Addr {
	first := fabric.Addr().As4()
	n := binary.BigEndian.Uint32(first[:]) | uint32(cluster)<<fabricNodeBits | uint32(node)
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, n)))
}

// FabricAddress is that of a node in the clusterset's fabric; see the function of the same name.
func (c Config) FabricAddress(cluster, node uint16) (netip.Addr, error) {
	return FabricAddress(c.FabricCIDR, cluster, node)
}

// FabricPrefix is the /18 of a cluster in the clusterset's fabric; see the function of the same
// name.
func (c Config) FabricPrefix(cluster uint16) (netip.Prefix, error) {
	return FabricPrefix(c.FabricCIDR, cluster)
}

// minRangeBits is the shortest prefix of an IPv4 range that is routed to one cluster.
const minRangeBits = 8

// notRouted are ranges that hosts do not route. The policy pelago-clusters of the hub has the same
// list.
var notRouted = []struct {
	prefix netip.Prefix
	what   string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "unspecified"},
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
	{netip.MustParsePrefix("255.0.0.0/8"), "broadcast"},
	{netip.MustParsePrefix("::/128"), "unspecified"},
	{netip.MustParsePrefix("::1/128"), "loopback"},
	{netip.MustParsePrefix("::ffff:0:0/96"), "IPv4-mapped"},
	{netip.MustParsePrefix("fe80::/10"), "link-local"},
	{netip.MustParsePrefix("ff00::/8"), "multicast"},
}

// CheckRange returns why a range cannot be routed to a cluster, or nil.
func CheckRange(p netip.Prefix) error {
	for _, n := range notRouted {
		if n.prefix.Overlaps(p) {
			return fmt.Errorf("range %s overlaps %s (%s), which hosts do not route", p, n.prefix, n.what)
		}
	}
	if p.Addr().Is4() && p.Bits() < minRangeBits {
		return fmt.Errorf("range %s is larger than a /%d", p, minRangeBits)
	}
	return nil
}
