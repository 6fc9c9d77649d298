//go:build linux

package cable

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// rotation is the state of a rotation of the keys of all tunnels, one after the other, without
// packet loss. A WireGuard device has one private key and accepts a fabric address from one peer
// key only, so no device can receive by an old and a new key at once. Hence for each tunnel, the
// standby first:
//  1. drain: stop sending into it and publish that in Identity; peers use other tunnels, or the
//     standby. Both sides still receive.
//  2. once it has been idle for Settle: new key, published in Identity. A peer that still sends has
//     not observed step 1, perhaps because the hub is down: it holds this step up without a bound.
//  3. once every peer that had a handshake before has one with the new key, or at the deadline: the
//     next tunnel.
//
// Ensure performs the steps. The tunnels that are left are on disk.
type rotation struct {
	request string
	left    []int
	// renewing: left[0] has its new key, and peers are the keys of those that have made no
	// handshake with it since.
	renewing bool
	peers    map[wgtypes.Key]bool
	// begun is the start of this step, since that of the current idle period, bytes the peers'
	// traffic counters then.
	begun, since time.Time
	bytes        map[wgtypes.Key]int64
	// waits are the names of the peers that hold this step up, silent of those that made no
	// handshake before the deadline.
	waits, silent []string
}

// summary is Rotation.Waits.
func (r *rotation) summary() string {
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

// draining is the number of the tunnel that is being drained, -1: none.
func (r *rotation) draining() int {
	if len(r.left) == 0 || r.renewing {
		return -1
	}
	return r.left[0]
}

// watch begins an idle period.
func (r *rotation) watch(now time.Time, device *wgtypes.Device) {
	r.since, r.bytes = now, map[wgtypes.Key]int64{}
	for _, p := range device.Peers {
		r.bytes[p.PublicKey] = p.ReceiveBytes + p.TransmitBytes
	}
}

// Rotate implements Keys.
func (w *WireGuard) Rotate(request string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.startRotation(request); err != nil {
		return fmt.Errorf("rotate the keys of wireguard: %w", err)
	}
	return nil
}

func (w *WireGuard) startRotation(request string) error {
	if err := validRequest(request); err != nil || request == w.rotation.request {
		return err
	}
	if len(w.tunnels) == 0 {
		return errors.New("there is no tunnel yet: call Ensure first")
	}
	left := append([]int{MaxTunnels}, w.tunnels[:len(w.tunnels)-1]...)
	// In this order: if interrupted in between, the rotation starts again with the same request.
	if err := errors.Join(w.dir.setRotation(left), w.dir.setRequest(request)); err != nil {
		return err
	}
	w.rotation = rotation{request: request, left: left}
	w.o.Log.Info("all keys are to be changed", "request", request)
	return nil
}

// Rotation implements Keys.
func (w *WireGuard) Rotation() Rotation {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Rotation{Request: w.rotation.request, Left: len(w.rotation.left), Waits: w.rotation.summary()}
}

// rotate performs the next step of a rotation if it is due. have are the devices by tunnel, nil: it
// could not be opened.
func (w *WireGuard) rotate(now time.Time, have []*wgtypes.Device) error {
	r := &w.rotation
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
		return w.awaitHandshakes(now, device)
	}
	if busy := w.busy(now, device); len(busy) > 0 {
		r.waits = busy
		r.watch(now, device)
		return nil
	}
	if now.Sub(r.since) < w.o.Settle {
		return nil
	}
	key, err := w.dir.renew(tunnel)
	if err != nil {
		return fmt.Errorf("change the key of tunnel %d: %w", tunnel, err)
	}
	w.keys[tunnel] = key
	w.o.Log.Info("a tunnel has a new key", "device", w.name(tunnel), "publicKey", key.PublicKey().String())
	r.renewing, r.begun, r.peers, r.waits = true, now, map[wgtypes.Key]bool{}, nil
	for _, p := range device.Peers {
		if !p.LastHandshakeTime.IsZero() {
			r.peers[p.PublicKey] = true
			r.waits = append(r.waits, w.peerName(p.PublicKey))
		}
	}
	return nil
}

// awaitHandshakes ends the rotation of a tunnel when all peers have made a handshake with the new
// key, or at the deadline.
func (w *WireGuard) awaitHandshakes(now time.Time, device *wgtypes.Device) error {
	r := &w.rotation
	r.waits = nil
	for _, p := range device.Peers {
		if !p.LastHandshakeTime.IsZero() {
			delete(r.peers, p.PublicKey)
		}
		if r.peers[p.PublicKey] {
			r.waits = append(r.waits, w.peerName(p.PublicKey))
		}
	}
	if len(r.waits) > 0 {
		if now.Sub(r.begun) <= w.o.Deadline {
			return nil
		}
		w.o.Log.Warn("a tunnel has a new key and some peers made no handshake with it", "tunnel", r.left[0], "peers", r.waits)
	}
	for _, name := range r.waits {
		if !slices.Contains(r.silent, name) {
			r.silent = append(r.silent, name)
		}
	}
	r.left, r.renewing, r.begun, r.waits = r.left[1:], false, time.Time{}, nil
	return w.dir.setRotation(r.left)
}

// busy are the names of the peers with more than idle traffic since the last watch.
func (w *WireGuard) busy(now time.Time, device *wgtypes.Device) (names []string) {
	for _, p := range device.Peers {
		if !idle(uint64(p.ReceiveBytes+p.TransmitBytes-w.rotation.bytes[p.PublicKey]), now.Sub(w.rotation.since)) {
			names = append(names, w.peerName(p.PublicKey))
		}
	}
	return names
}

// peerName is the name of the peer of the last Ensure with that key.
func (w *WireGuard) peerName(key wgtypes.Key) string {
	for _, p := range w.peers {
		if slices.Contains(p.keys[:], key) {
			return p.name
		}
	}
	return "a peer with key " + key.String()
}
