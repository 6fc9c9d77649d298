//go:build linux

package cable

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/strongswan/govici/vici"
)

// sa is the state of a connection, as reported by the daemon.
type sa struct {
	ike   string // state of the IKE SA, "" if none exists
	calls bool   // this side initiated it
	tunnelStatus
}

// sas reads the state of our connections, by name.
func (w *IPsec) sas() (map[string]sa, error) {
	messages, err := w.vici.list()
	if err != nil {
		return nil, err
	}
	out := map[string]sa{}
	for _, m := range messages {
		for _, name := range m.Keys() {
			if !strings.HasPrefix(name, connectionPrefix) {
				continue
			}
			s := parseSA(section(m, name), time.Now())
			// During a rekeying there may be two: the one that carries packets counts.
			if old, ok := out[name]; !ok || !old.up || s.up && s.handshake.After(old.handshake) {
				out[name] = s
			}
		}
	}
	return out, nil
}

func parseSA(m *vici.Message, now time.Time) sa {
	s := sa{ike: text(m, "state"), calls: text(m, "initiator") == "yes"}
	if a, err := netip.ParseAddr(text(m, "remote-host")); err == nil {
		port, _ := strconv.ParseUint(text(m, "remote-port"), 10, 16) // 0: unknown to the daemon
		s.endpoint = netip.AddrPortFrom(a, uint16(port))
	}
	children := section(m, "child-sas")
	for _, key := range children.Keys() {
		child := section(children, key)
		number := func(key string) uint64 {
			n, _ := strconv.ParseUint(text(child, key), 10, 64) // 0: absent in this state
			return n
		}
		s.rx, s.tx = s.rx+number("bytes-in"), s.tx+number("bytes-out")
		if state := text(child, "state"); state == "INSTALLED" || state == "REKEYING" || state == "REKEYED" {
			s.up = true
			if t := now.Add(-time.Duration(number("install-time")) * time.Second); t.After(s.handshake) {
				s.handshake = t
			}
		}
	}
	return s
}

// Status implements Wire. Bytes are counted since the last rekeying.
func (w *IPsec) Status() (map[netip.Addr]Status, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[netip.Addr]Status{}
	if w.vici == nil {
		return out, nil
	}
	states, err := w.sas()
	if errors.Is(err, errDaemon) {
		w.disconnect() // until the next Ensure
	}
	if err != nil {
		return nil, fmt.Errorf("ipsec: %w", err)
	}
	for _, p := range w.peers {
		var s Status
		for i := range MaxTunnels {
			name := connectionName(p.Fabric, i)
			state := states[name]
			s.add(state.tunnelStatus, false)
			s.Error = cmp.Or(w.vici.failure(name, state.up), s.Error)
		}
		switch {
		case s.Tunnels > 0 || s.Error != "":
		case !p.Address.IsValid():
			s.Error = "waiting for the peer to call: its address is not known"
		default:
			s.Error = fmt.Sprintf("no keys agreed on with %s yet: UDP does not pass, or no IKE daemon runs there", netip.AddrPortFrom(p.Address, p.Port))
		}
		out[p.Fabric] = s
	}
	return out, nil
}
