package cable

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"

	"github.com/pelago-net/pelago/dataplane/netdev"
)

// VXLAN is the wire `vxlan`: in the clear. The programs write and read the whole header themselves, so there is no device,
// and peers are known by their underlay addresses. netdev.Ensure holds the UDP port. Who can send from a peer's address can
// pass for it: it is for networks that are trusted.
type VXLAN struct {
	mu    sync.Mutex
	peers []Peer
}

var _ Wire = (*VXLAN)(nil)

// Ensure implements Wire: it only says what cannot be. Devices are none.
func (w *VXLAN) Ensure(local Local, peers []Peer) (Devices, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	errs := []error{fabricClash(local, peers), portFree(local.Listen)}
	w.peers = nil
	for _, p := range peers {
		switch {
		case p.Identity[IdentityPublicKey] != "" || p.Identity[IdentityIKE] != "":
			errs = append(errs, fmt.Errorf("peer %s: its wire is encrypted, this gateway's cable driver is %s: all clusters must use the same", p.Name, VXLANDriver))
		case !p.Address.IsValid():
			errs = append(errs, fmt.Errorf("peer %s: its address is not known: %s proves nobody's identity, so it cannot wait for a call: use %s behind NAT", p.Name, VXLANDriver, WireGuardDriver))
		default:
			w.peers = append(w.peers, p)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return Devices{}, fmt.Errorf("vxlan: %w", err)
	}
	return Devices{}, nil
}

// portFree says whether netdev has the cable's port, or could have it.
func portFree(port uint16) error {
	if link, err := netlink.LinkByName(netdev.Cable); err == nil {
		if v, ok := link.(*netlink.Vxlan); ok && v.Port == int(port) && link.Attrs().Flags&net.FlagUp != 0 {
			return nil
		}
	}
	c, err := net.ListenUDP("udp4", &net.UDPAddr{Port: int(port)})
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("UDP port %d: %w: stop the program that listens there (an IKE daemon takes 4500), or join with another --nattport", port, netdev.ErrPortInUse)
	}
	if err != nil {
		return fmt.Errorf("UDP port %d: %w", port, err)
	}
	return c.Close()
}

// Identity implements Wire: address and port, which every Endpoint has, are all.
func (w *VXLAN) Identity() (map[string]string, error) { return map[string]string{}, nil }

// Status implements Wire. The wire itself knows nothing of a peer's life: probes do.
func (w *VXLAN) Status() (map[netip.Addr]Status, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[netip.Addr]Status{}
	for _, p := range w.peers {
		out[p.Fabric] = Status{Endpoint: netip.AddrPortFrom(p.Address, p.Port), Tunnels: 1}
	}
	return out, nil
}

// Remove implements Wire: netdev.Remove takes the device away.
func (w *VXLAN) Remove() error { return nil }

// Close implements Wire.
func (w *VXLAN) Close() error { return nil }
