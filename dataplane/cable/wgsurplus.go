package cable

import (
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// leaver is a peer's key in a tunnel that this peer wants no longer.
type leaver struct {
	tunnel int
	key    wgtypes.Key
}

// keepLeavers says which keys stay in a tunnel though their peers, who are still there, want it no longer: for Linger, since until the
// caller has heard of what Ensure returns it sends into the tunnel. A peer that is gone altogether is cut off at once.
func (w *WireGuard) keepLeavers(tunnel int, have []wgtypes.Peer, now time.Time) map[wgtypes.Key]bool {
	wants := map[wgtypes.Key]bool{}
	without := map[string]bool{} // the fabric addresses of peers without this tunnel
	for _, p := range w.peers {
		if key := p.keys[tunnel]; key != (wgtypes.Key{}) {
			wants[key] = true
			delete(w.leavers, leaver{tunnel, key})
		} else {
			without[host(p.fabric).String()] = true
		}
	}
	out := map[wgtypes.Key]bool{}
	for _, h := range have {
		if !wants[h.PublicKey] && len(h.AllowedIPs) == 1 && without[h.AllowedIPs[0].String()] {
			out[h.PublicKey] = w.leavers.keeps(leaver{tunnel, h.PublicKey}, now, w.o.Linger)
		}
	}
	return out
}

// removeSurplus deletes the devices of tunnels beyond those wanted, after Linger: until the peers have heard that there are fewer
// they send into them. Those that stay are added to devices. Where the ports change as well they may be in the way, and go.
func (w *WireGuard) removeSurplus(local Local, now time.Time, devices *Devices) error {
	moved := local.Listen != w.listen
	w.listen = local.Listen
	wanted := map[int]bool{}
	for _, i := range w.tunnels {
		wanted[i] = true
		delete(w.surplus, i)
	}
	var errs []error
	for i := range MaxTunnels {
		if wanted[i] {
			continue
		}
		n, err := linkIndex(w.name(i))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if n == 0 || moved || !w.surplus.keeps(i, now, w.o.Linger) {
			delete(w.surplus, i)
			errs = append(errs, w.remove(i))
			continue
		}
		devices.Ifindexes = append(devices.Ifindexes, n)
		devices.Ports = append(devices.Ports, local.Listen+uint16(i))
	}
	return errors.Join(errs...)
}

// linkIndex is the index of a device, 0 if there is none of that name.
func linkIndex(name string) (int, error) {
	link, err := netlink.LinkByName(name)
	var none netlink.LinkNotFoundError
	if errors.As(err, &none) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look up device %s: %w", name, err)
	}
	return link.Attrs().Index, nil
}
