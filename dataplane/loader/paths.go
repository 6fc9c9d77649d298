package loader

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/liveness"
)

// Paths reads the state of every path, by the peer's outer address.
func (l *Loader) Paths() (map[netip.Addr]liveness.Path, error) {
	now := bootClock()
	return readMap(l.objs.Paths, addr, func(v bpf.PelagoPath) liveness.Path { return liveness.Decode(v, now) })
}

// Path reads the state of one path; ok reports whether the path exists.
func (l *Loader) Path(peer netip.Addr) (p liveness.Path, ok bool, err error) {
	var v bpf.PelagoPath
	if err := l.objs.Paths.Lookup(be32(peer), &v); errors.Is(err, ebpf.ErrKeyNotExist) {
		return liveness.Path{}, false, nil
	} else if err != nil {
		return liveness.Path{}, false, fmt.Errorf("read map paths: %w", err)
	}
	return liveness.Decode(v, bootClock()), true, nil
}

// PathsTo reads the state of some paths, one by one: at a gateway the map has one for each node of
// the cluster. A path that does not exist is left out.
func (l *Loader) PathsTo(peers []netip.Addr) (map[netip.Addr]liveness.Path, error) {
	out := make(map[netip.Addr]liveness.Path, len(peers))
	now := bootClock()
	var v bpf.PelagoPath
	for _, peer := range peers {
		err := l.objs.Paths.Lookup(be32(peer), &v)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read map paths: %w", err)
		}
		out[peer] = liveness.Decode(v, now)
	}
	return out, nil
}

// applyPaths creates and removes entries. Entries that stay keep what the programs have written.
func (l *Loader) applyPaths(want map[netip.Addr]bool) error {
	if maps.Equal(l.paths, want) && l.paths != nil {
		return nil
	}
	have, err := readMap(l.objs.Paths, addr, func(v bpf.PelagoPath) bool { return v.Probed != 0 })
	if err != nil {
		return err
	}
	var failed failures
	for peer, probed := range want {
		if old, ok := have[peer]; ok && old == probed {
			continue
		}
		failed.add(put(l.objs.Paths, be32(peer), bpf.PelagoPath{Probed: uint32(flag(probed))}))
	}
	for peer := range have {
		if _, ok := want[peer]; !ok {
			failed.add(remove(l.objs.Paths, be32(peer)))
		}
	}
	failed.add(l.applyLargeProbes(want))
	l.paths = want // Apply resets it after an error
	return failed.err()
}

// confirm advertises that the tables are up to date; peers prefer such gateways.
func (l *Loader) confirm() error { return l.advertise(bpf.PelagoAdvertisement{Confirm: 1}) }

// Reach replaces what this gateway advertises about the remote clusters: which it does not reach,
// and which only over lossy paths. The programs maintain this for the clusters that they send to;
// Reach corrects it for those without traffic.
func (l *Loader) Reach(unreachable, lossy map[uint16]bool) error {
	return l.advertise(bpf.PelagoAdvertisement{Replace: 1, Unreachable: clustersOf(unreachable), Lossy: clustersOf(lossy)})
}

func clustersOf(in map[uint16]bool) (out dataplane.ClusterSet) {
	for c := range in {
		if in[c] && c < dataplane.MaxClusters {
			out.Add(c)
		}
	}
	return out
}

// advertise runs the program that changes the map: user space cannot change single bits of it.
func (l *Loader) advertise(a bpf.PelagoAdvertisement) error {
	if l.objs.Advertise == nil {
		return errors.New("change what this node advertises: the programs are not loaded; use Open")
	}
	result, err := l.objs.Advertise.Run(&ebpf.RunOptions{Context: &a})
	if err == nil && result != 0 {
		err = fmt.Errorf("result %d", int32(result))
	}
	if err != nil {
		return fmt.Errorf("run advertise: %w", err)
	}
	return nil
}

// Leave makes this gateway reply to probes that it is not ready, so that peers use others; it keeps
// switching. The next Apply overwrites it.
func (l *Loader) Leave() error {
	var s bpf.PelagoNodeSettings
	if err := l.objs.Settings.Lookup(uint32(0), &s); err != nil {
		return fmt.Errorf("read map settings: %w", err)
	}
	s.Leaving = 1
	l.Refresh()
	return put(l.objs.Settings, uint32(0), s)
}

// Marks returns the mark with which packets to our ports may leave, and the mark that turns a frame
// on pelago0 into a probe. Both are 0 before the first Apply.
func (l *Loader) Marks() (own, probe uint32, err error) {
	var s bpf.PelagoNodeSettings
	if err := l.objs.Settings.Lookup(uint32(0), &s); err != nil {
		return 0, 0, fmt.Errorf("read map settings: %w", err)
	}
	return s.Cookie, s.ProbeMark, nil
}
