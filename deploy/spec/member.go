package spec

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pelago-net/pelago/control/agent/clusterdns"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/natt"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/dns"
)

// Values of Member.GatewayMode.
const (
	ActiveActive  = "active-active"
	ActivePassive = "active-passive"
)

// DefaultCableDriver is that of the first cluster of a clusterset, if none is given.
const DefaultCableDriver = config.CableWireGuard

// Member is the membership of a cluster in a clusterset. The tag json is the last part of a field's
// path, which is that of the field of a Submariner where there is one; the tag flag is the flag of
// `pelago join`. A field with keep:"-" has no value of an earlier join: the hub, the nodes or the
// caller have it.
type Member struct {
	ClusterID string `json:"clusterID" flag:"clusterid" keep:"-"`

	// WorkloadsOnly: no network, so that all fields about it keep their defaults. NetworkOnly: no
	// workloads.
	WorkloadsOnly bool `json:"workloadsOnly" flag:"workloads-only"`
	NetworkOnly   bool `json:"networkOnly" flag:"network-only"`

	// ClusterCIDR and ServiceCIDR are the ranges of pods and services; discovered if empty.
	ClusterCIDR []netip.Prefix `json:"clusterCIDR" flag:"clustercidr" keep:"-"`
	ServiceCIDR []netip.Prefix `json:"serviceCIDR" flag:"servicecidr" keep:"-"`
	// ExternalCIDR are ranges of hosts outside the cluster.
	ExternalCIDR     []netip.Prefix `json:"externalCIDR" flag:"external-cidr"`
	RouteServiceCIDR bool           `json:"routeServiceCIDR" flag:"route-service-cidr"`

	// Globalnet: the cluster takes part in globalnet if the clusterset has it.
	Globalnet bool `json:"globalnet" flag:"globalnet" keep:"-"`
	// GlobalCIDR is the cluster's range, GlobalnetClusterSize the number of its addresses; at most
	// one of them is set. Without, the cluster gets the first free range of the clusterset's size.
	GlobalCIDR           netip.Prefix `json:"globalCIDR" flag:"globalnet-cidr" keep:"-"`
	GlobalnetClusterSize uint64       `json:"globalnetClusterSize" flag:"globalnet-cluster-size" keep:"-"`
	// ClustersetIPCIDR is the range that the cluster allocates ClusterSetIPs from; not valid: the
	// first free one.
	ClustersetIPCIDR    netip.Prefix `json:"clustersetIPCIDR" flag:"clusterset-ip-cidr" keep:"-"`
	ClustersetIPEnabled bool         `json:"clustersetIPEnabled" flag:"enable-clusterset-ip"`

	// CableDriver is one of config.CableDrivers; empty: that of the clusterset (broker.Book).
	CableDriver     string `json:"cableDriver" flag:"cable-driver"`
	CablePort       uint16 `json:"ceIPSecNATTPort" flag:"nattport"`
	CableTunnels    int    `json:"cableTunnels" flag:"cable-tunnels"`
	DiscoveryPort   uint16 `json:"nattDiscoveryPort" flag:"natt-discovery-port"`
	NAT             bool   `json:"natEnabled" flag:"natt"`
	PreferredServer bool   `json:"ceIPSecPreferredServer" flag:"preferred-server"`
	LoadBalancer    bool   `json:"loadBalancerEnabled" flag:"load-balancer"`
	GatewayMode     string `json:"gatewayMode" flag:"gateway-mode"`
	AirGapped       bool   `json:"airGappedDeployment" flag:"air-gapped"`
	XDP             string `json:"xdp" flag:"xdp"`
	Datapath        string `json:"datapath" flag:"datapath"`

	// CoreDNSCustom is a ConfigMap in the namespace of CoreDNS whose keys *.server the Corefile
	// imports; empty: the Corefile itself is written to; nil: the Corefile decides.
	CoreDNSCustom *string       `json:"coreDNSCustomConfig" flag:"coredns-custom-configmap"`
	DNSTTL        time.Duration `json:"dnsTTL" flag:"dns-ttl"`
	DNSCache      time.Duration `json:"dnsCache" flag:"dns-cache"`

	// Gateways is the number of nodes that the agent keeps labelled as gateways; 0: labels are the
	// user's. Without GatewayNodes, and where no node is labelled already, LabelGateway labels them.
	Gateways int `json:"gateways" flag:"gateways"`
	// GatewayNodes are nodes that become gateways.
	GatewayNodes []string `json:"gatewayNodes" flag:"gateway-node" keep:"-"`
	LabelGateway bool     `json:"labelGateway" flag:"label-gateway" keep:"-"`

	// Image is run by all components.
	Image      string `json:"image" flag:"image"`
	PullPolicy string `json:"imagePullPolicy" flag:"image-pull-policy"`
	Placement
	// HTTPProxy and HTTPSProxy are URLs of proxies on the agents' way to the hub; NoProxy is a
	// list, separated by commas.
	HTTPProxy  string `json:"httpProxy" flag:"http-proxy"`
	HTTPSProxy string `json:"httpsProxy" flag:"https-proxy"`
	NoProxy    string `json:"noProxy" flag:"no-proxy"`
}

// PodFields are the paths of the fields about pods, which a cluster with WorkloadsOnly has as well.
var PodFields = []string{"spec.imagePullSecrets", "spec.nodeSelector", "spec.tolerations", "spec.httpProxy", "spec.httpsProxy", "spec.noProxy"}

// DefaultGateways is the number of gateways of which one may fail.
const DefaultGateways = 2

// DefaultMember is a Member of which nothing is given.
func DefaultMember() Member {
	return Member{
		Globalnet: true, CablePort: 4500, CableTunnels: 1, DiscoveryPort: natt.DefaultPort, NAT: true, GatewayMode: ActiveActive, XDP: config.XDPOff,
		Datapath: config.DatapathStrict, DNSTTL: dns.DefaultTTL, Gateways: DefaultGateways, LabelGateway: true, Image: manifests.DefaultImage, PullPolicy: "IfNotPresent",
	}
}

// Validate returns an error for each field that is not valid, the first for the field to correct
// first.
func (m Member) Validate() field.ErrorList {
	var l list
	if err := config.CheckClusterID(m.ClusterID); err != nil {
		l.add("clusterID", m.ClusterID, "%v", err)
	}
	l = append(l, list(m.validateNetwork())...)
	return append(field.ErrorList(l), m.validatePods()...)
}

// driver is the cable driver that validation assumes.
func (m Member) driver() string { return cmp.Or(m.CableDriver, DefaultCableDriver) }

func (m Member) validateNetwork() field.ErrorList {
	var l list
	for _, c := range []struct {
		name, value, words string
		values             []string
	}{
		{"cableDriver", m.driver(), "cable driver", config.CableDrivers()},
		{"xdp", m.XDP, "setting", config.XDPSettings()},
		{"datapath", m.Datapath, "path", config.Datapaths()},
		{"gatewayMode", m.GatewayMode, "mode", []string{ActiveActive, ActivePassive}},
		{"imagePullPolicy", m.PullPolicy, "policy", pullPolicies},
	} {
		if !slices.Contains(c.values, c.value) {
			l.add(c.name, c.value, "spec.%s %q is no %s: use %s", c.name, c.value, c.words, either(c.values))
		}
	}
	for _, r := range []struct {
		name   string
		ranges []netip.Prefix
	}{{"clusterCIDR", m.ClusterCIDR}, {"serviceCIDR", m.ServiceCIDR}} {
		for _, p := range r.ranges {
			if !p.IsValid() || p != p.Masked() {
				l.add(r.name, p, "spec.%s: range %s has host bits: write %s", r.name, p, p.Masked())
			}
		}
	}
	for _, p := range m.ExternalCIDR {
		if err := checkRange(p); err != nil {
			l.add("externalCIDR", p, "spec.externalCIDR: %v", err)
		}
	}
	if m.Gateways < 0 || m.Gateways > config.MaxGateways {
		l.add("gateways", m.Gateways, "spec.gateways %d: use 1 to %d, or 0 to label gateways yourself", m.Gateways, config.MaxGateways)
	}
	if m.GlobalCIDR.IsValid() && m.GlobalnetClusterSize != 0 {
		l.add("globalnetClusterSize", m.GlobalnetClusterSize, "spec.globalnetClusterSize: spec.globalCIDR is the range already: leave one of them out")
	}
	if m.NetworkOnly && m.WorkloadsOnly {
		l.add("networkOnly", true, "spec.networkOnly and spec.workloadsOnly: leave one of them out, or both for network and workloads")
	}
	if name := deref(m.CoreDNSCustom); strings.Contains(name, "/") {
		l.add("coreDNSCustomConfig", name, "spec.coreDNSCustomConfig %s: the agent may write in namespace %s only: name a ConfigMap there", name, clusterdns.Namespace)
	}
	for _, d := range []struct {
		name         string
		value, least time.Duration
	}{{"dnsTTL", m.DNSTTL, time.Second}, {"dnsCache", m.DNSCache, 0}} {
		if d.value < d.least || d.value > config.MaxDNSSeconds*time.Second || d.value%time.Second != 0 {
			l.add(d.name, d.value.String(), "spec.%s %s: use whole seconds, %s to %s", d.name, d.value, d.least, config.MaxDNSSeconds*time.Second)
		}
	}
	return append(field.ErrorList(l), m.validateCable()...)
}

func (m Member) validateCable() field.ErrorList {
	var l list
	driver := m.driver()
	if m.CableTunnels < 1 || m.CableTunnels > config.MaxCableTunnels {
		l.add("cableTunnels", m.CableTunnels, "spec.cableTunnels %d: use 1 to %d", m.CableTunnels, config.MaxCableTunnels)
		return field.ErrorList(l) // the ports below depend on it
	}
	if m.CableTunnels > 1 && driver == config.CableVXLAN {
		l.add("cableTunnels", m.CableTunnels, "spec.cableTunnels %d: cable driver %s has no tunnels: use spec.cableTunnels 1, or spec.cableDriver %s",
			m.CableTunnels, driver, config.CableWireGuard)
	}
	last := 65535 - cable.MaxTunnels
	switch {
	case m.CablePort == 0 || m.CablePort == dataplane.OverlayPort:
		l.add("ceIPSecNATTPort", m.CablePort, "spec.ceIPSecNATTPort %d: use a port from 1 to 65535 other than %d, which the overlay inside the cluster has",
			m.CablePort, dataplane.OverlayPort)
	case int(m.CablePort) > last && driver != config.CableVXLAN:
		l.add("ceIPSecNATTPort", m.CablePort, "spec.ceIPSecNATTPort %d: cable driver %s needs the next %d ports as well: use one up to %d",
			m.CablePort, driver, cable.MaxTunnels, last)
	case slices.Contains(m.CablePorts(), dataplane.OverlayPort):
		l.add("ceIPSecNATTPort", m.CablePort, "spec.ceIPSecNATTPort %d: then cable driver %s with %d tunnels needs UDP port %d as well, which the overlay "+
			"inside the cluster has: use another", m.CablePort, driver, m.CableTunnels, dataplane.OverlayPort)
	}
	if m.DiscoveryPort == 0 || slices.Contains(append(m.CablePorts(), dataplane.OverlayPort), m.DiscoveryPort) {
		l.add("nattDiscoveryPort", m.DiscoveryPort, "spec.nattDiscoveryPort %d: use a port from 1 to 65535 that neither the cable (%d) nor the overlay (%d) has",
			m.DiscoveryPort, m.CablePorts(), dataplane.OverlayPort)
	}
	if m.LoadBalancer && driver == config.CableVXLAN {
		l.add("loadBalancerEnabled", true, "spec.loadBalancerEnabled changes addresses on the way, and cable driver %s identifies gateways by their addresses: "+
			"use spec.cableDriver %s, or spec.loadBalancerEnabled=false", driver, config.CableWireGuard)
	}
	return field.ErrorList(l)
}

// CablePorts are the UDP ports at which the cable listens, sorted.
func (m Member) CablePorts() []uint16 {
	out := append(cable.Ports(m.driver(), cable.Local{Listen: m.CablePort, Tunnels: m.CableTunnels}), m.CablePort)
	slices.Sort(out)
	return slices.Compact(out)
}

func (m Member) validatePods() field.ErrorList {
	var l list
	for _, p := range []struct{ name, text string }{{"httpProxy", m.HTTPProxy}, {"httpsProxy", m.HTTPSProxy}} {
		if u, err := url.Parse(p.text); p.text != "" && (err != nil || u.Host == "" || !slices.Contains([]string{"http", "https", "socks5"}, u.Scheme)) {
			l.add(p.name, p.text, "spec.%s %q: it is no URL such as http://192.0.2.1:3128", p.name, p.text)
		}
	}
	if m.NoProxy != "" && m.HTTPProxy == "" && m.HTTPSProxy == "" {
		l.add("noProxy", m.NoProxy, "spec.noProxy %s: give spec.httpsProxy or spec.httpProxy as well", m.NoProxy)
	}
	return append(field.ErrorList(l), m.Placement.Validate()...)
}

// Options are those of the manifests.
func (m Member) Options() manifests.MemberOptions {
	o := manifests.MemberOptions{Image: m.Image, PullPolicy: m.PullPolicy, HTTPProxy: m.HTTPProxy, HTTPSProxy: m.HTTPSProxy, NoProxy: m.NoProxy}
	m.Placement.Apply(&o)
	return o
}

// Config is the configuration of the member as far as it depends on the fields; defaults of
// optional settings are zero.
func (m Member) Config() config.Config {
	c := config.Config{
		ClusterID: m.ClusterID, ExternalCIDRs: m.ExternalCIDR, RouteServiceCIDR: m.RouteServiceCIDR, ClusterSetIPs: m.ClustersetIPEnabled,
		CableDriver: m.CableDriver, CablePort: m.CablePort, CableTunnels: m.CableTunnels, XDP: m.XDP, Datapath: m.Datapath, DiscoveryPort: m.DiscoveryPort,
		NoNAT: !m.NAT, PreferredServer: m.PreferredServer, LoadBalancer: m.LoadBalancer, SingleGateway: m.GatewayMode == ActivePassive, AirGapped: m.AirGapped,
		NetworkOnly: m.NetworkOnly, WorkloadsOnly: m.WorkloadsOnly, DNSTTL: m.DNSTTL, DNSCache: m.DNSCache, CoreDNSCustom: deref(m.CoreDNSCustom),
		Gateways: m.Gateways,
	}
	zero(&c.CableTunnels, 1)
	zero(&c.XDP, config.XDPOff)
	zero(&c.Datapath, config.DatapathStrict)
	zero(&c.DNSTTL, dns.DefaultTTL)
	zero(&c.DiscoveryPort, natt.DefaultPort)
	return c
}

// zero sets a value that is the default to zero.
func zero[T comparable](value *T, preset T) {
	if *value == preset {
		var none T
		*value = none
	}
}

// FromConfig is the Member whose join has left a configuration, without its pods.
func FromConfig(c config.Config) Member {
	m := DefaultMember()
	m.ClusterID, m.WorkloadsOnly = c.ClusterID, c.WorkloadsOnly
	if c.WorkloadsOnly {
		return m
	}
	m.ExternalCIDR, m.RouteServiceCIDR, m.ClustersetIPEnabled, m.NetworkOnly = c.ExternalCIDRs, c.RouteServiceCIDR, c.ClusterSetIPs, c.NetworkOnly
	m.CableDriver, m.CablePort, m.CableTunnels = c.CableDriver, c.CablePort, max(1, c.CableTunnels)
	m.XDP, m.Datapath = cmp.Or(c.XDP, m.XDP), cmp.Or(c.Datapath, config.DatapathStrict)
	m.DiscoveryPort, m.NAT, m.PreferredServer, m.LoadBalancer = cmp.Or(c.DiscoveryPort, m.DiscoveryPort), !c.NoNAT, c.PreferredServer, c.LoadBalancer
	m.Gateways = c.Gateways
	m.AirGapped, m.DNSTTL, m.DNSCache = c.AirGapped, cmp.Or(c.DNSTTL, m.DNSTTL), c.DNSCache
	if c.SingleGateway {
		m.GatewayMode = ActivePassive
	}
	if c.CoreDNSCustom != "" {
		m.CoreDNSCustom = &c.CoreDNSCustom
	}
	return m
}

// Keep sets the fields that were not given to those of an earlier join. given gets the path of a
// field.
func (m *Member) Keep(former Member, given func(path string) bool) { keep(m, &former, given) }

// Complete sets all fields that were not given to those of another Member.
func (m *Member) Complete(from Member, given func(path string) bool) { complete(m, &from, given) }

var pullPolicies = []string{"Always", "IfNotPresent", "Never"}

// either lists values: a, b or c.
func either(values []string) string {
	last := len(values) - 1
	return strings.Join(values[:last], ", ") + " or " + values[last]
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// checkRange refuses external ranges.
func checkRange(p netip.Prefix) error {
	if p != p.Masked() {
		return fmt.Errorf("%s has bits behind its length: write %s", p, p.Masked())
	}
	return config.CheckRange(p)
}

// AddPod sets the fields about pods to those of the join that has made the pod of an agent. An
// image that is run when none is named is left out: its tag is the version, which another join
// updates.
func (m *Member) AddPod(pod corev1.PodSpec) {
	first := pod.Containers[0]
	m.PullPolicy = string(first.ImagePullPolicy)
	if !manifests.IsDefault(first.Image) {
		m.Image = first.Image
	}
	for _, s := range pod.ImagePullSecrets {
		m.PullSecrets = append(m.PullSecrets, s.Name)
	}
	for key, value := range pod.NodeSelector {
		if key == osLabel {
			continue
		}
		if m.NodeSelector == nil {
			m.NodeSelector = map[string]string{}
		}
		m.NodeSelector[key] = value
	}
	if len(pod.Tolerations) > 1 { // the first one is that of the manifest
		m.Tolerations = pod.Tolerations[1:]
	}
	for _, e := range first.Env {
		switch e.Name {
		case "HTTP_PROXY":
			m.HTTPProxy = e.Value
		case "HTTPS_PROXY":
			m.HTTPSProxy = e.Value
		case "NO_PROXY":
			m.NoProxy = strings.TrimPrefix(strings.TrimPrefix(e.Value, manifests.NoProxyCluster), ",")
		}
	}
}
