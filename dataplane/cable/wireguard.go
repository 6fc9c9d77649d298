//go:build linux

package cable

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// WireGuardOptions configure the wire. Only Dir is required.
type WireGuardOptions struct {
	// Dir holds the private keys over restarts; made with mode 0700.
	Dir string
	// Prefix of the names of the devices; "": pelago-wg. The control sockets of embedded devices
	// have these names, in one directory for all network namespaces.
	Prefix string
	// Embedded: encrypt in this process even if the kernel has WireGuard.
	Embedded bool
	// Settle is how long a tunnel must have been idle before its key is changed; 0: 10 s. It must
	// exceed the time that peers take to observe a change of Identity.
	Settle time.Duration
	// Deadline bounds how long a rotation waits for the handshakes of peers with a new key; 0: 10
	// min.
	Deadline time.Duration
	// Linger is how long a retired tunnel, or a retired peer in a tunnel, still receives after its
	// last packet; 0: 30 s.
	Linger time.Duration
	Log    *slog.Logger
}

// WireGuard is the wire `wireguard`: tunnel i is a device on UDP port Listen+i, so that tunnels are
// processed on different cores; one more device, the standby, carries packets while a tunnel's key
// is changed. Methods may be called from any goroutine in the network namespace of the gateway.
type WireGuard struct {
	o    WireGuardOptions
	dir  keyDir
	mu   sync.Mutex
	keys map[int]wgtypes.Key
	// tunnels of the last Ensure by number, the standby last.
	tunnels  []int
	embedded map[int]*embedded
	// last are the configured endpoints of peers as of the last Ensure, by tunnel.
	last     map[int]endpoints
	peers    []wgPeer
	rotation rotation
	listen   uint16 // of the last Ensure
	// retired tunnels, and retired peers of the other tunnels.
	retired     retired[int]
	retiredKeys retired[tunnelKey]
}

// wireGuardPrefix is the prefix of the names of the devices.
const wireGuardPrefix = "pelago-wg"

// OpenWireGuard reads the state of the last rotation. Keys and devices are made by Ensure.
func OpenWireGuard(o WireGuardOptions) (*WireGuard, error) {
	o.Prefix = cmp.Or(o.Prefix, wireGuardPrefix)
	o.Settle = cmp.Or(o.Settle, 10*time.Second)
	o.Deadline = cmp.Or(o.Deadline, 10*time.Minute)
	o.Linger = cmp.Or(o.Linger, linger)
	o.Log = cmp.Or(o.Log, slog.Default())
	if len(o.Prefix) > 14 {
		return nil, fmt.Errorf("device prefix %q: at most 14 characters", o.Prefix)
	}
	w := &WireGuard{
		o: o, dir: keyDir(o.Dir), keys: map[int]wgtypes.Key{}, embedded: map[int]*embedded{}, last: map[int]endpoints{},
		retired: retired[int]{}, retiredKeys: retired[tunnelKey]{},
	}
	var err error
	w.rotation.left, w.rotation.request, err = w.dir.rotation()
	if err != nil {
		return nil, err
	}
	return w, nil
}

var _ Wire = (*WireGuard)(nil)

// Capabilities implements Wire.
func (w *WireGuard) Capabilities() Capabilities { return Capabilities{Queues: w, Keys: w} }

func (w *WireGuard) name(tunnel int) string { return w.o.Prefix + strconv.Itoa(tunnel) }

// Ensure implements Wire. It also performs the next step of a rotation of keys, so it must be
// called every few seconds during one.
func (w *WireGuard) Ensure(local Local, peers []Peer) (Devices, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	local, err := local.validate()
	if err != nil {
		return Devices{}, fmt.Errorf("wireguard: %w", err)
	}
	peers, twins := distinctFabric(local, peers)
	client, err := wgctrl.New()
	if err != nil {
		return Devices{}, fmt.Errorf("wireguard: open the control interface: %w", err)
	}
	defer client.Close()

	errs := []error{twins}
	if err := w.loadKeys(&local); err != nil {
		if len(w.tunnels) == 0 {
			return Devices{}, fmt.Errorf("wireguard: %w", err)
		}
		errs = append(errs, err)
	}
	w.rotation.left = slices.DeleteFunc(w.rotation.left, func(i int) bool { return !slices.Contains(w.tunnels, i) })
	have, err := w.open(client, local)
	now := time.Now()
	errs = append(errs, err, w.rotate(now, have))
	if tunnel := have[0]; w.listen == 0 && tunnel != nil {
		w.listen = uint16(tunnel.ListenPort) // of the process before
	}
	var own []wgtypes.Key
	for _, i := range w.tunnels {
		own = append(own, w.keys[i])
	}
	w.peers, err = wgPeers(local, peers, own)
	errs = append(errs, err)

	devices := Devices{MTU: local.MTU, Fleeting: len(w.embedded) > 0, Peers: map[netip.Addr][]int{}}
	index := map[int]int{}
	for _, i := range w.tunnels {
		if have[i] == nil {
			continue // the error is in errs
		}
		n, err := w.ensureTunnel(client, have, local, i, now)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		index[i] = n
		devices.Ifindexes = append(devices.Ifindexes, n)
	}
	routes := map[netip.Addr][]int{}
	for _, p := range w.peers {
		ready := func(i int) bool { return have[i] != nil && handshaken(have[i], p.keys[i]) }
		for _, i := range usable(p, local.Tunnels, w.rotation.draining(), ready) {
			if n, ok := index[i]; ok {
				devices.Peers[p.fabric] = append(devices.Peers[p.fabric], n)
			}
		}
		if of := devices.Peers[p.fabric]; len(of) > 0 {
			routes[p.fabric] = of
		}
	}
	errs = append(errs, ensureRoutes(local.Fabric, routes, devices.Ifindexes))

	linger := w.o.Linger
	if local.Listen != w.listen { // retired tunnels may occupy the new ports
		linger = 0
		clear(w.retired)
	}
	w.listen = local.Listen
	lingering, indexes, err := retireTunnels(w.retired, local.Tunnels, now, linger, w.name, w.remove)
	errs = append(errs, err)
	devices.Ifindexes = append(devices.Ifindexes, indexes...)
	for _, i := range lingering {
		devices.Ports = append(devices.Ports, local.Listen+uint16(i))
	}
	if err := errors.Join(errs...); err != nil {
		return devices, fmt.Errorf("wireguard: %w", err)
	}
	return devices, nil
}

// loadKeys sets the tunnels and their keys. From the first tunnel whose key cannot be loaded,
// tunnels are left out: they are new, and the others carry packets. Without key 0 or the standby
// key the previous tunnels stay: Identity never publishes the zero key.
func (w *WireGuard) loadKeys(local *Local) error {
	load := func(i int) error {
		if _, loaded := w.keys[i]; loaded {
			return nil
		}
		key, err := w.dir.load(i)
		if err == nil {
			w.keys[i] = key
		}
		return err
	}
	err := load(MaxTunnels)
	if err != nil {
		return err
	}
	var tunnels []int
	for i := range local.Tunnels {
		if err = load(i); err != nil {
			break
		}
		tunnels = append(tunnels, i)
	}
	if len(tunnels) == 0 {
		return err
	}
	local.Tunnels = len(tunnels)
	w.tunnels = append(tunnels, MaxTunnels)
	return err
}

// Identity implements Wire. Before the first Ensure it is empty.
func (w *WireGuard) Identity() (map[string]string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.tunnels) == 0 {
		return map[string]string{}, nil
	}
	var keys []string
	for _, i := range w.tunnels[:len(w.tunnels)-1] {
		keys = append(keys, w.keys[i].PublicKey().String())
	}
	id := map[string]string{
		IdentityPublicKey:  strings.Join(keys, ","),
		IdentityStandbyKey: w.keys[MaxTunnels].PublicKey().String(),
	}
	if len(keys) > 1 {
		id[IdentityTunnels] = strconv.Itoa(len(keys))
	}
	if d := w.rotation.draining(); d >= 0 {
		id[IdentityDraining] = strconv.Itoa(d)
	}
	return id, nil
}

// Status implements Wire.
func (w *WireGuard) Status() (map[netip.Addr]Status, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	client, err := wgctrl.New()
	if err != nil {
		return nil, fmt.Errorf("wireguard: open the control interface: %w", err)
	}
	defer client.Close()
	have := map[int][]wgtypes.Peer{}
	for _, i := range w.tunnels {
		d, err := w.readDevice(client, i)
		if errors.Is(err, os.ErrNotExist) {
			continue // Ensure returned the error
		}
		if err != nil {
			return nil, fmt.Errorf("wireguard: %w", err)
		}
		have[i] = d.Peers
	}
	now := time.Now()
	out := map[netip.Addr]Status{}
	for _, p := range w.peers {
		var s Status
		for _, i := range w.tunnels {
			for _, h := range have[i] {
				if h.PublicKey == p.keys[i] {
					s.add(wgStatus(h, now), i == MaxTunnels)
				}
			}
		}
		s.Error = problem(s, now)
		out[p.fabric] = s
	}
	return out, nil
}

func wgStatus(h wgtypes.Peer, now time.Time) tunnelStatus {
	return tunnelStatus{
		handshake: h.LastHandshakeTime, endpoint: endpoint(h), rx: uint64(h.ReceiveBytes), tx: uint64(h.TransmitBytes),
		up: now.Sub(h.LastHandshakeTime) < sessionLife,
	}
}

// problem is the likely cause of a missing handshake.
func problem(s Status, now time.Time) string {
	switch {
	case s.Handshake.IsZero() && !s.Endpoint.IsValid():
		return "waiting for the peer to call: its address is not known"
	case s.Handshake.IsZero():
		return fmt.Sprintf("no handshake with %s yet: UDP does not pass, the peer does not know this gateway's key, or the clusterset's PSK is not the same there", s.Endpoint)
	case now.Sub(s.Handshake) > sessionLife:
		return fmt.Sprintf("no handshake with %s for %s: the peer is gone, or UDP does not pass any more", s.Endpoint, now.Sub(s.Handshake).Truncate(time.Second))
	}
	return ""
}

// Remove implements Wire.
func (w *WireGuard) Remove() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var errs []error
	for i := range MaxTunnels + 1 {
		errs = append(errs, w.remove(i))
	}
	w.tunnels, w.peers, w.listen = nil, nil, 0
	clear(w.retired)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("wireguard: %w", err)
	}
	return nil
}

// Waiting implements Queues. Packets of kernel devices are not queued in this process.
func (w *WireGuard) Waiting() (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, e := range w.embedded {
		waiting, err := e.waiting()
		if err != nil {
			return false, fmt.Errorf("wireguard: read the queues of %s: %w", w.name(i), err)
		}
		if waiting {
			return true, nil
		}
	}
	return false, nil
}

// Close implements Wire. Kernel devices stay; embedded ones end with the process.
func (w *WireGuard) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, e := range w.embedded {
		e.close()
		delete(w.embedded, i)
	}
	return nil
}
