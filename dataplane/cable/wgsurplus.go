package cable

import (
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
)

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
		until, known := w.surplus[i]
		if !known {
			until = now.Add(w.o.Linger)
		}
		if n == 0 || moved || !now.Before(until) {
			delete(w.surplus, i)
			errs = append(errs, w.remove(i))
			continue
		}
		w.surplus[i] = until
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
