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
	"github.com/pelago-net/pelago/api/submariner/v1alpha1"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/spec"
)

// clusterSetIPConfigMap is the broker's book of ranges of ClusterSetIPs.
const clusterSetIPConfigMap = "submariner-clustersetip-info"

// submarinerState is what Submariner has in a member and at its broker.
type submarinerState struct {
	spec      v1alpha1.SubmarinerSpec
	book      broker.Book
	vips      string // range of ClusterSetIPs; empty if services get none by default
	clusters  []submarinerv1.Cluster
	endpoints []submarinerv1.Endpoint
	addresses []gatewayAddress
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
	return s, s.readAddresses(ctx, member, namespace)
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
	if _, err := s.member(); err != nil {
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

// driver is the cable driver of the cluster: the one of the spec, else the one that its gateway or,
// before it has one, another cluster's reports, else Submariner's default.
func (s submarinerState) driver() string {
	driver := s.spec.CableDriver
	for _, e := range s.endpoints {
		if s.spec.CableDriver == "" && (driver == "" || e.Spec.ClusterID == s.spec.ClusterID) {
			driver = e.Spec.Backend
		}
	}
	return cmp.Or(driver, config.CableLibreswan)
}

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

// member is the Member that the cluster becomes. The nodes' labels are Submariner's as well.
func (s submarinerState) member() (spec.Object, error) {
	o, errs := spec.FromSubmariner(s.spec, nil)
	return o, spec.Join(errs)
}

// joinFlags are the flags of `pelago join` by which it becomes the same.
func (s submarinerState) joinFlags() []string {
	o, err := s.member()
	if err != nil {
		return nil // check has refused it
	}
	first := []string{"--clusterid=" + o.ClusterID, "--cable-driver=" + s.driver(), fmt.Sprintf("--nattport=%d", o.CablePort), fmt.Sprintf("--natt=%t", o.NAT)}
	rest := slices.DeleteFunc(o.Args(), func(flag string) bool {
		name, _, _ := strings.Cut(flag, "=")
		return slices.Contains([]string{"--clusterid", "--cable-driver", "--nattport", "--natt"}, name)
	})
	return append(first, rest...)
}

// settings are the lines of the plan.
func (s submarinerState) settings() []setting {
	out := []setting{
		{"hub", "", "pelago deploy-broker " + strings.Join(s.deployFlags(), " ")},
		{"cluster", s.spec.ClusterID, "pelago join broker-info.subm " + strings.Join(s.joinFlags(), " ")},
		{"gateways", "one active", "all nodes labelled " + submarinerv1.LabelGateway + " are active"},
	}
	out = append(out, s.addressSettings()...)
	if s.spec.GlobalCIDR != "" {
		out = append(out, setting{"global IPs", "of services, pods, egress", "kept by --switch"}, setting{"global IPs of gateways", "for health checks", "none"})
	}
	if s.spec.CeIPSecForceUDPEncaps {
		out = append(out, setting{"ceIPSecForceUDPEncaps", "true", "none"})
	}
	if s.spec.ConnectionHealthCheck != nil {
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
