package loader

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"

	"github.com/pelago-net/pelago/bpf"
)

// Path is what the probes of one remote gateway have shown.
type Path struct {
	Probes, Replies uint64
	// Seen is the age of the last valid answer; RTT what it measured. Meaningless while Replies is 0.
	Seen, RTT time.Duration
	// Ready and Generation are what the far gateway told: whether its tables are complete, and how often they changed.
	Ready      bool
	Generation uint32
}

// StartProbe notes a probe that is about to be sent to a remote gateway and returns what goes into it. The answer to
// an earlier probe is no longer taken from now on.
func (l *Loader) StartProbe(gateway netip.Addr, nonce uint64) (sent uint64, err error) {
	key := be32(gateway)
	var p bpf.PelagoPath
	if err := l.objs.Paths.Lookup(key, &p); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return 0, fmt.Errorf("read map paths: %w", err)
	}
	p.Nonce, p.Sent = nonce, uint64(bootClock())
	p.Probes++
	// The program may write an answer between the two calls; it is then counted as lost. Probes are a second apart.
	return p.Sent, put(l.objs.Paths, key, p)
}

// Paths reads the state of every path.
func (l *Loader) Paths() (map[netip.Addr]Path, error) {
	now := uint64(bootClock())
	return readMap(l.objs.Paths, addr, func(v bpf.PelagoPath) Path {
		return Path{
			Probes: v.Probes, Replies: v.Replies, Seen: time.Duration(now - v.Seen), RTT: time.Duration(v.Rtt),
			Ready: v.Ready != 0, Generation: v.Generation,
		}
	})
}

// ForgetPaths removes the paths that keep does not want: of gateways that are gone.
func (l *Loader) ForgetPaths(keep func(netip.Addr) bool) error {
	paths, err := l.Paths()
	if err != nil {
		return err
	}
	var errs []error
	for gateway := range paths {
		if !keep(gateway) {
			errs = append(errs, remove(l.objs.Paths, be32(gateway)))
		}
	}
	return errors.Join(errs...)
}
