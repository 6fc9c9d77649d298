package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"

	"github.com/pelago-net/pelago/test/lab/binaries"
)

// Values of Options.KubeProxy.
const (
	IPTables = "iptables"
	NFTables = "nftables"
)

// Values of Options.Addressing.
const (
	// Overlapping gives every cluster the same pod and service CIDRs.
	Overlapping = "overlapping"
	// Consecutive gives every cluster CIDRs of its own.
	Consecutive = "consecutive"
)

// Values of Options.Masquerade.
const (
	// MasqueradeAny rewrites the source of everything that pods send out of the
	// pod CIDR, on whatever device, as flannel and kindnet do.
	MasqueradeAny = "any"
	// MasqueradeUplink does so only for what leaves by the node's uplink.
	MasqueradeUplink = "uplink"
)

// DefaultName is the name of a lab that is given none.
const DefaultName = "pelago"

// Options describe a lab. The zero value of each field stands for its
// default.
type Options struct {
	// Name keeps several labs on one machine apart: a lower-case letter and up
	// to ten letters or digits. Default "pelago".
	Name string `json:"name"`
	// Clusters is the number of clusters, named g1, g2, …. Default 2.
	Clusters int `json:"clusters"`
	// Nodes is the number of nodes of each cluster, named g1-n1, g1-n2, ….
	// Default 2.
	Nodes int `json:"nodes"`
	// PodCIDRs and ServiceCIDRs hold nothing, one prefix, or one per cluster.
	// One prefix is used by all clusters (Overlapping) or is the first of
	// consecutive ones. Default 10.7.0.0/16 and 10.77.0.0/16 for all with
	// Overlapping, else 10.8.0.0/16, 10.9.0.0/16, … and 10.88.0.0/16,
	// 10.99.0.0/16, ….
	PodCIDRs     []netip.Prefix `json:"podCIDRs,omitempty"`
	ServiceCIDRs []netip.Prefix `json:"serviceCIDRs,omitempty"`
	// Addressing is Overlapping or Consecutive. Default: Overlapping if exactly
	// one pod CIDR is given, else Consecutive.
	Addressing string `json:"addressing"`
	// KubeProxy is the mode of kube-proxy. Default IPTables.
	KubeProxy string `json:"kubeProxy"`
	// CNI is the network of the pods: a name, then perhaps "=" and a version, and options after
	// commas, such as "flannel,host-gw" (networks.go). Default "bridge".
	CNI string `json:"cni,omitempty"`
	// Masquerade selects which traffic of pods the CNI translates to the node's
	// address. Default MasqueradeAny. CNIs that do so themselves ignore it.
	Masquerade string `json:"masquerade"`
	// NoHub leaves out the hub: an API server with etcd and the few controllers
	// that objects need, without nodes.
	NoHub bool `json:"noHub,omitempty"`
	// Gateways labels the first so many nodes of each cluster with
	// submariner.io/gateway=true. Default 0: none.
	Gateways int `json:"gateways,omitempty"`
	// Underlay is the prefix of the links between hosts, nodes and control
	// planes, /16 to /20. Default: the first of 172.31.0.0/16, 172.30.0.0/16, …
	// 172.20.0.0/16 that the host does not use.
	Underlay netip.Prefix `json:"underlay"`

	// Progress receives a line per step, from several goroutines; nil discards
	// them.
	Progress binaries.Progress `json:"-"`
}

var namePattern = regexp.MustCompile(`^[a-z][a-z0-9]{0,10}$`)

// withDefaults fills in what does not depend on the machine. The underlay stays
// as it is.
func (o Options) withDefaults() Options {
	if o.Name == "" {
		o.Name = DefaultName
	}
	if o.Clusters == 0 {
		o.Clusters = 2
	}
	if o.Nodes == 0 {
		o.Nodes = 2
	}
	if o.KubeProxy == "" {
		o.KubeProxy = IPTables
	}
	if o.CNI == "" {
		o.CNI = DefaultCNI
	}
	if o.Masquerade == "" {
		o.Masquerade = MasqueradeAny
	}
	if o.Addressing == "" {
		o.Addressing = Consecutive
		if len(o.PodCIDRs) == 1 {
			o.Addressing = Overlapping
		}
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	return o
}

// validate checks what can be checked without the plan; o has its defaults.
func (o Options) validate() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if err := ValidateName(o.Name); err != nil {
		errs = append(errs, err)
	}
	if o.Clusters < 1 || o.Clusters > maxClusters {
		fail("clusters: %d is not between 1 and %d", o.Clusters, maxClusters)
	}
	if o.Nodes < 1 || o.Nodes > maxNodes {
		fail("nodes: %d is not between 1 and %d", o.Nodes, maxNodes)
	}
	if o.Gateways < 0 || o.Gateways > o.Nodes {
		fail("gateways: %d is not between 0 and the number of nodes (%d)", o.Gateways, o.Nodes)
	}
	oneOf := func(option, value string, allowed ...string) {
		if !slices.Contains(allowed, value) {
			fail("%s: %q is none of %q", option, value, allowed)
		}
	}
	oneOf("kube-proxy", o.KubeProxy, IPTables, NFTables)
	if _, err := networkOf(o.CNI); err != nil {
		errs = append(errs, err)
	}
	oneOf("addressing", o.Addressing, Overlapping, Consecutive)
	oneOf("masquerade", o.Masquerade, MasqueradeAny, MasqueradeUplink)
	for option, prefixes := range map[string][]netip.Prefix{"pod-cidr": o.PodCIDRs, "service-cidr": o.ServiceCIDRs} {
		if n := len(prefixes); n > 1 && n != o.Clusters {
			fail("%s: give none, one or one per cluster (%d), not %d", option, o.Clusters, n)
		}
		for _, p := range prefixes {
			if !p.IsValid() || !p.Addr().Is4() || p.Masked() != p {
				fail("%s: %s is not an IPv4 prefix without host bits", option, p)
			}
		}
	}
	return errors.Join(errs...)
}

// ValidateName refuses what cannot be the name of a lab.
func ValidateName(name string) error {
	if !namePattern.MatchString(name) {
		return fmt.Errorf("name: %q is not a lower-case letter followed by at most ten lower-case letters or digits", name)
	}
	return nil
}
