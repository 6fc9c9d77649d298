//go:build linux

package cable

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/pelago-net/pelago/dataplane/netdev"
)

const (
	// responderDelay is how long the responder waits for the initiator before it initiates itself.
	responderDelay = 10 * time.Second
	// bootTimeout bounds how long Ensure waits for a daemon whose configuration it has changed.
	bootTimeout = 5 * time.Second
)

// IPsecOptions configure the wire. Either Dir or Socket is required.
type IPsecOptions struct {
	// Dir is the directory shared with a Supervisor: Ensure writes the IKE daemon's configuration
	// there, Remove deletes it. If the kernel lacks support (KernelESP), the daemon does ESP
	// itself.
	Dir string
	// Socket is the vici socket of an IKE daemon that is configured and run elsewhere, see Charon.
	Socket string
	// Prefix of the names of xfrm interfaces; "": pelago-ipsec.
	Prefix string
	// Keys is the directory of this gateway's IKE keys, made if it lacks them. With a peer that
	// publishes keys as well, both authenticate by them and the PSK is not accepted. "": the PSK
	// authenticates all peers.
	Keys string
	// Settle is how long the next key is published before it is used, 0: 2 min: peers read it
	// from the hub meanwhile.
	Settle time.Duration
	// Rekey is the lifetime of ESP keys, 0: 1 h; IKERekey of IKE keys, 0: 4 h.
	Rekey, IKERekey time.Duration
	// Linger is how long a retired tunnel still receives after the last packet by it; 0: 30 s.
	Linger time.Duration
	// DPD is the interval of dead peer detection; 0: 10 s.
	DPD time.Duration
	Log *slog.Logger
}

// IPsec is the wire `libreswan`: IKEv2 and ESP between fabric addresses by an IKE daemon
// (strongSwan's charon) in another process, controlled over its vici socket. With ESP in the
// kernel, tunnel i is an xfrm interface and an IKE connection; with ESP in the daemon
// (kernel-libipsec) there is one tunnel, the daemon's TUN.
type IPsec struct {
	o     IPsecOptions
	mu    sync.Mutex
	vici  *charon
	keys  *ikeKeys // nil until the first Ensure or Identity, and without IPsecOptions.Keys
	peers []Peer
	// loaded are the connections and the private key as loaded into the daemon; since is when a
	// connection was loaded or lost its keys.
	loaded    map[string]string
	loadedKey loadedKey
	since     map[string]time.Time
	// up are the connections that have had keys.
	up map[string]bool
	// index are the interface indexes of the tunnels, retiredIndex those of retired ones.
	index, retiredIndex []int
	// retired tunnels, and connections of peers that remain with fewer tunnels, by name.
	retired            retired[int]
	retiredConnections retired[string]
	// kernel is KernelESP, tried once.
	kernel func() error
	// esp is where ESP is done, as reported by the daemon; "" until it was reached.
	esp string
	// last is the result of the last complete Ensure.
	last Devices
}

// NewIPsec makes the wire; Ensure connects to the daemon.
func NewIPsec(o IPsecOptions) *IPsec {
	o.Rekey = cmp.Or(o.Rekey, time.Hour)
	o.IKERekey = cmp.Or(o.IKERekey, 4*time.Hour)
	o.DPD = cmp.Or(o.DPD, 10*time.Second)
	o.Linger = cmp.Or(o.Linger, linger)
	o.Settle = cmp.Or(o.Settle, 2*time.Minute)
	o.Prefix = cmp.Or(o.Prefix, ipsecPrefix)
	o.Log = cmp.Or(o.Log, slog.Default())
	if o.Dir != "" {
		o.Socket = filepath.Join(o.Dir, socketName)
	}
	return &IPsec{
		o: o, kernel: sync.OnceValue(KernelESP), loaded: map[string]string{}, since: map[string]time.Time{}, up: map[string]bool{},
		retired: retired[int]{}, retiredConnections: retired[string]{},
	}
}

var _ Wire = (*IPsec)(nil)

// Capabilities implements Wire.
func (w *IPsec) Capabilities() Capabilities { return Capabilities{Leave: w.leave, Keys: w} }

// Rotate implements Keys: it replaces the key that authenticates this gateway. IKE replaces those of
// traffic by itself, and connections that exist stay.
func (w *IPsec) Rotate(request string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.keys == nil {
		return errors.New("rotate the key of IKE: it has none yet: call Ensure first")
	}
	if err := w.keys.rotate(request); err != nil {
		return fmt.Errorf("rotate the key of IKE: %w", err)
	}
	return nil
}

// Rotation implements Keys.
func (w *IPsec) Rotation() Rotation {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.keys == nil {
		return Rotation{}
	}
	return w.keys.rotation()
}

func (w *IPsec) name(tunnel int) string { return w.o.Prefix + strconv.Itoa(tunnel) }

func (w *IPsec) removeTunnel(tunnel int) error { return netdev.RemoveLink(w.name(tunnel)) }

// Ensure implements Wire. It does not wait for connections to be established, see Status.
func (w *IPsec) Ensure(local Local, peers []Peer) (Devices, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	local, err := local.validate()
	if err != nil {
		return Devices{}, fmt.Errorf("ipsec: %w", err)
	}
	peers, twins := distinctFabric(local, peers)
	if err := errors.Join(w.openKeys(), w.configure(local)); err != nil {
		return Devices{}, fmt.Errorf("ipsec: %w", err)
	}
	devices, err := w.ensure(local, peers)
	if errors.Is(err, errDaemon) {
		w.disconnect()
		// A restarted daemon has no configuration and needs a new session: retried once. One that
		// hangs is for the supervisor.
		if !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, context.DeadlineExceeded) {
			devices, err = w.ensure(local, peers)
		}
	}
	if errors.Is(err, errDaemon) && w.esp == ESPKernel {
		devices = w.unattended(peers)
	}
	if err := errors.Join(twins, err); err != nil {
		return devices, fmt.Errorf("ipsec: %w", err)
	}
	return devices, nil
}

// openKeys reads or makes the keys, and ends a rotation that is due.
func (w *IPsec) openKeys() (err error) {
	if w.o.Keys == "" {
		return nil
	}
	if w.keys == nil {
		if w.keys, err = openIKEKeys(w.o.Keys, w.o.Settle); err != nil {
			return err
		}
	}
	changed, err := w.keys.settled(time.Now())
	if changed {
		w.o.Log.Info("IKE has a new key", "dir", w.o.Keys)
	}
	return err
}

// unattended are the devices while the daemon is down: the kernel keeps using its SAs.
func (w *IPsec) unattended(peers []Peer) Devices {
	out := w.last
	out.Peers = map[netip.Addr][]int{}
	for _, p := range peers {
		if tunnels, ok := w.last.Peers[p.Fabric]; ok {
			out.Peers[p.Fabric] = tunnels
		}
	}
	return out
}

// configure writes the daemon's configuration for the supervisor; if it changed, it waits for the
// new daemon.
func (w *IPsec) configure(local Local) error {
	if w.o.Dir == "" {
		return nil
	}
	if err := os.Remove(filepath.Join(w.o.Dir, leftName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("tell the IKE daemon that pelago-node uses it: %w", err)
	}
	lacks := w.kernel()
	changed, err := Charon{Socket: w.o.Socket, Port: local.Listen, Userspace: lacks != nil}.write(w.o.Dir)
	if err != nil || !changed {
		return err
	}
	if lacks != nil {
		w.o.Log.Warn("the IKE daemon does ESP itself, which is slow", "kernel lacks", lacks)
	} else {
		w.o.Log.Info("the kernel does ESP")
	}
	w.disconnect()
	_ = os.Remove(w.o.Socket) // that of the daemon that stops, if any
	for end := time.Now().Add(bootTimeout); w.connect() != nil && time.Now().Before(end); {
		time.Sleep(pollInterval / 3)
	}
	return nil // ensure returns an error if it is not running
}

// errDaemon: a request to the daemon failed.
var errDaemon = errors.New("no answer")

func (w *IPsec) connect() error {
	if w.vici != nil {
		return nil
	}
	c, err := dialCharon(w.o.Socket)
	if err != nil {
		return fmt.Errorf("%w: %w", errDaemon, err)
	}
	w.vici = c
	return nil
}

func (w *IPsec) disconnect() {
	if w.vici != nil {
		w.vici.close()
	}
	w.vici = nil
}

func (w *IPsec) ensure(local Local, peers []Peer) (Devices, error) {
	if err := w.connect(); err != nil {
		return Devices{}, err
	}
	m, err := w.vici.call("stats")
	if err != nil {
		return Devices{}, err
	}
	userspace := slices.Contains(list(m, "plugins"), "kernel-libipsec")
	w.esp = ESPKernel
	if userspace {
		w.esp = ESPUserspace
		local.Tunnels, local.MTU = 1, min(local.MTU, tunMTU)
	}
	now := time.Now()
	var errs []error
	if err := w.ensureDevices(&local, userspace, now); err != nil {
		if userspace || local.Tunnels == 0 {
			return Devices{}, err
		}
		errs = append(errs, err)
	}
	var usable []Peer
	for _, p := range peers {
		if err := w.validate(p); err != nil {
			errs = append(errs, fmt.Errorf("peer %s: %w", p.Name, err))
			continue
		}
		usable = append(usable, p)
	}
	w.peers = usable
	states, err := w.sas()
	if err != nil {
		return Devices{}, err
	}
	errs = append(errs, w.ensureConnections(local, usable, userspace, states, now))

	devices := Devices{Ifindexes: slices.Concat(w.index, w.retiredIndex), Fleeting: true, MTU: local.MTU, Peers: map[netip.Addr][]int{}}
	routes := map[netip.Addr][]int{}
	for _, p := range usable {
		routes[p.Fabric] = w.index[:1] // the kernel exempts what IPsec protected from rp_filter
		for i := range min(len(w.index), max(1, p.Tunnels)) {
			// One that has had keys stays: it will have keys again, and probes detect a failure
			// sooner.
			name := connectionName(p.Fabric, i)
			if w.up[name] = w.up[name] || states[name].up; w.up[name] {
				devices.Peers[p.Fabric] = append(devices.Peers[p.Fabric], w.index[i])
			}
		}
	}
	errs = append(errs, ensureRoutes(local.Fabric, routes, devices.Ifindexes))
	w.last = devices
	return devices, errors.Join(errs...)
}

// validate returns why p cannot be a peer on this wire.
func (w *IPsec) validate(p Peer) error {
	switch its := p.Identity[IdentityIKE]; {
	case its == "":
		return fmt.Errorf("it publishes no IKE authentication method: is its cable driver another than %s here?", IPsecDriver)
	case its != ikePSK:
		return fmt.Errorf("it uses IKE with %s, this gateway with %s: all clusters must use the same", its, ikePSK)
	case p.Address.IsValid() && p.Port == 0:
		return errors.New("UDP port 0: use 1 to 65535")
	}
	_, err := peerKeys(p.Identity)
	return err
}

// Identity implements Wire.
func (w *IPsec) Identity() (map[string]string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.openKeys(); err != nil {
		return nil, fmt.Errorf("ipsec: %w", err)
	}
	return w.identity()
}

// ikePSK is the value of IdentityIKE.
const ikePSK = "psk"

func (w *IPsec) identity() (map[string]string, error) {
	out := map[string]string{IdentityIKE: ikePSK}
	if w.keys != nil {
		keys, err := w.keys.published()
		if err != nil {
			return nil, fmt.Errorf("ipsec: %w", err)
		}
		out[IdentityIKEKeys] = keys
	}
	if w.esp != "" {
		out[IdentityESP] = w.esp
	}
	if n := len(w.index); n > 1 {
		out[IdentityTunnels] = strconv.Itoa(n)
	}
	return out, nil
}

// Remove implements Wire: it unloads connections and secrets from the daemon and deletes the xfrm
// interfaces. A daemon with a Supervisor stops; if it no longer runs, there is nothing to unload.
func (w *IPsec) Remove() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var errs []error
	if err := w.connect(); err != nil && w.o.Dir == "" {
		errs = append(errs, err)
	}
	if w.vici != nil {
		names, err := w.known()
		errs = append(errs, err)
		for name := range names {
			errs = append(errs, w.unload(name))
		}
	}
	for i := range MaxTunnels {
		errs = append(errs, w.removeTunnel(i))
	}
	if w.esp != ESPKernel {
		errs = append(errs, resetTUN())
	}
	w.peers, w.index, w.retiredIndex = nil, nil, nil
	clear(w.up)
	if w.o.Dir != "" {
		w.disconnect()
		w.esp, w.last = "", Devices{}
		if err := os.Remove(filepath.Join(w.o.Dir, confName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("stop the IKE daemon: %w", err))
		}
		if w.kernel() == nil {
			errs = append(errs, removeSAs())
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("ipsec: %w", err)
	}
	return nil
}

// leave tells the supervisor that it need not wait for pelago-node. Ensure revokes it.
func (w *IPsec) leave() error {
	if w.o.Dir == "" {
		return nil
	}
	if err := os.WriteFile(filepath.Join(w.o.Dir, leftName), nil, 0o600); err != nil {
		return fmt.Errorf("tell the IKE daemon that it may end: %w", err)
	}
	return nil
}

// Close implements Wire. The daemon and its tunnels are not affected.
func (w *IPsec) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.disconnect()
	return nil
}
