package node

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"time"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/natt"
	"github.com/pelago-net/pelago/dataplane/netdev"
)

// Reach is how others reach this gateway; the zero value on other nodes.
type Reach struct {
	// Backend is what others must know of it, for backend_config of the Endpoint.
	Backend map[string]string
	// Ports are UDP ports to be let in.
	Ports []uint16
	// Public is its public address, nil where none is wanted.
	Public *pelagov1alpha1.PublicIP
	// Settings are the node's settings that could not be taken over, in words for an operator; nil on other nodes.
	Settings []string
}

// reach is what stays from one reconcile to the next.
type reach struct {
	resolver  *Resolver
	discovery *natt.Discovery // of a gateway; else nil
	config    natt.Config     // what it was opened with
	// used is which address of each remote gateway was used last.
	used map[string]string
	// addresses of this node when the ways were last looked at.
	addresses []netip.Addr
}

// ensureReach learns how this gateway is reached and how it reaches others. It returns the objects as this gateway uses
// them: with its own port, and with one address for each remote gateway. It never waits for anybody.
func (d *Daemon) ensureReach(objs Objects) (Objects, Reach, []string) {
	if !wanted(objs) && !d.tenure.gateway && !time.Now().Before(d.tenure.until) {
		d.reach.resolver.Set(nil)
		return objs, Reach{}, d.reach.close()
	}
	settings, refused := gatewaySettings(objs)
	objs.Config.CablePort = settings.UDPPort
	d.reach.resolver.Set(settings.PublicIP)
	r := Reach{
		Backend:  map[string]string{submarinerv1.BackendUDPPort: strconv.Itoa(int(settings.UDPPort)), submarinerv1.BackendNATTDiscoveryPort: "0"},
		Public:   publicAddress(ownIndex(objs).Status.PublicIP, settings.PublicIP, d.reach.resolver.Result()),
		Settings: refused,
	}
	if settings.PreferredServer {
		r.Backend[submarinerv1.BackendPreferredServer] = "true"
	}
	if r.Public != nil && r.Public.Source != "" && behindLB(settings.PublicIP, r.Public.Source) {
		r.Backend[submarinerv1.BackendLoadBalancer] = "true"
	}
	problems := slices.Clone(refused)
	verdicts := map[string]natt.Verdict{}
	if err := d.openDiscovery(objs, settings.DiscoveryPort); err != nil {
		problems = append(problems, err.Error())
	} else {
		if err := d.reach.discovery.Set(remoteReaches(objs)); err != nil {
			problems = append(problems, err.Error())
		}
		verdicts = d.reach.discovery.Verdicts()
		r.Ports = []uint16{settings.DiscoveryPort}
		r.Backend[submarinerv1.BackendNATTDiscoveryPort] = strconv.Itoa(int(settings.DiscoveryPort))
	}
	objs, more := steer(objs, settings.PreferredServer, verdicts, d.reach.used)
	d.reach.used = usedAddresses(objs)
	return objs, r, append(problems, more...)
}

// rejudge asks all peers anew if the node has other addresses than before.
func (r *reach) rejudge(addresses []netip.Addr) {
	if r.discovery != nil && r.addresses != nil && !slices.Equal(r.addresses, addresses) {
		r.discovery.Recheck()
	}
	r.addresses = slices.Clone(addresses)
}

// close ends NAT discovery.
func (r *reach) close() []string {
	if r.discovery == nil {
		return nil
	}
	err := r.discovery.Close()
	r.discovery, r.used = nil, nil
	if err != nil {
		return []string{fmt.Sprintf("close NAT discovery: %v", err)}
	}
	return nil
}

// openDiscovery opens NAT discovery, anew if it is to be another.
func (d *Daemon) openDiscovery(objs Objects, port uint16) error {
	psk, err := config.ParsePSK(readDir(d.opts.PSKDir))
	if err != nil {
		return err
	}
	c := natt.Config{Name: wayName(objs.Config.ClusterID, objs.Name), Port: port, PSK: psk}
	r := &d.reach
	if r.discovery != nil && r.config.Name == c.Name && r.config.Port == c.Port && bytes.Equal(r.config.PSK, c.PSK) {
		return nil
	}
	if r.discovery != nil {
		err := r.discovery.Close()
		r.discovery = nil
		if err != nil {
			return fmt.Errorf("close NAT discovery: %w", err)
		}
	}
	r.config = c
	c.Log, c.Changed = d.log, func(name string, v natt.Verdict) {
		d.log.Debug("the way to a gateway", "gateway", name, "state", v.State.String(), "address", v.Address, "reason", v.Reason)
		d.wake()
	}
	r.discovery, err = natt.Open(c)
	return err
}

// wayName is a gateway's name in the clusterset.
func wayName(cluster, node string) string { return cluster + "/" + node }

// gatewaySettings are the settings of this gateway: those of its node, else those of its cluster. What is wrong is left out
// and told.
func gatewaySettings(objs Objects) (Overrides, []string) {
	node := ownNode(objs)
	o, errs := ParseOverrides(objs.Name, node.Labels, node.Annotations)
	c := objs.Config
	if c.AirGapped {
		o.PublicIP = slices.DeleteFunc(o.PublicIP, func(s PublicIPSource) bool {
			if s.Method != IPv4 {
				errs = append(errs, fmt.Errorf("leave out %q of node %s: the cluster has joined with --air-gapped: use ipv4:ADDRESS", s, objs.Name))
			}
			return s.Method != IPv4
		})
	}
	if c.LoadBalancer && len(o.PublicIP) == 0 {
		o.PublicIP = []PublicIPSource{{Method: LoadBalancer, Argument: config.LoadBalancerService}}
		if n := len(wantedGateways(objs)); n > 1 {
			errs = append(errs, fmt.Errorf("node %s is one of %d gateways behind the one load balancer %s, which spreads packets over all: "+
				"use one gateway, or give each its own by the annotation %s", objs.Name, n, config.LoadBalancerService, KeyPublicIP))
		}
	}
	o.PreferredServer = o.PreferredServer || c.PreferredServer || c.LoadBalancer
	if slices.ContainsFunc(o.PublicIP, func(s PublicIPSource) bool { return s.Argument == config.LoadBalancerService }) && o.UDPPort|o.DiscoveryPort != 0 {
		errs = append(errs, fmt.Errorf("leave out the ports of node %s: Service %s passes on those of `pelago join`: set them there", objs.Name, config.LoadBalancerService))
		o.UDPPort, o.DiscoveryPort = 0, 0
	}
	ports := func(first uint16) []uint16 {
		return append(cable.Ports(c.CableDriver, cable.Local{Listen: first, Tunnels: c.CableTunnels}), first)
	}
	if o.UDPPort != 0 && slices.Contains(ports(o.UDPPort), netdev.OverlayPort) {
		errs = append(errs, fmt.Errorf("leave out %s of node %s: with %d the wire needs UDP port %d, which the overlay inside the cluster has: use another",
			KeyUDPPort, objs.Name, o.UDPPort, netdev.OverlayPort))
		o.UDPPort = 0
	}
	if o.UDPPort == 0 {
		o.UDPPort = c.CablePort
	}
	others := append(ports(o.UDPPort), netdev.OverlayPort)
	if slices.Contains(others, o.DiscoveryPort) {
		errs = append(errs, fmt.Errorf("leave out %s of node %s: UDP port %d is that of the cable or of the overlay: use another", KeyDiscoveryPort, objs.Name, o.DiscoveryPort))
		o.DiscoveryPort = 0
	}
	if o.DiscoveryPort == 0 {
		o.DiscoveryPort = c.DiscoveryPort
	}
	if o.DiscoveryPort == 0 {
		o.DiscoveryPort = natt.DefaultPort
	}
	refused := []string{}
	for _, err := range errs {
		refused = append(refused, err.Error())
	}
	return o, refused
}

// publicAddress is what is reported. While there is no answer, or after a restart, the former address stays as long as its
// source is wanted.
func publicAddress(former *pelagov1alpha1.PublicIP, wanted []PublicIPSource, r PublicIP) *pelagov1alpha1.PublicIP {
	if len(wanted) == 0 {
		return nil
	}
	out := &pelagov1alpha1.PublicIP{}
	named := func(s PublicIPSource) bool { return former != nil && s.String() == former.Source }
	switch {
	case r.Address.IsValid():
		out.Address, out.Source = r.Address.String(), r.Source.String()
	case slices.ContainsFunc(wanted, named):
		out.Address, out.Source = former.Address, former.Source
	}
	if r.Err != nil && !errors.Is(r.Err, ErrNoSource) {
		out.Message = r.Err.Error()
	}
	return out
}

func behindLB(wanted []PublicIPSource, source string) bool {
	return slices.ContainsFunc(wanted, func(s PublicIPSource) bool { return s.Method == LoadBalancer && s.String() == source })
}

// remoteReaches are the gateways to look for.
func remoteReaches(objs Objects) []natt.Peer {
	var out []natt.Peer
	for p, g := range remoteGateways(objs.Peers) {
		if g.NATTPort == 0 {
			continue // it does not answer, so nothing would follow from silence
		}
		private, _ := netip.ParseAddr(g.PrivateAddress) // zero if it has none
		public, _ := netip.ParseAddr(g.PublicAddress)   // likewise
		out = append(out, natt.Peer{Name: wayName(p.Name, g.Name), Private: private, Public: public, Port: uint16(g.NATTPort), BehindLB: g.BehindLB})
	}
	return out
}

// steer puts into each remote gateway the address that this one uses: none if the wire has to wait for it to call, or cannot go
// there. server: this gateway would rather be called; used is which addresses it used so far. The peers given stay as they are.
func steer(objs Objects, server bool, verdicts map[string]natt.Verdict, used map[string]string) (Objects, []string) {
	var problems []string
	objs.Ways = map[string]natt.Verdict{}
	peers := slices.Clone(objs.Peers)
	for i := range peers {
		peers[i].Spec.Gateways = slices.Clone(peers[i].Spec.Gateways)
		for j := range peers[i].Spec.Gateways {
			g := &peers[i].Spec.Gateways[j]
			name := wayName(peers[i].Name, g.Name)
			v, known := verdicts[name]
			if !known {
				continue
			}
			address, refused := wayTo(objs.Config, *g, v, used[name])
			if refused != "" {
				problems = append(problems, fmt.Sprintf("peer %s: gateway %s: %s", peers[i].Name, g.Name, refused))
				v.Reason = refused
			}
			if encrypted(objs.Config) && v.Caller.IsValid() && waits(server, wayName(objs.Config.ClusterID, objs.Name), *g, name) {
				address = ""
			}
			g.Address = address
			v.Address, _ = netip.ParseAddr(address) // zero if there is none
			objs.Ways[name] = v
		}
	}
	objs.Peers = peers
	return objs, problems
}

// wayTo is the address at which to reach a gateway, and why the wire cannot.
func wayTo(c config.Config, g pelagov1alpha1.PeerGateway, v natt.Verdict, used string) (address, refused string) {
	if !encrypted(c) && (v.NAT() || v.State == natt.Waiting) {
		return "", fmt.Sprintf("NAT lies between: it %s, and the wire %s knows gateways by their addresses alone, so it cannot tell who calls: "+
			"join all clusters with --cable-driver %s", v.Reason, c.CableDriver, config.CableWireGuard)
	}
	switch {
	case v.Address.IsValid():
		return v.Address.String(), ""
	case v.State == natt.Waiting:
		return "", ""
	case used != "" && (used == g.PrivateAddress || used == g.PublicAddress):
		return used, "" // nothing new is known: traffic goes on as it was
	}
	return g.Address, ""
}

// waits says whether the other gateway is to call. Of two that would both rather be called the one whose name comes last is.
// It calls already (its discovery reaches this gateway), so the wait is not in vain.
func waits(server bool, own string, g pelagov1alpha1.PeerGateway, name string) bool {
	return server && (g.Identity[submarinerv1.BackendPreferredServer] != "true" || own > name)
}

func usedAddresses(objs Objects) map[string]string {
	out := map[string]string{}
	for i := range objs.Peers {
		for _, g := range objs.Peers[i].Spec.Gateways {
			out[wayName(objs.Peers[i].Name, g.Name)] = g.Address
		}
	}
	return out
}

// with adds what others must know to reach the gateway to what they must know of its wire.
func (w Wire) with(r Reach) Wire {
	if len(r.Backend) > 0 {
		w.Identity = maps.Clone(w.Identity)
		if w.Identity == nil {
			w.Identity = map[string]string{}
		}
		maps.Copy(w.Identity, r.Backend)
	}
	w.Ports = slices.Concat(w.Ports, r.Ports)
	return w
}
