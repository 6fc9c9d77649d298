package main

import (
	"log/slog"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/control/node"
	"github.com/pelago-net/pelago/dataplane/cable"
)

// ikeDir is the directory that the containers pelago-node and ike share.
const ikeDir = "/run/pelago-ike"

func ikeCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "ike",
		Short: "Run the IKE daemon of the cable driver libreswan",
		Long: `ike runs strongSwan's charon while "pelago-node run", in the container beside,
wants it: on gateways of a cluster that joined with --cable-driver libreswan.
Elsewhere nothing runs and nothing listens.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := slog.New(slog.NewTextHandler(os.Stderr, nil))
			raisePriority(log) // the IKE daemon inherits it
			return cable.Supervisor{Dir: dir, Log: log}.Run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&dir, "dir", ikeDir, "directory that is shared with pelago-node run")
	return cmd
}

// raisePriority is best effort: without the priority the daemon is merely slower on a busy node.
// Threads that Go starts later inherit it.
func raisePriority(log *slog.Logger) {
	if err := unix.Setpriority(unix.PRIO_PGRP, 0, niceness); err != nil {
		log.Warn("the daemon runs at ordinary priority", "error", err)
	}
}

// openWire opens the clusterset's wire, after removing what another wire has left on the node,
// since that would occupy the port.
func openWire(stateDir, ikeDir string, log *slog.Logger) node.OpenWire {
	return func(name string) (cable.Wire, error) {
		driver, err := cable.Driver(name)
		if err != nil {
			return nil, err
		}
		if err := cable.RemoveDevices(driver); err != nil {
			return nil, err
		}
		switch driver {
		case cable.WireGuardDriver:
			return cable.OpenWireGuard(cable.WireGuardOptions{Dir: filepath.Join(stateDir, "wireguard"), Log: log})
		case cable.IPsecDriver:
			return cable.NewIPsec(cable.IPsecOptions{Dir: ikeDir, Keys: filepath.Join(stateDir, "ipsec"), Log: log}), nil
		}
		return &cable.VXLAN{}, nil
	}
}
