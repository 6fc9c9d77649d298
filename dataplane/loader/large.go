package loader

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane/liveness"
)

// LargeProbe reads the newest large probe to a peer; ok is false where the peer is not probed.
func (l *Loader) LargeProbe(peer netip.Addr) (p liveness.LargeProbe, ok bool, err error) {
	var v bpf.PelagoLargeProbe
	if err := l.objs.LargeProbes.Lookup(be32(peer), &v); errors.Is(err, ebpf.ErrKeyNotExist) {
		return liveness.LargeProbe{}, false, nil
	} else if err != nil {
		return liveness.LargeProbe{}, false, fmt.Errorf("read map large_probes: %w", err)
	}
	return liveness.LargeProbe{
		Size: int(v.Size), Answered: v.Size > 0 && v.Nonce[0] == 0, Sent: time.Duration(max(0, int64(uint64(bootClock())-v.Sent))),
		GSOHanded: v.GsoHanded, GSOPassed: v.GsoPassed,
	}, true, nil
}

// applyLargeProbes creates and removes entries, one for each peer that is probed (want is true).
func (l *Loader) applyLargeProbes(want map[netip.Addr]bool) error {
	have, err := readMap(l.objs.LargeProbes, addr, func(bpf.PelagoLargeProbe) bool { return true })
	if err != nil {
		return err
	}
	var errs []error
	for peer, probed := range want {
		if probed && !have[peer] {
			errs = append(errs, put(l.objs.LargeProbes, be32(peer), bpf.PelagoLargeProbe{}))
		}
	}
	for peer := range have {
		if !want[peer] {
			errs = append(errs, remove(l.objs.LargeProbes, be32(peer)))
		}
	}
	return errors.Join(errs...)
}
