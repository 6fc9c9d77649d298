package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/netdev"
)

// wireFlags are the flags of join about the wire between gateways.
type wireFlags struct {
	driver  string
	port    uint16
	tunnels int
	xdp     string
}

func (w *wireFlags) add(f *pflag.FlagSet) {
	f.StringVar(&w.driver, "cable-driver", config.CableWireGuard, "wire between gateways: wireguard, libreswan (or ipsec: IKEv2 and ESP by strongSwan) or vxlan (not encrypted); the same in all clusters")
	f.Uint16Var(&w.port, "nattport", 4500, "UDP port of the wire between gateways")
	f.IntVar(&w.tunnels, "cable-tunnels", 1, fmt.Sprintf("tunnels between two gateways, 1 to %d, so that a pair of them uses several cores; of two clusters the smaller number counts. wireguard takes a UDP port for each, from --nattport on, and --nattport + %d to change keys", config.MaxCableTunnels, cable.MaxTunnels))
	f.StringVar(&w.xdp, "xdp", config.XDPOff, "experimental, no real network card has been tried: where gateways have the driver do the common case (XDP): off, auto (uplinks that are network cards), on (all uplinks)")
}

func (w *wireFlags) check() error {
	if w.driver == "ipsec" {
		w.driver = config.CableLibreswan // the name that users of the predecessor know
	}
	if !slices.Contains(config.CableDrivers(), w.driver) {
		return fmt.Errorf("--cable-driver %q is unknown: use %s", w.driver, strings.Join(config.CableDrivers(), ", "))
	}
	if w.tunnels < 1 || w.tunnels > config.MaxCableTunnels {
		return fmt.Errorf("--cable-tunnels %d: use 1 to %d", w.tunnels, config.MaxCableTunnels)
	}
	if w.tunnels > 1 && w.driver == config.CableVXLAN {
		return fmt.Errorf("--cable-tunnels %d: the wire %s has no tunnels: use --cable-tunnels 1, or --cable-driver %s", w.tunnels, w.driver, config.CableWireGuard)
	}
	if !slices.Contains(config.XDPSettings(), w.xdp) {
		return fmt.Errorf("--xdp %q is unknown: use %s", w.xdp, strings.Join(config.XDPSettings(), ", "))
	}
	if w.port == 0 || w.port == netdev.OverlayPort {
		return fmt.Errorf("--nattport %d: use a port from 1 to 65535 other than %d, which the overlay inside the cluster has", w.port, netdev.OverlayPort)
	}
	if last := 65535 - cable.MaxTunnels; int(w.port) > last && w.driver != config.CableVXLAN {
		return fmt.Errorf("--nattport %d: the wire %s needs the next %d ports as well: use one up to %d", w.port, w.driver, cable.MaxTunnels, last)
	}
	if slices.Contains(w.ports(), netdev.OverlayPort) {
		return fmt.Errorf("--nattport %d: then the wire %s with %d tunnels needs UDP port %d as well, which the overlay inside the cluster has: use another",
			w.port, w.driver, w.tunnels, netdev.OverlayPort)
	}
	return nil
}

// ports are the UDP ports at which the wire listens, sorted.
func (w *wireFlags) ports() []uint16 {
	out := append(cable.Ports(w.driver, cable.Local{Listen: w.port, Tunnels: w.tunnels}), w.port)
	slices.Sort(out)
	return slices.Compact(out)
}

// apply writes down what differs from the default.
func (w *wireFlags) apply(c *config.Config) {
	c.CableDriver, c.CablePort = w.driver, w.port
	if w.tunnels > 1 {
		c.CableTunnels = w.tunnels
	}
	if w.xdp != config.XDPOff {
		c.XDP = w.xdp
	}
}
