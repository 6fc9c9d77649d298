// Package config reads what `pelago join` leaves in a member's system namespace: the ConfigMap
// pelago-config and the Secrets next to it. It is a plain value package: the binaries (cmd/*) parse
// once and pass values on; it has no client and no state.
package config

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Names of a member's namespace and of the objects that are read here.
const (
	SystemNamespace        = "pelago-system"
	DefaultBrokerNamespace = "submariner-k8s-broker"

	ConfigMapName          = "pelago-config"
	BrokerSecretName       = "submariner-broker-secret"
	PSKSecretName          = "submariner-ipsec-psk"
	OverlayTokenSecretName = "pelago-overlay-token"

	// LoadBalancerService leads to the gateways with `join --load-balancer`.
	LoadBalancerService = "submariner-gateway"
)

// Keys of the ConfigMap.
const (
	KeyClusterID       = "cluster-id"
	KeyClusterIndex    = "cluster-index"
	KeyGlobalCIDR      = "global-cidr"
	KeyPodCIDR         = "pod-cidr"
	KeyServiceCIDR     = "service-cidr"
	KeyFabricCIDR      = "fabric-cidr"
	KeyExternalCIDR    = "external-cidr"
	KeyRouteServices   = "route-service-cidr"
	KeyMode            = "mode"
	KeyClusterSetIPs   = "enable-clusterset-ip"
	KeyGlobalRange     = "globalnet-cidr-range"
	KeyVIPCIDR         = "clusterset-ip-cidr"
	KeyVIPRange        = "clusterset-ip-cidr-range"
	KeyCableDriver     = "cable-driver"
	KeyCablePort       = "cable-port"
	KeyDiscoveryPort   = "natt-discovery-port"
	KeyNAT             = "natt"
	KeyPreferredServer = "preferred-server"
	KeyLoadBalancer    = "load-balancer"
	KeySingleGateway   = "single-gateway"
	KeyGateways        = "gateways"
	KeyCableTunnels    = "cable-tunnels"
	KeyXDP             = "xdp"
	KeyDatapath        = "datapath"
	KeyAirGapped       = "air-gapped"
	KeyNetworkOnly     = "network-only"
	KeyWorkloadsOnly   = "workloads-only"
	KeyCoreDNSCustom   = "coredns-custom-configmap"
	KeyCustomDomains   = "custom-domains"
	KeyDNSTTL          = "dns-ttl"
	KeyDNSCache        = "dns-cache"
	KeyHubID           = "hub-id"
	KeyHubServer       = "hub-server"
	KeyAPIServer       = "api-server"
	KeyBrokerNamespace = "broker-namespace"
)

// MaxClusterIDLength is the longest cluster id: the longest name made of it, a namespace
// `karmada-es-<id>`, still fits.
const MaxClusterIDLength = 48

// Mode is the set of rules of service discovery. It is one for the whole clusterset.
type Mode string

// Modes.
const (
	// ModeSubmariner: DNS answers with the local cluster's address first; `<cluster>.<svc>…`
	// exists.
	ModeSubmariner Mode = "submariner"
	// ModeMCS: a service always has a ClusterSetIP; `<cluster>.<svc>…` does not exist.
	ModeMCS Mode = "mcs"
)

// Wires between gateways, by the names that `pelago join --cable-driver` takes. All gateways of a
// clusterset have the same.
const (
	CableWireGuard = "wireguard"
	CableLibreswan = "libreswan" // IPsec
	CableVXLAN     = "vxlan"     // in the clear
)

// CableDrivers lists the wires.
func CableDrivers() []string { return []string{CableWireGuard, CableLibreswan, CableVXLAN} }

// MaxGateways bounds Config.Gateways: the data path spreads flows over no more.
const MaxGateways = 16

// MaxCableTunnels bounds Config.CableTunnels.
const MaxCableTunnels = 4

// Where gateways have the drivers of their network cards do the simple work (XDP).
const (
	XDPOff  = "off"
	XDPAuto = "auto" // on uplinks that are network cards
	XDPOn   = "on"   // on all uplinks
)

// XDPSettings lists them.
func XDPSettings() []string { return []string{XDPOff, XDPAuto, XDPOn} }

// DatapathStrict is the datapath (dataplane.Datapath) of a configuration without one,
// DatapathAuto the setting that selects one for each pod.
const (
	DatapathStrict = "strict"
	DatapathAuto   = "auto"
)

// Datapaths lists the settings of how packets pass between pods and the overlay.
func Datapaths() []string { return []string{DatapathStrict, "hybrid", "fast", DatapathAuto} }

// Config is the content of the ConfigMap.
type Config struct {
	ClusterID    string
	ClusterIndex uint16 // 1–MaxFabricCluster
	// GlobalCIDRs is empty without globalnet; IPv4, masked.
	GlobalCIDRs []netip.Prefix
	// GlobalRange is what the GlobalCIDRs of all clusters are taken from; not valid without
	// globalnet, and in a member that joined by a release that did not keep it.
	GlobalRange  netip.Prefix
	PodCIDRs     []netip.Prefix
	ServiceCIDRs []netip.Prefix
	// ExternalCIDRs are ranges of hosts outside the cluster that take part; IPv4, masked.
	ExternalCIDRs []netip.Prefix
	// RouteServiceCIDR: without globalnet, other clusters reach ClusterIPs that are not exported,
	// too.
	RouteServiceCIDR bool
	// FabricCIDR is the clusterset's range of node addresses, a /8; see FabricAddress.
	FabricCIDR netip.Prefix
	Mode       Mode
	// ClusterSetIPs: services that the cluster exports get a ClusterSetIP by default; see
	// UseClusterSetIPs.
	ClusterSetIPs bool
	// ClusterSetIPCIDRs is what the cluster allocates ClusterSetIPs from, ClusterSetIPRange what
	// all clusters do; IPv4, masked. Neither is set in a clusterset of a release that had none.
	ClusterSetIPCIDRs []netip.Prefix
	ClusterSetIPRange netip.Prefix
	CableDriver       string
	CablePort         uint16
	// CableTunnels is the number of tunnels between two gateways, so that a pair uses several
	// cores; if the two differ, the smaller number counts. 1–MaxCableTunnels; 0: 1.
	CableTunnels int
	// XDP is one of XDPSettings; empty: off.
	XDP string
	// Datapath is that of pods whose namespace and node set no other, one of Datapaths; empty:
	// strict.
	Datapath string
	// DiscoveryPort is the UDP port of NAT discovery; 0: 4490.
	DiscoveryPort uint16
	// NoNAT: gateways are not behind NAT, whatever public address they have.
	NoNAT bool
	// PreferredServer: gateways wait for others to open the connection where those can.
	PreferredServer bool
	// LoadBalancer: gateways are reached at the address of the Service LoadBalancerService.
	LoadBalancer bool
	// SingleGateway: all flows take one gateway of a cluster, and another only when that one fails.
	SingleGateway bool
	// Gateways is the number of nodes that the agent keeps labelled as gateways; 0: none, users label
	// them.
	Gateways int
	// AirGapped: public addresses are taken as they stand in annotations, and never looked up.
	AirGapped bool
	// NetworkOnly: the cluster takes no workloads from the hub (`pelago join --network-only`).
	NetworkOnly bool
	// WorkloadsOnly: the cluster takes no part in the network (`pelago join --workloads-only`).
	// Besides it, only the id, the index and the fields that identify the hub are set.
	WorkloadsOnly bool
	// CustomDomains are DNS zones that are served next to clusterset.local, lower case, without a
	// dot at the end.
	CustomDomains []string
	// DNSTTL is the TTL of their answers, in whole seconds; 0: 5 s.
	DNSTTL time.Duration
	// DNSCache is how long the cluster's CoreDNS keeps answers, in whole seconds; 0: not at all.
	DNSCache time.Duration
	// CoreDNSCustom is the ConfigMap, in the namespace of CoreDNS, whose server blocks the Corefile
	// imports; empty: the Corefile itself forwards the zones.
	CoreDNSCustom string
	// HubID is the UID of the hub's namespace kube-system; it marks every object that we make in a
	// member.
	HubID     string
	HubServer string // https URL of the hub's API server
	// APIServer is the host of the kubeconfig's server that the cluster joined with, an address or a
	// DNS name; empty if it is one inside the cluster. No peer's range takes it.
	APIServer       string
	BrokerNamespace string
}

// Globalnet reports whether the clusterset translates addresses.
func (c Config) Globalnet() bool { return len(c.GlobalCIDRs) > 0 }

// UseClusterSetIPs reports whether exported services get a ClusterSetIP unless their ServiceExport
// states otherwise.
func (c Config) UseClusterSetIPs() bool { return c.ClusterSetIPs || c.Mode == ModeMCS }

// RoutedPodCIDRs are the ranges of pods and, without globalnet, of hosts outside the cluster.
func (c Config) RoutedPodCIDRs() []netip.Prefix {
	if c.Globalnet() {
		return c.PodCIDRs
	}
	return slices.Concat(c.PodCIDRs, c.ExternalCIDRs)
}

// Subnets is what other clusters route to this one: its GlobalCIDRs, or without globalnet its pod
// and service ranges, those of external hosts, and its share of the fabric. IPv6 ranges are left
// out: the data path carries IPv4.
func (c Config) Subnets() []netip.Prefix {
	if c.Globalnet() {
		return c.GlobalCIDRs
	}
	out := slices.DeleteFunc(slices.Concat(c.RoutedPodCIDRs(), c.ServiceCIDRs), func(p netip.Prefix) bool { return !p.Addr().Is4() })
	if own, err := c.FabricPrefix(c.ClusterIndex); err == nil { // Parse has refused other indexes
		out = append(out, own)
	}
	return out
}

// Parse reads the ConfigMap's data. The error names every key that is wrong and what would be
// right.
func Parse(data map[string]string) (Config, error) {
	p := parser{data: data}
	if p.boolean(KeyWorkloadsOnly, false) {
		c := Config{WorkloadsOnly: true, ClusterID: p.clusterID(KeyClusterID), ClusterIndex: p.number(KeyClusterIndex, math.MaxUint16),
			HubID: p.required(KeyHubID), HubServer: p.required(KeyHubServer), BrokerNamespace: p.required(KeyBrokerNamespace)}
		return c, p.err()
	}
	c := Config{
		ClusterID:       p.clusterID(KeyClusterID),
		ClusterIndex:    p.number(KeyClusterIndex, math.MaxUint16),
		GlobalCIDRs:     p.prefixes(KeyGlobalCIDR),
		PodCIDRs:        p.prefixes(KeyPodCIDR),
		ServiceCIDRs:    p.prefixes(KeyServiceCIDR),
		FabricCIDR:      p.fabric(KeyFabricCIDR),
		Mode:            Mode(p.oneOf(KeyMode, string(ModeSubmariner), string(ModeMCS))),
		ClusterSetIPs:   p.boolean(KeyClusterSetIPs, false),
		CableDriver:     p.oneOf(KeyCableDriver, CableDrivers()...),
		CablePort:       p.number(KeyCablePort, math.MaxUint16),
		CableTunnels:    int(p.optionalNumber(KeyCableTunnels, MaxCableTunnels)),
		XDP:             p.optionalOneOf(KeyXDP, XDPSettings()...),
		Datapath:        p.optionalOneOf(KeyDatapath, Datapaths()...),
		DiscoveryPort:   p.optionalNumber(KeyDiscoveryPort, math.MaxUint16),
		NoNAT:           !p.boolean(KeyNAT, true),
		PreferredServer: p.boolean(KeyPreferredServer, false),
		LoadBalancer:    p.boolean(KeyLoadBalancer, false),
		SingleGateway:   p.boolean(KeySingleGateway, false),
		Gateways:        int(p.optionalNumber(KeyGateways, MaxGateways)),
		AirGapped:       p.boolean(KeyAirGapped, false),
		NetworkOnly:     p.boolean(KeyNetworkOnly, false),
		CustomDomains:   p.domains(KeyCustomDomains),
		DNSTTL:          time.Duration(p.optionalNumber(KeyDNSTTL, MaxDNSSeconds)) * time.Second,
		DNSCache:        time.Duration(p.optionalNumber(KeyDNSCache, MaxDNSSeconds)) * time.Second,
		CoreDNSCustom:   p.configMapName(KeyCoreDNSCustom),
		HubID:           p.required(KeyHubID),
		HubServer:       p.required(KeyHubServer),
		BrokerNamespace: p.required(KeyBrokerNamespace),
	}
	c.ClusterSetIPCIDRs, c.APIServer = p.prefixes(KeyVIPCIDR), data[KeyAPIServer]
	c.ExternalCIDRs, c.RouteServiceCIDR = p.prefixes(KeyExternalCIDR), p.boolean(KeyRouteServices, false)
	if of := p.prefixes(KeyVIPRange); len(of) > 0 {
		c.ClusterSetIPRange = of[0]
	}
	if of := p.prefixes(KeyGlobalRange); len(of) > 0 {
		c.GlobalRange = of[0]
	}
	for _, g := range c.GlobalCIDRs {
		if !g.Addr().Is4() {
			p.fail(KeyGlobalCIDR, "%s is no IPv4 range: globalnet gives out IPv4 addresses", g)
		}
	}
	if len(c.PodCIDRs) == 0 {
		p.fail(KeyPodCIDR, "is empty: set the cluster's pod ranges")
	}
	if len(c.ServiceCIDRs) == 0 {
		p.fail(KeyServiceCIDR, "is empty: set the cluster's service ranges")
	}
	if c.ClusterIndex > MaxFabricCluster {
		p.fail(KeyClusterIndex, "%d is more than %d, which is what the fabric has room for", c.ClusterIndex, MaxFabricCluster)
	}
	p.routedRanges(c)
	p.external(c)
	if err := p.err(); err != nil {
		return Config{}, err
	}
	return c, nil
}

// err is nil if no key is wrong.
func (p *parser) err() error {
	if len(p.errs) == 0 {
		return nil
	}
	return fmt.Errorf("read ConfigMap %s/%s (written by `pelago join`): %w", SystemNamespace, ConfigMapName, errors.Join(p.errs...))
}

// Data is the inverse of Parse: what `pelago join` writes. Settings that are optional are there if
// they differ from the default.
func (c Config) Data() map[string]string {
	if c.WorkloadsOnly {
		return map[string]string{KeyWorkloadsOnly: "true", KeyClusterID: c.ClusterID, KeyClusterIndex: strconv.Itoa(int(c.ClusterIndex)),
			KeyHubID: c.HubID, KeyHubServer: c.HubServer, KeyBrokerNamespace: c.BrokerNamespace}
	}
	data := map[string]string{
		KeyClusterID:       c.ClusterID,
		KeyClusterIndex:    strconv.Itoa(int(c.ClusterIndex)),
		KeyGlobalCIDR:      joinPrefixes(c.GlobalCIDRs),
		KeyPodCIDR:         joinPrefixes(c.PodCIDRs),
		KeyServiceCIDR:     joinPrefixes(c.ServiceCIDRs),
		KeyFabricCIDR:      c.FabricCIDR.String(),
		KeyMode:            string(c.Mode),
		KeyCableDriver:     c.CableDriver,
		KeyCablePort:       strconv.Itoa(int(c.CablePort)),
		KeyCustomDomains:   strings.Join(c.CustomDomains, ","),
		KeyHubID:           c.HubID,
		KeyHubServer:       c.HubServer,
		KeyBrokerNamespace: c.BrokerNamespace,
	}
	if c.APIServer != "" {
		data[KeyAPIServer] = c.APIServer
	}
	if len(c.ClusterSetIPCIDRs) > 0 {
		data[KeyVIPCIDR] = joinPrefixes(c.ClusterSetIPCIDRs)
	}
	if c.ClusterSetIPRange.IsValid() {
		data[KeyVIPRange] = c.ClusterSetIPRange.String()
	}
	if len(c.ExternalCIDRs) > 0 {
		data[KeyExternalCIDR] = joinPrefixes(c.ExternalCIDRs)
	}
	if c.GlobalRange.IsValid() {
		data[KeyGlobalRange] = c.GlobalRange.String()
	}
	for key, d := range map[string]time.Duration{KeyDNSTTL: c.DNSTTL, KeyDNSCache: c.DNSCache} {
		if d != 0 {
			data[key] = strconv.Itoa(int(d.Seconds()))
		}
	}
	if c.DiscoveryPort != 0 {
		data[KeyDiscoveryPort] = strconv.Itoa(int(c.DiscoveryPort))
	}
	if c.CableTunnels != 0 {
		data[KeyCableTunnels] = strconv.Itoa(c.CableTunnels)
	}
	if c.Gateways != 0 {
		data[KeyGateways] = strconv.Itoa(c.Gateways)
	}
	if c.XDP != "" {
		data[KeyXDP] = c.XDP
	}
	if c.Datapath != "" {
		data[KeyDatapath] = c.Datapath
	}
	if c.NoNAT {
		data[KeyNAT] = "false"
	}
	if c.CoreDNSCustom != "" {
		data[KeyCoreDNSCustom] = c.CoreDNSCustom
	}
	for key, set := range map[string]bool{
		KeyPreferredServer: c.PreferredServer, KeyLoadBalancer: c.LoadBalancer, KeySingleGateway: c.SingleGateway, KeyAirGapped: c.AirGapped,
		KeyNetworkOnly: c.NetworkOnly, KeyClusterSetIPs: c.ClusterSetIPs, KeyRouteServices: c.RouteServiceCIDR,
	} {
		if set {
			data[key] = "true"
		}
	}
	return data
}

// CheckClusterID returns why id cannot be the id of a cluster, or nil.
func CheckClusterID(id string) error {
	if len(id) > MaxClusterIDLength {
		return fmt.Errorf("cluster id %q has %d characters: at most %d are allowed", id, len(id), MaxClusterIDLength)
	}
	if problems := validation.IsDNS1123Label(id); len(problems) > 0 {
		return fmt.Errorf("cluster id %q is not an RFC 1123 label: use lower-case letters, digits and '-', beginning and ending with a letter or digit", id)
	}
	return nil
}

func joinPrefixes(prefixes []netip.Prefix) string {
	texts := make([]string, len(prefixes))
	for i, p := range prefixes {
		texts[i] = p.String()
	}
	return strings.Join(texts, ",")
}
