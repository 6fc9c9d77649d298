//go:build linux

package cable

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"

	"github.com/pelago-net/pelago/dataplane/netdev"
)

// VXLAN is the wire `vxlan`: in the clear. The programs write and parse the headers themselves, so
// there is no device, and a peer is identified by its underlay address, which can be spoofed: for
// trusted networks only. netdev.Ensure binds the UDP port.
type VXLAN struct {
	mu    sync.Mutex
	peers []Peer
}

var _ Wire = (*VXLAN)(nil)

// Capabilities implements Wire: none exist.
func (w *VXLAN) Capabilities() Capabilities { return Capabilities{} }

// Ensure implements Wire: it validates the peers and makes no device.
func (w *VXLAN) Ensure(local Local, peers []Peer) (Devices, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	peers, err := distinctFabric(local, peers)
	errs := []error{err, portFree(local.Listen)}
	w.peers = nil
	for _, p := range peers {
		switch {
		case p.Identity[IdentityPublicKey] != "" || p.Identity[IdentityIKE] != "":
			errs = append(errs, fmt.Errorf("peer %s: its wire is encrypted, this gateway's cable driver is %s: all clusters must use the same", p.Name, VXLANDriver))
		case !p.Address.IsValid():
			errs = append(errs, fmt.Errorf("peer %s: its address is not known: %s does not authenticate peers, so it cannot wait for one to initiate: use %s behind NAT", p.Name, VXLANDriver, WireGuardDriver))
		default:
			w.peers = append(w.peers, p)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return Devices{}, fmt.Errorf("vxlan: %w", err)
	}
	return Devices{}, nil
}

// portFree returns an error unless netdev has bound the cable port, or can.
func portFree(port uint16) error {
	if link, err := netlink.LinkByName(netdev.Cable); err == nil {
		if v, ok := link.(*netlink.Vxlan); ok && v.Port == int(port) && link.Attrs().Flags&net.FlagUp != 0 {
			return nil
		}
	}
	c, err := net.ListenUDP("udp4", &net.UDPAddr{Port: int(port)})
	if err != nil {
		return portInUse(err, port)
	}
	return c.Close()
}

// Identity implements Wire: address and port, which every Endpoint has, suffice.
func (w *VXLAN) Identity() (map[string]string, error) { return map[string]string{}, nil }

// Status implements Wire. Whether a peer is alive is known to the probes only.
func (w *VXLAN) Status() (map[netip.Addr]Status, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[netip.Addr]Status{}
	for _, p := range w.peers {
		out[p.Fabric] = Status{Endpoint: netip.AddrPortFrom(p.Address, p.Port), Tunnels: 1}
	}
	return out, nil
}

// Remove implements Wire: the device is netdev's.
func (w *VXLAN) Remove() error { return nil }

// Close implements Wire.
func (w *VXLAN) Close() error { return nil }
