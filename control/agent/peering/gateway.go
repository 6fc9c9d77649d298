package peering

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
)

// wireGuardKey matches a public key (32 bytes) in canonical base64. Decoders accept other spellings
// of the same bytes, by which a copied key would pass for a different one.
var wireGuardKey = regexp.MustCompile(`^[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=$`)

// ikeKey matches a SubjectPublicKeyInfo (RFC 5480) of an uncompressed point on P-256 in base64.
var ikeKey = regexp.MustCompile(`^MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE[A-Za-z0-9+/]{85}[AQgw]==$`)

// ownFields are the keys of backend_config that PeerGateway has fields for; the others are copied
// to Identity.
var ownFields = []string{
	submarinerv1.BackendUDPPort, submarinerv1.BackendClusterIndex, submarinerv1.BackendNodeIndex, submarinerv1.BackendWireVersion,
	submarinerv1.BackendFabricIP, submarinerv1.BackendTunnels, submarinerv1.BackendNATTDiscoveryPort, submarinerv1.BackendLoadBalancer,
}

// gateway checks one Endpoint and returns how this cluster reaches it.
func (o Options) gateway(c submarinerv1.Cluster, index int32, e submarinerv1.Endpoint) (v1alpha1.PeerGateway, acceptance) {
	var g v1alpha1.PeerGateway
	settings := e.Spec.BackendConfig
	if e.Spec.Backend != o.CableDriver {
		return g, acceptance{reason: v1alpha1.ReasonWireMismatch, message: fmt.Sprintf(
			"gateway %s of cluster %s uses cable driver %s, this cluster %s: join both with the same --cable-driver", e.Spec.Hostname, c.Spec.ClusterID, e.Spec.Backend, o.CableDriver)}
	}
	version, err := number(settings[submarinerv1.BackendWireVersion])
	if err != nil {
		return g, invalid("Endpoint %s: %s: %v", e.Name, submarinerv1.BackendWireVersion, err)
	}
	if d := int(version) - o.WireVersion; d < -1 || d > 1 {
		return g, acceptance{reason: v1alpha1.ReasonWireMismatch, message: fmt.Sprintf(
			"gateway %s of cluster %s speaks version %d of the overlay header over %s, this cluster version %d over %s: neighbouring versions work together",
			e.Spec.Hostname, c.Spec.ClusterID, version, e.Spec.Backend, o.WireVersion, o.CableDriver)}
	}
	port, err := number(settings[submarinerv1.BackendUDPPort])
	if err != nil {
		return g, invalid("Endpoint %s: %s: %v", e.Name, submarinerv1.BackendUDPPort, err)
	}
	node, err := number(settings[submarinerv1.BackendNodeIndex])
	if err != nil {
		return g, invalid("Endpoint %s: %s: %v", e.Name, submarinerv1.BackendNodeIndex, err)
	}
	if e.Spec.Hostname == "" {
		return g, invalid("Endpoint %s names no node in spec.hostname", e.Name)
	}
	private, public, err := addresses(e.Spec)
	if err != nil {
		return g, invalid("Endpoint %s: %v", e.Name, err)
	}
	discovery, err := discoveryPort(settings)
	if err != nil {
		return g, invalid("Endpoint %s: %s: %v", e.Name, submarinerv1.BackendNATTDiscoveryPort, err)
	}
	fabric, err := o.fabricOf(settings, index, node)
	if err != nil {
		return g, invalid("Endpoint %s: %v", e.Name, err)
	}
	tunnels, err := wire(e.Spec.Backend, settings)
	if err != nil {
		return g, invalid("Endpoint %s: %v", e.Name, err)
	}
	if err := o.claims(c, index, e); err != nil {
		return g, invalid("Endpoint %s %v", e.Name, err)
	}
	g = v1alpha1.PeerGateway{
		Name: e.Spec.Hostname, Address: private, PrivateAddress: private, PublicAddress: public,
		BehindLB: settings[submarinerv1.BackendLoadBalancer] == "true", NATTPort: discovery, Port: port, Wire: e.Spec.Backend, NodeIndex: node,
		FabricAddress: fabric.String(), Tunnels: tunnels, Identity: maps.Clone(settings),
	}
	if e.Spec.NATEnabled {
		g.Address = public
	}
	maps.DeleteFunc(g.Identity, func(key, _ string) bool { return slices.Contains(ownFields, key) })
	if len(g.Identity) == 0 {
		g.Identity = nil // as it comes back from the API server
	}
	return g, acceptance{ok: true}
}

// addresses returns a gateway's two addresses in canonical form. The one that nat_enabled selects
// is required.
func addresses(e submarinerv1.EndpointSpec) (private, public string, err error) {
	for _, a := range []struct {
		field, text string
		needed      bool
		out         *string
	}{{"private_ip", e.PrivateIP, !e.NATEnabled, &private}, {"public_ip", e.PublicIP, e.NATEnabled, &public}} {
		if a.text == "" && !a.needed {
			continue
		}
		ip, err := netip.ParseAddr(a.text)
		if err != nil || !ip.Unmap().Is4() {
			return "", "", fmt.Errorf("%s %q is no IPv4 address: gateways reach each other by IPv4", a.field, a.text)
		}
		*a.out = ip.Unmap().String()
	}
	return private, public, nil
}

// discoveryPort is the UDP port on which a gateway answers NAT discovery; 0: none.
func discoveryPort(settings map[string]string) (int32, error) {
	if text := settings[submarinerv1.BackendNATTDiscoveryPort]; text != "" && text != "0" {
		return number(text)
	}
	return 0, nil
}

// fabricOf is the fabric address of a gateway. It follows from the indexes; a gateway with a
// different address would receive the packets of another node. Endpoints of the former version
// carry none.
func (o Options) fabricOf(settings map[string]string, cluster, node int32) (netip.Addr, error) {
	want, err := config.FabricAddress(o.Fabric, uint16(cluster), uint16(node))
	if err != nil {
		return want, err
	}
	if text, ok := settings[submarinerv1.BackendFabricIP]; ok && text != want.String() {
		return want, fmt.Errorf("%s is %q, but node %d of cluster %d has %s in the fabric %s: are both clusters joined with the same broker?",
			submarinerv1.BackendFabricIP, text, node, cluster, want, o.Fabric)
	}
	return want, nil
}

// wire checks the wire settings of an Endpoint and returns the number of tunnels.
func wire(driver string, settings map[string]string) (int32, error) {
	tunnels := int32(1)
	if text, ok := settings[submarinerv1.BackendTunnels]; ok {
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil || n < 1 || n > config.MaxCableTunnels {
			return 0, fmt.Errorf("%s: %q is no number from 1 to %d", submarinerv1.BackendTunnels, text, config.MaxCableTunnels)
		}
		tunnels = int32(n)
	}
	switch driver {
	case config.CableWireGuard:
		return tunnels, wireGuardKeys(tunnels, settings)
	case config.CableLibreswan:
		if settings[submarinerv1.BackendIKE] == "" || settings[submarinerv1.BackendESP] == "" {
			return 0, fmt.Errorf("it has no %s and %s, so its IKE daemon does not run: see the container ike of pelago-node on that gateway",
				submarinerv1.BackendIKE, submarinerv1.BackendESP)
		}
		for _, key := range keysOf(settings[submarinerv1.BackendIKEKeys]) {
			if !ikeKey.MatchString(key) {
				return 0, fmt.Errorf("%s %q is no public key of ECDSA P-256 in base64: %s", submarinerv1.BackendIKEKeys, key, keysRemedy)
			}
		}
	}
	return tunnels, nil
}

// keysRemedy is the remedy for a gateway with unusable keys.
const keysRemedy = "see that pelago-node is ready on that gateway: it makes the keys and reports them in its NodeIndex"

// wireGuardKeys checks the form and the number of a WireGuard gateway's keys; taken.distinct checks
// that they are its own.
func wireGuardKeys(tunnels int32, settings map[string]string) error {
	if settings[submarinerv1.BackendPublicKey] == "" {
		return fmt.Errorf("it has no %s, without which no peer can encrypt for it: %s", submarinerv1.BackendPublicKey, keysRemedy)
	}
	for _, field := range []string{submarinerv1.BackendPublicKey, submarinerv1.BackendStandbyKey} {
		for _, key := range keysOf(settings[field]) {
			if !wireGuardKey.MatchString(key) {
				return fmt.Errorf("%s %q is not 32 bytes in base64: %s", field, key, keysRemedy)
			}
		}
	}
	if n := len(keysOf(settings[submarinerv1.BackendPublicKey])); n != int(tunnels) {
		return fmt.Errorf("it has %d tunnels and %d keys in %s, want one for each: %s", tunnels, n, submarinerv1.BackendPublicKey, keysRemedy)
	}
	if standby := keysOf(settings[submarinerv1.BackendStandbyKey]); len(standby) > 1 {
		return fmt.Errorf("it has %d keys in %s, want one at most: %s", len(standby), submarinerv1.BackendStandbyKey, keysRemedy)
	}
	return nil
}

// keysOf splits a field of backend_config into its keys.
func keysOf(field string) []string {
	if field == "" {
		return nil
	}
	return strings.Split(field, ",")
}

// claims checks that an Endpoint claims only what `pelago join` allocated to its cluster.
func (o Options) claims(c submarinerv1.Cluster, index int32, e submarinerv1.Endpoint) error {
	texts := allocated(c)
	if fabric, ok := o.fabricShare(c, index); ok {
		texts = append(texts, fabric)
	}
	own := parsed(texts)
	for _, text := range e.Spec.Subnets {
		subnet, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("claims %q, which is no range in CIDR notation", text)
		}
		inside := slices.ContainsFunc(own, func(r netip.Prefix) bool { return r.Bits() <= subnet.Bits() && r.Contains(subnet.Addr()) })
		if !inside {
			return fmt.Errorf("claims %s, which is not within the ranges of cluster %s: %s", text, c.Spec.ClusterID, strings.Join(texts, ", "))
		}
	}
	return nil
}
