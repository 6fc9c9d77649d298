package cable

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"
	"unicode"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// Limits on what an idle tunnel carries: keepalives of 32 bytes in each direction, handshakes.
const (
	idlePerSecond = 80 // bytes
	idleAtOnce    = 600
)

// rotation changes the keys of all tunnels, one after the other, without losing a packet. A WireGuard device has one key,
// and takes a fabric address from one peer key only, so no device can take packets for an old and a new key at once. Hence for
// each tunnel, the standby first:
//  1. drain: stop sending into it, and tell others through Identity to do so; they use the other tunnels, or the standby.
//     Both sides still take packets from it.
//  2. once nothing but keepalives has come or gone for a while: new key, told through Identity. Others take it up. Who sends
//     into the tunnel all the same has not heard, the hub may be away: it is waited for, however long.
//  3. once there was a handshake with every peer that had one before: on to the next tunnel. Peers that are gone are waited
//     for until the deadline.
//
// Steps are taken in Ensure. What is left to do is on disk.
type rotation struct {
	request string
	left    []int
	// renewing: the key of left[0] is new, and peers is who must come back.
	renewing bool
	peers    map[wgtypes.Key]bool
	// begun is when this step began, since the begin of the current quiet period, bytes what peers had sent and got then.
	begun, since time.Time
	bytes        map[wgtypes.Key]int64
	// names of peers by key. waits are those that hold this step up, as of the last look; silent those without whom a step ended.
	names         map[wgtypes.Key]string
	waits, silent []string
}

// checkRequest says why a request cannot be kept in a file of one line.
func checkRequest(request string) error {
	if request == "" || len(request) > 64 || strings.ContainsFunc(request, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return fmt.Errorf("request %q: use 1 to 64 printable characters", request)
	}
	if strings.TrimSpace(request) != request {
		return errors.New("a request neither begins nor ends with a space")
	}
	return nil
}

// words say what the rotation waits for, at its end who was not waited for.
func (r *rotation) words() string {
	who := strings.Join(r.waits, ", ")
	switch {
	case len(r.left) == 0 && len(r.silent) > 0:
		return "no handshake with the new keys was made by " + strings.Join(r.silent, ", ")
	case len(r.left) == 0:
		return ""
	case r.renewing && who == "":
		return fmt.Sprintf("tunnel %d has its new key", r.left[0])
	case r.renewing:
		return fmt.Sprintf("tunnel %d has its new key, no handshake with it yet by %s", r.left[0], who)
	case who != "":
		return fmt.Sprintf("tunnel %d is being emptied, packets still pass to or from %s", r.left[0], who)
	}
	return fmt.Sprintf("tunnel %d is being emptied", r.left[0])
}

func (r *rotation) name(key wgtypes.Key) string {
	if n := r.names[key]; n != "" {
		return n
	}
	return "a peer with key " + key.String()
}

// without notes who was not waited for.
func (r *rotation) without(who []string) {
	for _, w := range who {
		if !slices.Contains(r.silent, w) {
			r.silent = append(r.silent, w)
		}
	}
}

// draining is the number of the tunnel that is being emptied, -1: none.
func (r *rotation) draining() int {
	if len(r.left) == 0 || r.renewing {
		return -1
	}
	return r.left[0]
}

// next takes the next step if it is time. have are the devices by number (nil: it is not there now), renew makes the new
// key of a tunnel, store keeps what is left to do.
func (r *rotation) next(now time.Time, settle, deadline time.Duration, have []*wgtypes.Device, log *slog.Logger,
	renew func(tunnel int) error, store func(left []int) error) error {
	if len(r.left) == 0 || have[r.left[0]] == nil {
		return nil
	}
	tunnel, device := r.left[0], have[r.left[0]]
	if r.begun.IsZero() {
		r.begun = now
		r.watch(now, device)
		return nil
	}
	if r.renewing {
		late := now.Sub(r.begun) > deadline
		for _, p := range device.Peers {
			if !p.LastHandshakeTime.IsZero() {
				delete(r.peers, p.PublicKey)
			}
		}
		r.waits = nil
		for _, p := range device.Peers {
			if r.peers[p.PublicKey] {
				r.waits = append(r.waits, r.name(p.PublicKey))
			}
		}
		if len(r.waits) > 0 && !late {
			return nil
		}
		if len(r.waits) > 0 {
			log.Warn("a tunnel has a new key and some peers made no handshake with it", "tunnel", tunnel, "peers", r.waits)
			r.without(r.waits)
		}
		r.left, r.renewing, r.begun, r.waits = r.left[1:], false, time.Time{}, nil
		return store(r.left)
	}
	if busy := r.busy(now, device); len(busy) > 0 {
		r.waits = busy
		r.watch(now, device)
		return nil
	}
	if now.Sub(r.since) < settle {
		return nil
	}
	if err := renew(tunnel); err != nil {
		return fmt.Errorf("change the key of tunnel %d: %w", tunnel, err)
	}
	r.renewing, r.begun, r.peers = true, now, map[wgtypes.Key]bool{}
	r.waits = nil
	for _, p := range device.Peers {
		if r.peers[p.PublicKey] = !p.LastHandshakeTime.IsZero(); r.peers[p.PublicKey] {
			r.waits = append(r.waits, r.name(p.PublicKey))
		}
	}
	return nil
}

func (r *rotation) watch(now time.Time, device *wgtypes.Device) {
	r.since, r.bytes = now, map[wgtypes.Key]int64{}
	for _, p := range device.Peers {
		r.bytes[p.PublicKey] = p.ReceiveBytes + p.TransmitBytes
	}
}

// busy are the peers with traffic since the last watch.
func (r *rotation) busy(now time.Time, device *wgtypes.Device) (names []string) {
	allowed := int64(idleAtOnce + idlePerSecond*now.Sub(r.since).Seconds())
	for _, p := range device.Peers {
		if p.ReceiveBytes+p.TransmitBytes-r.bytes[p.PublicKey] > allowed {
			names = append(names, r.name(p.PublicKey))
		}
	}
	return names
}
