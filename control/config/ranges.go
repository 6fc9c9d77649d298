package config

import (
	"fmt"
	"net/netip"
)

// minRangeBits is the shortest prefix of an IPv4 range that is routed to one cluster.
const minRangeBits = 8

// notRouted are ranges that hosts do not route. The policy pelago-clusters of the hub has the same list.
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
