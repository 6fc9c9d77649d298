package config

import (
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// MaxDNSSeconds bounds Config.DNSTTL and DNSCache: an address stays in use that long after its
// cluster has died.
const MaxDNSSeconds = 3600

// NamedRanges are those of the ClusterSetIPs and the global IPs of all clusters: their addresses
// have names (PTR).
func (c Config) NamedRanges() []netip.Prefix {
	out := c.GlobalCIDRs
	if c.GlobalRange.IsValid() {
		out = []netip.Prefix{c.GlobalRange}
	}
	if c.ClusterSetIPRange.IsValid() {
		out = append(slices.Clip(out), c.ClusterSetIPRange)
	}
	return out
}

func (p *parser) configMapName(key string) string {
	name := strings.TrimSpace(p.data[key])
	if problems := validation.IsDNS1123Subdomain(name); name != "" && len(problems) > 0 {
		p.fail(key, "%q is no name of a ConfigMap in namespace kube-system", name)
		return ""
	}
	return name
}

func (p *parser) domains(key string) []string {
	var out []string
	for _, text := range p.list(key) {
		domain := strings.ToLower(strings.TrimSuffix(text, "."))
		if problems := validation.IsDNS1123Subdomain(domain); len(problems) > 0 {
			p.fail(key, "%q is no domain name", text)
			continue
		}
		out = append(out, domain)
	}
	return out
}
