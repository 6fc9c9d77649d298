package cable

import (
	"fmt"
	"log/slog"
	"time"

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
//  2. once nothing but keepalives has come or gone for a while: new key, told through Identity. Others take it up.
//  3. once there was a handshake with every peer that had one before: on to the next tunnel.
//
// Steps are taken in Ensure. What is left to do is on disk.
type rotation struct {
	left []int
	// renewing: the key of left[0] is new, and peers is who must come back.
	renewing bool
	peers    map[wgtypes.Key]bool
	// begun is when this step began, since the begin of the current quiet period, bytes what peers had sent and got then.
	begun, since time.Time
	bytes        map[wgtypes.Key]int64
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
	late := now.Sub(r.begun) > deadline
	if r.renewing {
		for _, p := range device.Peers {
			if !p.LastHandshakeTime.IsZero() {
				delete(r.peers, p.PublicKey)
			}
		}
		waiting := 0
		for _, p := range device.Peers {
			if r.peers[p.PublicKey] {
				waiting++
			}
		}
		if waiting > 0 && !late {
			return nil
		}
		if waiting > 0 {
			log.Warn("a tunnel has a new key and some peers made no handshake with it", "tunnel", tunnel, "peers", waiting)
		}
		r.left, r.renewing, r.begun = r.left[1:], false, time.Time{}
		return store(r.left)
	}
	if now.Sub(r.since) < settle {
		return nil
	}
	if busy := r.busy(now, device); busy > 0 {
		if !late {
			r.watch(now, device)
			return nil
		}
		log.Warn("a tunnel gets its new key with packets still on it", "tunnel", tunnel, "peers", busy)
	}
	if err := renew(tunnel); err != nil {
		return fmt.Errorf("change the key of tunnel %d: %w", tunnel, err)
	}
	r.renewing, r.begun, r.peers = true, now, map[wgtypes.Key]bool{}
	for _, p := range device.Peers {
		r.peers[p.PublicKey] = !p.LastHandshakeTime.IsZero()
	}
	return nil
}

func (r *rotation) watch(now time.Time, device *wgtypes.Device) {
	r.since, r.bytes = now, map[wgtypes.Key]int64{}
	for _, p := range device.Peers {
		r.bytes[p.PublicKey] = p.ReceiveBytes + p.TransmitBytes
	}
}

// busy counts the peers with traffic since the last watch.
func (r *rotation) busy(now time.Time, device *wgtypes.Device) (n int) {
	allowed := int64(idleAtOnce + idlePerSecond*now.Sub(r.since).Seconds())
	for _, p := range device.Peers {
		if p.ReceiveBytes+p.TransmitBytes-r.bytes[p.PublicKey] > allowed {
			n++
		}
	}
	return n
}
