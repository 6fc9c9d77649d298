package migrate

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy/broker"
)

// clusterSetIPConfigMap is the broker's book of ranges of ClusterSetIPs.
const clusterSetIPConfigMap = "submariner-clustersetip-info"

// submarinerSpec is what the plan uses of a Submariner of submariner.io/v1alpha1.
type submarinerSpec struct {
	ClusterID              string         `json:"clusterID"`
	ClusterCIDR            string         `json:"clusterCIDR"`
	ServiceCIDR            string         `json:"serviceCIDR"`
	GlobalCIDR             string         `json:"globalCIDR"`
	ClustersetIPCIDR       string         `json:"clustersetIPCIDR"`
	CableDriver            string         `json:"cableDriver"`
	CeIPSecNATTPort        int            `json:"ceIPSecNATTPort"`
	NatEnabled             bool           `json:"natEnabled"`
	CeIPSecPreferredServer bool           `json:"ceIPSecPreferredServer"`
	LoadBalancerEnabled    bool           `json:"loadBalancerEnabled"`
	AirGappedDeployment    bool           `json:"airGappedDeployment"`
	CeIPSecForceUDPEncaps  bool           `json:"ceIPSecForceUDPEncaps"`
	ClustersetIPEnabled    bool           `json:"clustersetIPEnabled"`
	CustomDomains          []string       `json:"customDomains"`
	ConnectionHealthCheck  map[string]any `json:"connectionHealthCheck"`
	CoreDNSCustomConfig    *struct {
		ConfigMapName string `json:"configMapName"`
		Namespace     string `json:"namespace"`
	} `json:"coreDNSCustomConfig"`
}

// submarinerState is what Submariner has in a member and at its broker.
type submarinerState struct {
	spec      submarinerSpec
	book      broker.Book
	vips      string // range of ClusterSetIPs; empty if services get none by default
	clusters  []submarinerv1.Cluster
	endpoints []submarinerv1.Endpoint
}

// setting is one line of the plan.
type setting struct {
	Name       string `json:"name"`
	Submariner string `json:"submariner"`
	Pelago     string `json:"pelago"`
}

// readSubmariner reads both sides.
func readSubmariner(ctx context.Context, member, hub client.Client, namespace, brokerNamespace string) (s submarinerState, err error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: "submariner.io", Version: "v1alpha1", Kind: "Submariner"})
	if err := member.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "submariner"}, u); err != nil {
		return s, fmt.Errorf("get Submariner %s/submariner: %w: name a cluster that subctl has joined with --context", namespace, err)
	}
	spec, _, err := unstructured.NestedMap(u.Object, "spec")
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(spec, &s.spec)
	}
	if err != nil {
		return s, fmt.Errorf("read the spec of Submariner %s/submariner: %w", namespace, err)
	}
	cm := &corev1.ConfigMap{}
	if err := hub.Get(ctx, client.ObjectKey{Namespace: brokerNamespace, Name: broker.AllocationConfigMap}, cm); err != nil {
		return s, fmt.Errorf("get ConfigMap %s/%s at the broker: %w: name Submariner's broker with --broker-context", brokerNamespace, broker.AllocationConfigMap, err)
	}
	if s.book, err = broker.ParseBook(cm.Data); err != nil {
		return s, err
	}
	vips := &corev1.ConfigMap{}
	if err := hub.Get(ctx, client.ObjectKey{Namespace: brokerNamespace, Name: clusterSetIPConfigMap}, vips); client.IgnoreNotFound(err) != nil {
		return s, fmt.Errorf("get ConfigMap %s/%s at the broker: %w", brokerNamespace, clusterSetIPConfigMap, err)
	}
	if vips.Data["clustersetIPEnabled"] == "true" {
		s.vips = strings.Trim(vips.Data["clustersetIPCIDRRange"], `"`)
	}
	var clusters submarinerv1.ClusterList
	var endpoints submarinerv1.EndpointList
	for _, list := range []client.ObjectList{&clusters, &endpoints} {
		if err := hub.List(ctx, list, client.InNamespace(brokerNamespace)); err != nil {
			return s, fmt.Errorf("list %T at the broker: %w", list, err)
		}
	}
	s.clusters, s.endpoints = clusters.Items, endpoints.Items
	return s, nil
}

// check refuses what contradicts.
func (s submarinerState) check() error {
	i := slices.IndexFunc(s.clusters, func(c submarinerv1.Cluster) bool { return c.Spec.ClusterID == s.spec.ClusterID })
	if i < 0 {
		return fmt.Errorf("the broker has no Cluster %q: name the broker of this cluster with --broker-context", s.spec.ClusterID)
	}
	if err := config.CheckClusterID(s.spec.ClusterID); err != nil {
		return err
	}
	if s.book.Globalnet != (s.spec.GlobalCIDR != "") {
		return fmt.Errorf("globalnet of the broker is %t, and cluster %q has the GlobalCIDR %q: all clusters take part in it, or none", s.book.Globalnet, s.spec.ClusterID, s.spec.GlobalCIDR)
	}
	if own := s.clusters[i].Spec.GlobalCIDR; s.spec.GlobalCIDR != "" && !slices.Contains(own, s.spec.GlobalCIDR) {
		return fmt.Errorf("cluster %q has the GlobalCIDR %s, and %v at the broker: restart its gateway until both agree", s.spec.ClusterID, s.spec.GlobalCIDR, own)
	}
	for _, other := range s.clusters {
		if other.Spec.ClusterID != s.spec.ClusterID && overlap(s.clusters[i].Spec.GlobalCIDR, other.Spec.GlobalCIDR) {
			return fmt.Errorf("GlobalCIDRs of clusters %q %v and %q %v overlap: rejoin one of them with another", s.spec.ClusterID, s.clusters[i].Spec.GlobalCIDR, other.Spec.ClusterID, other.Spec.GlobalCIDR)
		}
	}
	for _, e := range s.endpoints {
		if e.Spec.Backend != s.driver() {
			return fmt.Errorf("cluster %q has the cable driver %s, and cluster %q %s: Pelago uses one in all clusters; join them with the same --cable-driver", s.spec.ClusterID, s.driver(), e.Spec.ClusterID, e.Spec.Backend)
		}
	}
	return nil
}

func (s submarinerState) driver() string { return cmp.Or(s.spec.CableDriver, config.CableLibreswan) }

func overlap(a, b []string) bool {
	for _, x := range a {
		for _, y := range b {
			p, errP := netip.ParsePrefix(x)
			q, errQ := netip.ParsePrefix(y)
			if errP == nil && errQ == nil && p.Overlaps(q) {
				return true
			}
		}
	}
	return false
}

// deployFlags are the flags of deploy-broker.
func (s submarinerState) deployFlags() []string {
	var out []string
	if s.book.Globalnet {
		out = append(out, "--globalnet", "--globalnet-cidr-range="+s.book.Range.String(), fmt.Sprintf("--globalnet-cluster-size=%d", s.book.ClusterSize))
	}
	if s.vips != "" {
		out = append(out, "--enable-clusterset-ip", "--clusterset-ip-cidr-range="+s.vips)
	}
	if len(s.spec.CustomDomains) > 0 {
		out = append(out, "--custom-domains="+strings.Join(s.spec.CustomDomains, ","))
	}
	return out
}

// joinFlags are the flags of join.
func (s submarinerState) joinFlags() []string {
	out := []string{"--clusterid=" + s.spec.ClusterID, "--cable-driver=" + s.driver(), fmt.Sprintf("--nattport=%d", cmp.Or(s.spec.CeIPSecNATTPort, 4500)),
		fmt.Sprintf("--natt=%t", s.spec.NatEnabled)}
	for _, f := range []struct{ flag, value string }{
		{"globalnet-cidr", s.spec.GlobalCIDR}, {"clusterset-ip-cidr", s.spec.ClustersetIPCIDR},
		{"clustercidr", s.spec.ClusterCIDR}, {"servicecidr", s.spec.ServiceCIDR},
	} {
		if f.value != "" {
			out = append(out, "--"+f.flag+"="+f.value)
		}
	}
	for flag, on := range map[string]bool{"preferred-server": s.spec.CeIPSecPreferredServer, "load-balancer": s.spec.LoadBalancerEnabled,
		"air-gapped": s.spec.AirGappedDeployment, "enable-clusterset-ip": s.spec.ClustersetIPEnabled} {
		if on {
			out = append(out, "--"+flag)
		}
	}
	if c := s.spec.CoreDNSCustomConfig; c != nil && c.ConfigMapName != "" {
		out = append(out, "--coredns-custom-configmap="+cmp.Or(c.Namespace, "kube-system")+"/"+c.ConfigMapName)
	}
	slices.Sort(out[4:])
	return out
}

// settings are the lines of the plan.
func (s submarinerState) settings() []setting {
	out := []setting{
		{"hub", "", "pelago deploy-broker " + strings.Join(s.deployFlags(), " ")},
		{"cluster", s.spec.ClusterID, "pelago join broker-info.subm " + strings.Join(s.joinFlags(), " ")},
		{"gateways", "one active", "all nodes labelled " + submarinerv1.LabelGateway + " are active"},
	}
	if s.spec.GlobalCIDR != "" {
		out = append(out, setting{"global IPs", "of services, pods, egress", "kept by --switch"}, setting{"global IPs of gateways", "for health checks", "none"})
	}
	if s.spec.CeIPSecForceUDPEncaps {
		out = append(out, setting{"ceIPSecForceUDPEncaps", "true", "none"})
	}
	if len(s.spec.ConnectionHealthCheck) > 0 {
		out = append(out, setting{"connectionHealthCheck", "set", "none: gateways always probe"})
	}
	return out
}

func (s submarinerState) print(out io.Writer, output string) error {
	t := view.Table{Header: []string{"SETTING", "SUBMARINER", "PELAGO"}}
	for _, line := range s.settings() {
		t.Rows = append(t.Rows, view.Row{Cells: []string{line.Name, cmp.Or(line.Submariner, "-"), line.Pelago}, Object: line})
	}
	return view.PrintTables(out, output, t)
}
