//go:build !linux

package view

import (
	"fmt"
	"net/netip"
	"runtime"
)

func openHere(string) (nodeMaps, error) {
	return nil, fmt.Errorf("read the maps of this machine: %s has none: run this on a Linux node, or leave out --local and name a cluster by --context", runtime.GOOS)
}

func flushHere(pins string, _ func(netip.Addr, uint16) bool) (int, error) {
	_, err := openHere(pins)
	return 0, err
}
