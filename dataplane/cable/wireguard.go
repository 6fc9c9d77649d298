package cable

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// WireGuardOptions say how the wire is made. Only Dir must be set.
type WireGuardOptions struct {
	// Dir holds the private keys over restarts; made with mode 0700.
	Dir string
	// Prefix begins the names of the devices; "": pelago-wg. The control sockets of embedded devices have these names, in
	// one directory for all network namespaces.
	Prefix string
	// Embedded: encrypt inside this process also where the kernel could.
	Embedded bool
	// Settle is how long a tunnel must have been quiet before its key is changed; 0: 10 s. It must be longer than others take to
	// read a change of Identity.
	Settle time.Duration
	// Deadline is when a rotation goes on without those who make no handshake with a new key; 0: 10 min.
	Deadline time.Duration
	// Linger is how long a tunnel, or a peer in it, that is wanted no longer still takes packets; 0: 30 s.
	Linger time.Duration
	Log    *slog.Logger
}

// WireGuard is the wire `wireguard`: tunnel i is a device of its own on UDP port Listen+i, so that its packets use a core
// of their own; one more device stands by for the time when a tunnel's key changes. Methods may be called from any
// goroutine in the network namespace of the gateway.
type WireGuard struct {
	o    WireGuardOptions
	dir  keyDir
	mu   sync.Mutex
	keys map[int]wgtypes.Key
	// tunnels in use, as of the last Ensure: their numbers, the standby last.
	tunnels  []int
	embedded map[int]*embedded
	last     map[int]wanted
	peers    []wgPeer
	rotation rotation
	listen   uint16 // of the last Ensure
	// surplus are tunnels that are wanted no longer; leavers are peers that want one of the others no longer.
	surplus parting[int]
	leavers parting[leaver]
}

// wireGuardPrefix begins the names of the devices.
const wireGuardPrefix = "pelago-wg"

// OpenWireGuard reads the keys that are there. Devices are made by Ensure.
func OpenWireGuard(o WireGuardOptions) (*WireGuard, error) {
	if o.Prefix == "" {
		o.Prefix = wireGuardPrefix
	}
	if len(o.Prefix) > 14 {
		return nil, fmt.Errorf("device prefix %q: at most 14 characters", o.Prefix)
	}
	if o.Settle == 0 {
		o.Settle = 10 * time.Second
	}
	if o.Deadline == 0 {
		o.Deadline = 10 * time.Minute
	}
	if o.Linger == 0 {
		o.Linger = linger
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	w := &WireGuard{
		o: o, dir: keyDir(o.Dir), keys: map[int]wgtypes.Key{}, embedded: map[int]*embedded{}, last: map[int]wanted{},
		surplus: parting[int]{}, leavers: parting[leaver]{},
	}
	for i := range MaxTunnels + 1 {
		if _, err := os.Stat(w.dir.file(i)); err != nil {
			continue
		}
		key, err := w.dir.load(i)
		if err != nil {
			return nil, err
		}
		w.keys[i] = key
	}
	var err error
	if w.rotation.left, err = w.dir.rotation(); err != nil {
		return nil, err
	}
	if w.rotation.request, err = w.dir.request(); err != nil {
		return nil, err
	}
	return w, nil
}

var (
	_ Wire  = (*WireGuard)(nil)
	_ Keyed = (*WireGuard)(nil)
)

func (w *WireGuard) name(tunnel int) string { return w.o.Prefix + strconv.Itoa(tunnel) }

// Ensure implements Wire. A rotation of keys goes on by being called: at least every few seconds while one runs.
func (w *WireGuard) Ensure(local Local, peers []Peer) (Devices, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	local, err := local.among(peers)
	if err != nil {
		return Devices{}, fmt.Errorf("wireguard: %w", err)
	}
	client, err := wgctrl.New()
	if err != nil {
		return Devices{}, fmt.Errorf("wireguard: open the control interface: %w", err)
	}
	defer client.Close()

	w.tunnels = w.tunnels[:0]
	for i := range local.Tunnels {
		w.tunnels = append(w.tunnels, i)
	}
	w.tunnels = append(w.tunnels, MaxTunnels)
	w.rotation.left = slices.DeleteFunc(w.rotation.left, func(i int) bool { return !slices.Contains(w.tunnels, i) })
	have, err := w.open(client, local)
	now := time.Now()
	w.rotation.names = w.peerNames()
	errs := []error{err, w.rotation.next(now, w.o.Settle, w.o.Deadline, have, w.o.Log, w.renew, w.dir.setRotation)}
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
			continue // open said why
		}
		n, err := w.ensureTunnel(client, have, local, i, now)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		index[i] = n
		devices.Ifindexes = append(devices.Ifindexes, n)
	}
	routes := map[netip.Addr]int{}
	for _, p := range w.peers {
		ready := func(i int) bool { return have[i] != nil && handshaken(have[i], p.keys[i]) }
		for _, i := range usable(p, local.Tunnels, w.rotation.draining(), ready) {
			if n, ok := index[i]; ok {
				devices.Peers[p.fabric] = append(devices.Peers[p.fabric], n)
			}
		}
		if of := devices.Peers[p.fabric]; len(of) > 0 {
			routes[p.fabric] = of[0]
		}
	}
	errs = append(errs, ensureRoutes(local.Fabric, routes, devices.Ifindexes), w.removeSurplus(local, now, &devices))
	if err := errors.Join(errs...); err != nil {
		return devices, fmt.Errorf("wireguard: %w", err)
	}
	return devices, nil
}

// open makes the devices that are missing and reads all of them, by number. Those that cannot be made are nil: the other
// tunnels carry on.
func (w *WireGuard) open(client *wgctrl.Client, local Local) ([]*wgtypes.Device, error) {
	have := make([]*wgtypes.Device, MaxTunnels+1)
	var errs []error
	for _, i := range w.tunnels {
		d, err := w.openTunnel(client, i, local)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		have[i] = d
	}
	return have, errors.Join(errs...)
}

func (w *WireGuard) openTunnel(client *wgctrl.Client, i int, local Local) (*wgtypes.Device, error) {
	if _, ok := w.keys[i]; !ok {
		key, err := w.dir.load(i)
		if err != nil {
			return nil, err
		}
		w.keys[i] = key
	}
	if err := w.ensureLink(i, local.Listen+uint16(i), local.MTU); err != nil {
		return nil, err
	}
	d, err := client.Device(w.name(i))
	if err != nil {
		return nil, fmt.Errorf("read device %s: %w", w.name(i), err)
	}
	return d, nil
}

// ensureLink is all in which a device of the kernel and an embedded one differ.
func (w *WireGuard) ensureLink(i int, port uint16, mtu int) error {
	if e := w.embedded[i]; e != nil {
		select {
		case <-e.device.Wait(): // somebody deleted the device
		default:
			if e.port == port {
				return nil
			}
		}
		e.close()
		delete(w.embedded, i)
	}
	if !w.o.Embedded {
		if err := kernelLink(w.name(i)); !noKernelWireGuard(err) {
			return err
		}
	}
	e, err := embed(w.name(i), port, mtu, w.o.Log)
	if err != nil {
		return err
	}
	w.embedded[i] = e
	return nil
}

// ensureTunnel brings one device to what is wanted and returns its index. have[i] is as the device is afterwards.
func (w *WireGuard) ensureTunnel(client *wgctrl.Client, have []*wgtypes.Device, local Local, i int, now time.Time) (int, error) {
	t := tunnel{number: i, key: w.keys[i], port: local.Listen + uint16(i), peers: w.peers, leavers: w.keepLeavers(i, have[i].Peers, now)}
	if c, differs := plan(have[i], t, w.last[i], now); differs {
		err := client.ConfigureDevice(w.name(i), c)
		if err != nil {
			return 0, fmt.Errorf("configure device %s: %w", w.name(i), portTaken(err, t.port))
		}
		if have[i], err = client.Device(w.name(i)); err != nil {
			return 0, fmt.Errorf("read device %s: %w", w.name(i), err)
		}
	}
	w.last[i] = wanted{}
	for _, p := range w.peers {
		w.last[i][p.keys[i]] = p.at(i)
	}
	link, err := settle(w.name(i), local.MTU)
	if err != nil {
		return 0, portTaken(err, t.port)
	}
	if i == 0 {
		if err := ensureAddress(link, local.Fabric); err != nil {
			return 0, err
		}
	}
	return link.Attrs().Index, nil
}

// portTaken adds the remedy to the error that somebody else has the UDP port.
func portTaken(err error, port uint16) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("UDP port %d: %w: stop the program that listens there, or join with another --nattport", port, err)
	}
	return err
}

func (w *WireGuard) remove(i int) error {
	if e := w.embedded[i]; e != nil {
		e.close()
		delete(w.embedded, i)
	}
	delete(w.last, i)
	return removeLink(w.name(i))
}

func handshaken(d *wgtypes.Device, key wgtypes.Key) bool {
	return slices.ContainsFunc(d.Peers, func(p wgtypes.Peer) bool {
		return p.PublicKey == key && !p.LastHandshakeTime.IsZero()
	})
}

func (w *WireGuard) renew(tunnel int) error {
	key, err := w.dir.renew(tunnel)
	if err != nil {
		return err
	}
	w.keys[tunnel] = key
	w.o.Log.Info("a tunnel has a new key", "device", w.name(tunnel), "publicKey", key.PublicKey().String())
	return nil
}

// Rotate implements Keyed. See rotation.
func (w *WireGuard) Rotate(request string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := checkRequest(request); err != nil {
		return fmt.Errorf("rotate the keys of wireguard: %w", err)
	}
	if request == w.rotation.request {
		return nil
	}
	if len(w.tunnels) == 0 {
		return errors.New("rotate the keys of wireguard: there is no tunnel yet: call Ensure first")
	}
	left := append([]int{MaxTunnels}, w.tunnels[:len(w.tunnels)-1]...)
	// In this order: what is interrupted between the two begins anew.
	if err := errors.Join(w.dir.setRotation(left), w.dir.setRequest(request)); err != nil {
		return fmt.Errorf("rotate the keys of wireguard: %w", err)
	}
	w.rotation = rotation{request: request, left: left}
	w.o.Log.Info("all keys are to be changed", "request", request)
	return nil
}

// Rotation implements Keyed.
func (w *WireGuard) Rotation() Rotation {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Rotation{Request: w.rotation.request, Left: len(w.rotation.left), Waits: w.rotation.words()}
}

// peerNames are the peers of the last Ensure by their keys.
func (w *WireGuard) peerNames() map[wgtypes.Key]string {
	out := map[wgtypes.Key]string{}
	for _, p := range w.peers {
		for _, k := range p.keys {
			out[k] = p.name
		}
	}
	return out
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
	out := map[netip.Addr]Status{}
	for _, i := range w.tunnels {
		d, err := client.Device(w.name(i))
		if errors.Is(err, os.ErrNotExist) {
			continue // Ensure could not make it, and said why
		}
		if err != nil {
			return nil, fmt.Errorf("wireguard: read device %s: %w", w.name(i), err)
		}
		for _, p := range w.peers {
			for _, h := range d.Peers {
				if h.PublicKey == p.keys[i] {
					out[p.fabric] = addTunnel(out[p.fabric], h, i < MaxTunnels)
				}
			}
		}
	}
	for _, p := range w.peers {
		s := out[p.fabric]
		s.Error = complaint(s, time.Now())
		out[p.fabric] = s
	}
	return out, nil
}

func addTunnel(s Status, h wgtypes.Peer, counts bool) Status {
	s.RxBytes += uint64(h.ReceiveBytes)
	s.TxBytes += uint64(h.TransmitBytes)
	if !h.LastHandshakeTime.IsZero() && time.Since(h.LastHandshakeTime) < sessionLife && counts {
		s.Tunnels++
	}
	if e := endpoint(h); e.IsValid() && (!s.Endpoint.IsValid() || h.LastHandshakeTime.After(s.Handshake) && counts) {
		s.Endpoint = e
	}
	if h.LastHandshakeTime.After(s.Handshake) {
		s.Handshake = h.LastHandshakeTime
	}
	return s
}

func complaint(s Status, now time.Time) string {
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
	clear(w.surplus)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("wireguard: %w", err)
	}
	return nil
}

// Waiting implements Queued. Of devices of the kernel's nothing waits in this process.
func (w *WireGuard) Waiting() (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, e := range w.embedded {
		waiting, err := e.waiting()
		if err != nil {
			return false, fmt.Errorf("wireguard: look for packets that wait in %s: %w", w.name(i), err)
		}
		if waiting {
			return true, nil
		}
	}
	return false, nil
}

// Close implements Wire. Devices of the kernel stay; embedded ones end with the process that they are in.
func (w *WireGuard) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, e := range w.embedded {
		e.close()
		delete(w.embedded, i)
	}
	return nil
}
