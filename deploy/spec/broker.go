package spec

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/api/submariner/v1alpha1"
	"github.com/pelago-net/pelago/control/config"
)

// Components of a clusterset.
const (
	ComponentConnectivity     = "connectivity"
	ComponentServiceDiscovery = "service-discovery"
)

// Broker are the settings of a clusterset. The tag json is the last part of a field's path, which
// is that of the field of a Broker object where there is one; the tag flag is the flag of `pelago
// deploy-broker`.
type Broker struct {
	GlobalnetEnabled bool `json:"globalnetEnabled" flag:"globalnet"`
	// GlobalnetCIDRRange is what the clusters' GlobalCIDRs are taken from, GlobalnetClusterSize the
	// number of addresses of each.
	GlobalnetCIDRRange   netip.Prefix `json:"globalnetCIDRRange" flag:"globalnet-cidr-range"`
	GlobalnetClusterSize uint64       `json:"defaultGlobalnetClusterSize" flag:"globalnet-cluster-size"`
	ClustersetIPEnabled  bool         `json:"clustersetIPEnabled" flag:"enable-clusterset-ip"`
	// ClustersetIPCIDRRange is what the clusters' ranges of ClusterSetIPs are taken from.
	ClustersetIPCIDRRange netip.Prefix `json:"clustersetIPCIDRRange" flag:"clusterset-ip-cidr-range"`
	// FabricCIDR is an unused /8.
	FabricCIDR netip.Prefix `json:"fabricCIDR" flag:"fabric-cidr"`
	// ClusterRanges are where clusters without globalnet may have pods, services and hosts, beside
	// PrivateRanges.
	ClusterRanges []netip.Prefix `json:"clusterRanges" flag:"cluster-ranges"`
	// MemberObjects is how many ServiceContributions, and how many EndpointSlices, the hub takes of
	// each member.
	MemberObjects uint64   `json:"memberObjects" flag:"member-objects"`
	CustomDomains []string `json:"defaultCustomDomains" flag:"custom-domains"`
	Components    []string `json:"components" flag:"components"`
	// BrokerURL is the URL of the hub's API server for clusters; empty: that of the kubeconfig.
	BrokerURL  string `json:"brokerURL" flag:"broker-url"`
	Mode       string `json:"mode" flag:"mode"`
	AutoAccept bool   `json:"autoAccept" flag:"auto-accept"`
	// AutoAcceptNetwork is AutoAccept for the network alone.
	AutoAcceptNetwork bool `json:"autoAcceptNetwork" flag:"auto-accept-network"`
}

// PrivateRanges are those that any network may have inside (RFC 1918, RFC 6598).
func PrivateRanges() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
		netip.MustParsePrefix("100.64.0.0/10")}
}

// DefaultBroker is a Broker of which nothing is given.
func DefaultBroker() Broker {
	return Broker{
		GlobalnetCIDRRange: netip.MustParsePrefix("242.0.0.0/8"), GlobalnetClusterSize: 65536,
		ClustersetIPCIDRRange: netip.MustParsePrefix(config.DefaultClusterSetIPRange), FabricCIDR: netip.MustParsePrefix(config.DefaultFabricCIDR),
		Components: []string{ComponentServiceDiscovery, ComponentConnectivity}, Mode: string(config.ModeSubmariner),
		MemberObjects: config.DefaultMemberObjects,
	}
}

// AddFlags sets the settings to their defaults and adds their flags.
func (b *Broker) AddFlags(f *pflag.FlagSet) {
	*b = DefaultBroker()
	f.BoolVar(&b.GlobalnetEnabled, "globalnet", false, "give every cluster addresses of its own, so that pod and service ranges may overlap")
	f.TextVar(&b.GlobalnetCIDRRange, "globalnet-cidr-range", b.GlobalnetCIDRRange, "`CIDR` that the clusters' GlobalCIDRs are taken from")
	f.Uint64Var(&b.GlobalnetClusterSize, "globalnet-cluster-size", b.GlobalnetClusterSize, "addresses of a cluster's GlobalCIDR unless join says otherwise; rounded up to a power of two")
	f.BoolVar(&b.ClustersetIPEnabled, "enable-clusterset-ip", false, "give exported services a ClusterSetIP, one address in all clusters, unless their "+
		"ServiceExport has the annotation "+submarinerv1.AnnotationUseClusterSetIP+"=false; always so in mode mcs")
	f.TextVar(&b.ClustersetIPCIDRRange, "clusterset-ip-cidr-range", b.ClustersetIPCIDRRange, "`CIDR` that the clusters' ranges of ClusterSetIPs are taken from")
	f.TextVar(&b.FabricCIDR, "fabric-cidr", b.FabricCIDR, "an unused /8 `CIDR` for the nodes' addresses between clusters")
	f.Var((*ranges)(&b.ClusterRanges), "cluster-ranges", "`CIDR` in which clusters may have pods, services and external hosts without globalnet, beside "+
		"those of RFC 1918 and 100.64.0.0/10; may be repeated. Ranges elsewhere are refused, those of registered clusters stay")
	f.Uint64Var(&b.MemberObjects, "member-objects", b.MemberObjects, "exported services, and EndpointSlices of them, that each cluster may have at the hub, "+
		"which runs pelago-hub")
	f.StringSliceVar(&b.CustomDomains, "custom-domains", nil, "DNS zones that are served in addition to clusterset.local")
	f.StringSliceVar(&b.Components, "components", b.Components, "components to enable; only both together are supported")
	f.StringVar(&b.BrokerURL, "broker-url", "", "URL under which clusters reach the hub's API server (default: the kubeconfig's)")
	AddChoice(f, &b.Mode, "mode", b.Mode, "rules of service discovery: submariner (the local cluster's "+
		"address first) or mcs (a ClusterSetIP)", string(config.ModeSubmariner), string(config.ModeMCS))
	f.BoolVar(&b.AutoAccept, "auto-accept", false, "connect members, and send them workloads, without \"pelago clusters accept\"")
	f.BoolVar(&b.AutoAcceptNetwork, "auto-accept-network", false, "connect members to the network without \"pelago clusters accept\", which only workloads need then")
}

// Keep sets the fields that were not given to those of an earlier installation.
func (b *Broker) Keep(former Broker, given func(path string) bool) { keep(b, &former, given) }

// Validate returns an error for each field that is not valid. The sizes of the ranges are for the
// book of the broker to check.
func (b Broker) Validate() field.ErrorList {
	var l list
	both := true
	for _, c := range b.Components {
		if c != ComponentConnectivity && c != ComponentServiceDiscovery {
			l.add("components", c, "spec.components %q: use %s, %s or both", c, ComponentServiceDiscovery, ComponentConnectivity)
			both = false
		}
	}
	if both && (!slices.Contains(b.Components, ComponentConnectivity) || !slices.Contains(b.Components, ComponentServiceDiscovery)) {
		l.add("components", b.Components, "spec.components %s: a single component is not supported; leave the flag out, which means both", strings.Join(b.Components, ","))
	}
	for _, domain := range b.CustomDomains {
		if len(validation.IsDNS1123Subdomain(strings.ToLower(strings.TrimSuffix(domain, ".")))) > 0 {
			l.add("defaultCustomDomains", domain, "spec.defaultCustomDomains %q is no domain name", domain)
		}
	}
	if b.MemberObjects < 1 || b.MemberObjects > config.MaxMemberObjects {
		l.add("memberObjects", b.MemberObjects, "spec.memberObjects %d: use 1 to %d, of which the clusters take no more", b.MemberObjects, config.MaxMemberObjects)
	}
	if err := config.CheckFabric(b.FabricCIDR); err != nil {
		l.add("fabricCIDR", b.FabricCIDR, "spec.fabricCIDR: %v", err)
	}
	if b.ClustersetIPCIDRRange.Overlaps(b.FabricCIDR) {
		l.add("clustersetIPCIDRRange", b.ClustersetIPCIDRRange, "spec.clustersetIPCIDRRange %s overlaps spec.fabricCIDR %s: choose another of one of them",
			b.ClustersetIPCIDRRange, b.FabricCIDR)
	}
	if b.GlobalnetEnabled && b.GlobalnetCIDRRange.Overlaps(b.FabricCIDR) {
		l.add("globalnetCIDRRange", b.GlobalnetCIDRRange, "spec.globalnetCIDRRange %s overlaps spec.fabricCIDR %s: choose another of one of them",
			b.GlobalnetCIDRRange, b.FabricCIDR)
	}
	if modes := []string{string(config.ModeSubmariner), string(config.ModeMCS)}; !slices.Contains(modes, b.Mode) {
		l.add("mode", b.Mode, "spec.mode %q is no mode: use %s", b.Mode, either(modes))
	}
	return field.ErrorList(l)
}

// BrokerObject is a Broker that an object of the API describes.
type BrokerObject struct {
	Broker
	// Names are what the object calls the fields.
	Names Names

	given map[string]bool
}

// Given reports whether the object decides a field, be it with its default.
func (o BrokerObject) Given(path string) bool { return o.given[path] }

// Locate is the error about a field of a Broker as one about what the object has in its place.
func (o BrokerObject) Locate(err *Error) *Error { return Object{Names: o.Names}.Locate(err) }

// FromBroker is the Broker that an object of the operator describes.
func FromBroker(s v1alpha1.BrokerSpec, annotations map[string]string) (BrokerObject, field.ErrorList) {
	o := BrokerObject{Names: Names{}, given: map[string]bool{"spec.globalnetEnabled": true, "spec.clustersetIPEnabled": true, "spec.defaultCustomDomains": true}}
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.Broker.AddFlags(set)
	errs := parseAnnotation(set, annotations, brokerAnnotation)
	for path, flag := range Flags(Broker{}) {
		if name := strings.TrimPrefix(flag, "--"); slices.Contains(brokerAnnotation, name) {
			o.Names[path], o.given[path] = flag, set.Changed(name)
		}
	}
	// Submariner's Brokers know no approval: a cluster with the credential is connected.
	if path := "spec.autoAcceptNetwork"; !o.given[path] {
		o.AutoAcceptNetwork, o.given[path] = true, true
	}
	var l list
	o.GlobalnetEnabled, o.ClustersetIPEnabled, o.CustomDomains = s.GlobalnetEnabled, s.ClustersetIPEnabled, s.DefaultCustomDomains
	if len(s.Components) > 0 {
		o.Components, o.given["spec.components"] = s.Components, true
	}
	for _, r := range []struct {
		name, text string
		to         *netip.Prefix
	}{{"globalnetCIDRRange", s.GlobalnetCIDRRange, &o.GlobalnetCIDRRange}, {"clustersetIPCIDRRange", s.ClustersetIPCIDRRange, &o.ClustersetIPCIDRRange}} {
		if r.text == "" {
			continue
		}
		p, err := netip.ParsePrefix(r.text)
		if err != nil {
			l.add(r.name, r.text, "spec.%s: %v", r.name, err)
			continue
		}
		*r.to, o.given["spec."+r.name] = p, true
	}
	if s.DefaultGlobalnetClusterSize != 0 {
		o.GlobalnetClusterSize, o.given["spec.defaultGlobalnetClusterSize"] = uint64(max(0, s.DefaultGlobalnetClusterSize)), true
	}
	return o, append(errs, field.ErrorList(l)...)
}
