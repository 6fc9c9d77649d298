package status

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/cable"
)

// haStatus is active for every gateway, or where all flows take one gateway (Settings.Single), for
// the first that answers.
func (t *Tracker) haStatus(snap Snapshot) submarinerv1.HAStatus {
	s := snap.State
	if !s.Settings.Single {
		return submarinerv1.HAStatusActive
	}
	living := slices.DeleteFunc(slices.Clone(s.Gateways), func(index uint16) bool {
		p := t.paths[s.Nodes[index].Address]
		return index != s.Settings.Node && p != nil && p.dead.bad
	})
	if dataplane.First(living) != s.Settings.Node {
		return submarinerv1.HAStatusPassive
	}
	return submarinerv1.HAStatusActive
}

// gateway is the desired status of the Gateway object; nil: there is to be none.
func (t *Tracker) gateway(snap Snapshot) *submarinerv1.GatewayStatus {
	if !snap.Gateway {
		return nil
	}
	return &submarinerv1.GatewayStatus{
		Version: t.version, HAStatus: t.haStatus(snap), LocalEndpoint: localEndpoint(snap), Connections: t.connections(snap),
	}
}

// CompleteEndpoints adds what gateways have published of themselves, and what of this one only the
// agent knows.
func CompleteEndpoints(status *submarinerv1.GatewayStatus, published []submarinerv1.Endpoint) {
	type name struct{ cluster, host string }
	specs := map[name]submarinerv1.EndpointSpec{}
	for _, e := range published {
		specs[name{e.Spec.ClusterID, e.Spec.Hostname}] = e.Spec
	}
	own := &status.LocalEndpoint
	if e, ok := specs[name{own.ClusterID, own.Hostname}]; ok {
		own.HealthCheckIP = e.HealthCheckIP
		for k, v := range e.BackendConfig {
			if _, known := own.BackendConfig[k]; !known {
				own.BackendConfig[k] = v
			}
		}
	}
	for i := range status.Connections {
		c := &status.Connections[i]
		if e, ok := specs[name{c.Endpoint.ClusterID, c.Endpoint.Hostname}]; ok {
			c.Endpoint = e
		}
	}
}

// localEndpoint is this gateway as its Endpoint object describes it.
func localEndpoint(snap Snapshot) submarinerv1.EndpointSpec {
	c, s := snap.Objects.Config, snap.State.Settings
	subnets := []string{}
	for _, p := range c.Subnets() {
		subnets = append(subnets, p.String())
	}
	settings := map[string]string{
		submarinerv1.BackendUDPPort:      strconv.Itoa(int(c.CablePort)),
		submarinerv1.BackendClusterIndex: strconv.Itoa(int(c.ClusterIndex)),
		submarinerv1.BackendNodeIndex:    strconv.Itoa(int(s.Node)),
	}
	if a, err := c.FabricAddress(c.ClusterIndex, s.Node); err == nil {
		settings[submarinerv1.BackendFabricIP] = a.String()
	}
	for k, v := range snap.Wire {
		settings[k] = v
	}
	e := submarinerv1.EndpointSpec{
		ClusterID: c.ClusterID, CableName: cableName(c.ClusterID, s.Address.String()), Hostname: snap.Objects.Name, Subnets: subnets,
		PrivateIP: s.Address.String(), Backend: c.CableDriver, BackendConfig: settings,
	}
	if p := snap.Reach.Public; p != nil && p.Address != "" {
		e.PublicIP, e.NATEnabled = p.Address, p.Address != e.PrivateIP && !c.NoNAT
	}
	return e
}

func cableName(cluster, address string) string {
	return "submariner-cable-" + cluster + "-" + strings.ReplaceAll(address, ".", "-")
}

// connections lists the gateways of all accepted peers with what probes and the wire show.
func (t *Tracker) connections(snap Snapshot) []submarinerv1.Connection {
	out := []submarinerv1.Connection{}
	for _, target := range slices.Concat(snap.Targets, snap.refused) {
		if !target.remote() {
			continue
		}
		c := submarinerv1.Connection{
			Status: submarinerv1.ConnectionError, StatusMessage: t.message(target), Endpoint: peerEndpoint(target.peer, target.spec),
			UsingIP: t.usingIP(target), UsingNAT: t.usingNAT(target),
		}
		if target.refused == "" {
			s := t.paths[target.Address]
			c.Status, c.LatencyRTT, c.LossPercent = s.status, s.rtt.spec(), s.lossPercent()
		}
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b submarinerv1.Connection) int {
		return strings.Compare(a.Endpoint.CableName, b.Endpoint.CableName)
	})
	return out
}

// isOwnPort reports whether a gateway itself sends from a port: tunnel i has the port of the
// cable + i, the standby tunnel the next.
func isOwnPort(g pelagov1alpha1.PeerGateway, port uint16) bool {
	return port >= uint16(g.Port) && port <= uint16(g.Port)+cable.MaxTunnels
}

func peerEndpoint(p *pelagov1alpha1.Peer, g pelagov1alpha1.PeerGateway) submarinerv1.EndpointSpec {
	settings := map[string]string{
		submarinerv1.BackendUDPPort:      strconv.Itoa(int(g.Port)),
		submarinerv1.BackendClusterIndex: strconv.Itoa(int(p.Spec.ClusterIndex)),
		submarinerv1.BackendNodeIndex:    strconv.Itoa(int(g.NodeIndex)),
	}
	if g.FabricAddress != "" {
		settings[submarinerv1.BackendFabricIP] = g.FabricAddress
	}
	if g.Tunnels > 0 {
		settings[submarinerv1.BackendTunnels] = strconv.Itoa(int(g.Tunnels))
	}
	for k, v := range g.Identity {
		settings[k] = v
	}
	if g.NATTPort > 0 {
		settings[submarinerv1.BackendNATTDiscoveryPort] = strconv.Itoa(int(g.NATTPort))
	}
	if g.BehindLB {
		settings[submarinerv1.BackendLoadBalancer] = "true"
	}
	private := privateAddress(g)
	return submarinerv1.EndpointSpec{
		ClusterID: p.Name, CableName: cableName(p.Name, cmp.Or(private, g.PublicAddress)), Hostname: g.Name, Subnets: p.Spec.Subnets,
		PrivateIP: private, PublicIP: g.PublicAddress, NATEnabled: g.PublicAddress != "" && g.PublicAddress != private,
		Backend: g.Wire, BackendConfig: settings,
	}
}

// privateAddress of a remote gateway; empty if only its public one is usable here. Agents of former
// versions publish only one.
func privateAddress(g pelagov1alpha1.PeerGateway) string {
	if g.PublicAddress != "" {
		return g.PrivateAddress
	}
	return cmp.Or(g.PrivateAddress, g.Address)
}
