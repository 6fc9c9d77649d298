package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// parser reads keys and collects their errors.
type parser struct {
	data map[string]string
	errs []error
}

func (p *parser) fail(key, format string, args ...any) {
	p.errs = append(p.errs, fmt.Errorf("key %s: "+format, append([]any{key}, args...)...))
}

func (p *parser) required(key string) string {
	v := strings.TrimSpace(p.data[key])
	if v == "" {
		p.fail(key, "is missing")
	}
	return v
}

func (p *parser) clusterID(key string) string {
	v := p.required(key)
	if v == "" {
		return ""
	}
	if err := CheckClusterID(v); err != nil {
		p.fail(key, "%w", err)
	}
	return v
}

// number reads 1–most.
func (p *parser) number(key string, most uint64) uint16 {
	v := p.required(key)
	if v == "" {
		return 0
	}
	n, err := strconv.ParseUint(v, 10, 16)
	if err != nil || n == 0 || n > most {
		p.fail(key, "%q is no number from 1 to %d", v, most)
		return 0
	}
	return uint16(n)
}

// optionalNumber is number; 0 if the key is missing.
func (p *parser) optionalNumber(key string, most uint64) uint16 {
	if strings.TrimSpace(p.data[key]) == "" {
		return 0
	}
	return p.number(key, most)
}

// boolean reads true or false; a key that is missing has the default.
func (p *parser) boolean(key string, missing bool) bool {
	v := strings.TrimSpace(p.data[key])
	if v == "" {
		return missing
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		p.fail(key, "%q is neither true nor false", v)
	}
	return b
}

func (p *parser) oneOf(key string, allowed ...string) string {
	v := p.required(key)
	if v != "" && !slices.Contains(allowed, v) {
		p.fail(key, "%q is not supported: use %s", v, strings.Join(allowed, " or "))
	}
	return v
}

// optionalOneOf leaves the value empty where the key is missing.
func (p *parser) optionalOneOf(key string, allowed ...string) string {
	if strings.TrimSpace(p.data[key]) == "" {
		return ""
	}
	return p.oneOf(key, allowed...)
}

// prefixes reads a comma list of ranges in CIDR notation; they must not overlap each other.
func (p *parser) prefixes(key string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range p.list(key) {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			p.fail(key, "%q is no range in CIDR notation such as 10.7.0.0/16", text)
			continue
		}
		if masked := prefix.Masked(); masked != prefix {
			p.fail(key, "%s has bits behind its length: write %s", prefix, masked)
			continue
		}
		if i := slices.IndexFunc(out, prefix.Overlaps); i >= 0 {
			p.fail(key, "%s and %s overlap", out[i], prefix)
			continue
		}
		out = append(out, prefix)
	}
	return out
}

// fabric reads the one range of the fabric.
func (p *parser) fabric(key string) netip.Prefix {
	v := p.required(key)
	if v == "" {
		return netip.Prefix{}
	}
	prefix, err := netip.ParsePrefix(v)
	if err == nil {
		err = CheckFabric(prefix)
	}
	if err != nil {
		p.fail(key, "%w", err)
		return netip.Prefix{}
	}
	return prefix
}

// routedRanges refuses ranges of the cluster that lie in the fabric, and a cluster without anything
// to be routed.
func (p *parser) routedRanges(c Config) {
	for key, prefixes := range map[string][]netip.Prefix{
		KeyGlobalCIDR: c.GlobalCIDRs, KeyPodCIDR: c.PodCIDRs, KeyServiceCIDR: c.ServiceCIDRs, KeyExternalCIDR: c.ExternalCIDRs,
	} {
		if i := slices.IndexFunc(prefixes, c.ClusterSetIPRange.Overlaps); i >= 0 {
			p.fail(key, "%s overlaps the clusterset's range %s of ClusterSetIPs: deploy the broker with another --clusterset-ip-cidr-range", prefixes[i], c.ClusterSetIPRange)
		}
		if i := slices.IndexFunc(prefixes, c.FabricCIDR.Overlaps); i >= 0 {
			p.fail(key, "%s overlaps the clusterset's fabric range %s: deploy the broker with another --fabric-cidr", prefixes[i], c.FabricCIDR)
		}
	}
	for _, v := range c.ClusterSetIPCIDRs {
		if !c.ClusterSetIPRange.Contains(v.Addr()) || v.Bits() < c.ClusterSetIPRange.Bits() || !v.Addr().Is4() {
			p.fail(KeyVIPCIDR, "%s does not lie inside the clusterset's range %s of ClusterSetIPs (key %s)", v, c.ClusterSetIPRange, KeyVIPRange)
		}
	}
	if c.ClusterSetIPRange.Overlaps(c.FabricCIDR) {
		p.fail(KeyVIPRange, "%s overlaps the clusterset's fabric range %s: deploy the broker with another --fabric-cidr", c.ClusterSetIPRange, c.FabricCIDR)
	}
	is4 := func(r netip.Prefix) bool { return r.Addr().Is4() }
	if len(c.PodCIDRs) > 0 && !c.Globalnet() && !slices.ContainsFunc(c.PodCIDRs, is4) {
		p.fail(KeyPodCIDR, "%s has no IPv4 range, and without globalnet only IPv4 is routed between clusters", joinPrefixes(c.PodCIDRs))
	}
}

// list splits a comma list and drops empty items.
func (p *parser) list(key string) []string {
	var out []string
	for item := range strings.SplitSeq(p.data[key], ",") {
		if item = strings.TrimSpace(item); item != "" {
			out = append(out, item)
		}
	}
	return out
}
