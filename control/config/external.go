package config

import "slices"

// external refuses ranges of hosts that cannot be connected, and ClusterIPs to be routed that
// cannot be.
func (p *parser) external(c Config) {
	for _, e := range c.ExternalCIDRs {
		if !e.Addr().Is4() {
			p.fail(KeyExternalCIDR, "%s is no IPv4 range: only IPv4 is routed between clusters", e)
			continue
		}
		if err := CheckRange(e); err != nil {
			p.fail(KeyExternalCIDR, "%w: give the ranges of the hosts", err)
		}
		if own := slices.Concat(c.PodCIDRs, c.ServiceCIDRs, c.GlobalCIDRs); slices.ContainsFunc(own, e.Overlaps) {
			p.fail(KeyExternalCIDR, "%s overlaps a range of pods, services or global IPs of the cluster, %s: give ranges of hosts that are not in it", e, joinPrefixes(own))
		}
	}
	if c.RouteServiceCIDR && c.Globalnet() {
		p.fail(KeyRouteServices, "is true, and with globalnet no ClusterIP is routed: export the services")
	}
}
