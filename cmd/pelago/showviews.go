package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
)

// The columns of these tables are those of Submariner's tool.

// listGateways returns the gateways of this cluster by name, and how each is besides its own words.
func listGateways(ctx context.Context, m *member) ([]submarinerv1.Gateway, map[string]health, error) {
	list := &submarinerv1.GatewayList{}
	if err := m.client.List(ctx, list, client.InNamespace(config.SystemNamespace)); err != nil {
		return nil, nil, fmt.Errorf("list Gateways: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b submarinerv1.Gateway) int { return strings.Compare(a.Name, b.Name) })
	healths, err := gatewayHealth(ctx, m, list.Items, time.Now())
	return list.Items, healths, err
}

// connections has a row for each pair of a gateway here and a gateway there.
func connections(ctx context.Context, m *member, _ config.Config) (table, error) {
	t := table{
		header: []string{"GATEWAY", "CLUSTER", "REMOTE IP", "NAT", "CABLE DRIVER", "SUBNETS", "STATUS", "RTT avg."},
		wide:   []string{"LOCAL GATEWAY", "MESSAGE"},
		empty:  "No connections: no other cluster has joined, or no gateway reports yet.",
	}
	gateways, healths, err := listGateways(ctx, m)
	if err != nil {
		return t, err
	}
	for _, gateway := range gateways {
		h := healths[gateway.Name]
		connections := slices.Clone(gateway.Status.Connections)
		slices.SortFunc(connections, func(a, b submarinerv1.Connection) int {
			return strings.Compare(a.Endpoint.ClusterID+" "+a.Endpoint.Hostname, b.Endpoint.ClusterID+" "+b.Endpoint.Hostname)
		})
		for _, c := range connections {
			if h.gone() { // what it said last is not what is
				c.Status, c.LatencyRTT = submarinerv1.ConnectionNone, nil
				c.StatusMessage = fmt.Sprintf("gateway %s: %s", gateway.Name, h.words())
			}
			rtt := ""
			if c.LatencyRTT != nil {
				rtt = c.LatencyRTT.Average
			}
			t.rows = append(t.rows, row{
				cells: []string{c.Endpoint.Hostname, c.Endpoint.ClusterID, c.UsingIP, yesNo(c.UsingNAT), c.Endpoint.Backend,
					strings.Join(c.Endpoint.Subnets, ", "), string(c.Status), rtt},
				wide: []string{gateway.Name, c.StatusMessage},
				object: struct {
					LocalGateway string                  `json:"localGateway"`
					Connection   submarinerv1.Connection `json:"connection"`
				}{gateway.Name, c},
			})
		}
	}
	return t, nil
}

// endpoints has a row for each gateway of each cluster.
func endpoints(ctx context.Context, m *member, c config.Config) (table, error) {
	t := table{
		header: []string{"CLUSTER", "ENDPOINT IP", "PUBLIC IP", "CABLE DRIVER", "TYPE"},
		wide:   []string{"HOSTNAME", "PORT", "TUNNELS", "SUBNETS"},
		empty:  "No endpoints: no gateway has been published yet.",
	}
	list := &submarinerv1.EndpointList{}
	if err := m.client.List(ctx, list, client.InNamespace(config.SystemNamespace)); err != nil {
		return t, fmt.Errorf("list Endpoints: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b submarinerv1.Endpoint) int { return strings.Compare(a.Name, b.Name) })
	for _, e := range list.Items {
		kind := "remote"
		if e.Spec.ClusterID == c.ClusterID {
			kind = "local"
		}
		t.rows = append(t.rows, row{
			cells:  []string{e.Spec.ClusterID, e.Spec.PrivateIP, e.Spec.PublicIP, e.Spec.Backend, kind},
			wide:   []string{e.Spec.Hostname, e.Spec.BackendConfig[submarinerv1.BackendUDPPort], tunnels(e.Spec), strings.Join(e.Spec.Subnets, ", ")},
			object: e.Spec,
		})
	}
	return t, nil
}

// tunnels is the number of tunnels of a gateway; empty: its wire has none.
func tunnels(e submarinerv1.EndpointSpec) string {
	if e.Backend == config.CableVXLAN {
		return ""
	}
	return cmp.Or(e.BackendConfig[submarinerv1.BackendTunnels], "1")
}

// networks has one row.
func networks(ctx context.Context, m *member, c config.Config) (table, error) {
	t := table{
		header: []string{"NETWORK PLUGIN", "SERVICE CIDRS", "CLUSTER CIDRS", "GLOBAL CIDR", "CLUSTERSET CIDR"},
		wide:   []string{"CLUSTER INDEX", "MODE", "FABRIC CIDR"},
	}
	plugin, err := networkPlugin(ctx, m.typed)
	if err != nil {
		return t, err
	}
	t.rows = []row{{
		cells: []string{plugin, joinPrefixes(c.ServiceCIDRs), joinPrefixes(c.PodCIDRs), joinPrefixes(c.GlobalCIDRs), ""},
		wide:  []string{strconv.Itoa(int(c.ClusterIndex)), string(c.Mode), c.FabricCIDR.String()},
		object: struct {
			NetworkPlugin string   `json:"networkPlugin"`
			ServiceCIDRs  []string `json:"serviceCIDRs"`
			ClusterCIDRs  []string `json:"clusterCIDRs"`
			GlobalCIDRs   []string `json:"globalCIDRs"`
			ClusterIndex  uint16   `json:"clusterIndex"`
			Mode          string   `json:"mode"`
			FabricCIDR    string   `json:"fabricCIDR"`
		}{plugin, prefixTexts(c.ServiceCIDRs), prefixTexts(c.PodCIDRs), prefixTexts(c.GlobalCIDRs), c.ClusterIndex, string(c.Mode), c.FabricCIDR.String()},
	}}
	return t, nil
}

// gateways has a row for each gateway of this cluster.
func gateways(ctx context.Context, m *member, _ config.Config) (table, error) {
	t := table{
		header: []string{"NODE", "HA STATUS", "SUMMARY"},
		wide:   []string{"VERSION", "FAILURE"},
		empty:  "No gateways: no node has the label " + submarinerv1.LabelGateway + "=true, or none reports yet.",
	}
	gateways, healths, err := listGateways(ctx, m)
	if err != nil {
		return t, err
	}
	for _, g := range gateways {
		h := healths[g.Name]
		text := summary(g.Status.Connections)
		switch {
		case h.gone():
			text = "Gateway is gone: " + h.words()
		case h.words() != "":
			text += "; " + h.words()
		}
		t.rows = append(t.rows, row{
			cells: []string{g.Name, string(g.Status.HAStatus), text},
			wide:  []string{g.Status.Version, g.Status.StatusFailure},
			object: struct {
				Node     string                     `json:"node"`
				Gone     bool                       `json:"gone"`
				SilentTo []string                   `json:"silentTo,omitempty"`
				Status   submarinerv1.GatewayStatus `json:"status"`
			}{g.Name, h.gone(), h.silentTo, g.Status},
		})
	}
	return t, nil
}

// summary is how many connections are established, in the words of Submariner's tool.
func summary(connections []submarinerv1.Connection) string {
	if len(connections) == 0 {
		return "There are no connections"
	}
	established := 0
	for _, c := range connections {
		if c.Status == submarinerv1.Connected {
			established++
		}
	}
	if established == len(connections) {
		return fmt.Sprintf("All connections (%d) are established", len(connections))
	}
	return fmt.Sprintf("%d connections out of %d are established", established, len(connections))
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
