package view

import (
	"net/netip"

	"github.com/pelago-net/pelago/dataplane/loader"
)

// openHere opens the pinned maps of this machine.
func openHere(pins string) (nodeMaps, error) {
	l, err := loader.OpenMaps(pins)
	if err != nil {
		return nil, err // not l: a nil *Loader is no nil nodeMaps
	}
	return l, nil
}

// flushHere removes flows from the pinned maps of this machine.
func flushHere(pins string, match func(local netip.Addr, cluster uint16) bool) (removed int, err error) {
	l, err := loader.OpenSweeper(pins)
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Flush(match)
}
