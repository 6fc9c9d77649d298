package cable

import (
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
)

// IdentityIKE is the key under which an IPsec gateway says how it proves who it is: psk or certificate.
const IdentityIKE = "ike"

const (
	// patience is how long the side that does not call waits for the other's call before it calls itself.
	patience = 10 * time.Second
	// boot is how long Ensure waits for a daemon that it has just configured.
	boot = 5 * time.Second
)

// IPsecOptions say how the wire is made. Either Dir or Socket must be set.
type IPsecOptions struct {
	// Dir is the directory shared with a Supervisor: Ensure writes the IKE daemon's configuration there, Remove takes it away.
	// Where the kernel lacks what ESP needs (KernelESP), the daemon does ESP itself.
	Dir string
	// Socket is the vici socket of an IKE daemon that somebody else configures and runs, see Charon.
	Socket string
	// Prefix begins the names of xfrm interfaces; "": pelago-ipsec.
	Prefix string
	// Certificates to use in place of the PSK.
	Certificates *Certificates
	// Rekey is how long ESP keys are used, 0: 1 h; IKERekey those of IKE, 0: 4 h.
	Rekey, IKERekey time.Duration
	// Linger is how long a tunnel that is wanted no longer still takes packets; 0: 30 s.
	Linger time.Duration
	// DPD is after how much silence the daemon asks the peer whether it lives, 0: 10 s.
	DPD time.Duration
	Log *slog.Logger
}

// IPsec is the wire `libreswan`: IKEv2 and ESP between fabric addresses by an IKE daemon (strongSwan's charon) in a
// process of its own, told what to do over its vici socket. With the kernel's ESP tunnel i is an xfrm interface and an IKE
// connection of its own; with ESP inside the daemon (kernel-libipsec) there is one tunnel, the daemon's TUN.
type IPsec struct {
	o     IPsecOptions
	mu    sync.Mutex
	vici  *charon
	peers []Peer
	// loaded is what the daemon was last told of each connection, and when.
	loaded map[string]string
	since  map[string]time.Time
	// up are the connections that have had keys.
	up      map[string]bool
	devices []string // names of xfrm interfaces
	index   []int
	// surplus are the numbers of tunnels that are wanted no longer, surplusIndex their xfrm interfaces; leavers are connections of
	// peers that want fewer, by name.
	surplus      parting[int]
	surplusIndex []int
	leavers      parting[string]
	// kernel says, once it was tried, what the kernel lacks for ESP.
	kernel func() error
	// esp is what does ESP, as the daemon says; "" until it was reached.
	esp string
	// last is what the last complete Ensure found.
	last Devices
}

// NewIPsec makes the wire; the daemon is reached in Ensure.
func NewIPsec(o IPsecOptions) *IPsec {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.Rekey, time.Hour)
	def(&o.IKERekey, 4*time.Hour)
	def(&o.DPD, 10*time.Second)
	def(&o.Linger, linger)
	if o.Prefix == "" {
		o.Prefix = ipsecPrefix
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Dir != "" {
		o.Socket = filepath.Join(o.Dir, socketName)
	}
	return &IPsec{
		o: o, kernel: sync.OnceValue(KernelESP), loaded: map[string]string{}, since: map[string]time.Time{}, up: map[string]bool{},
		surplus: parting[int]{}, leavers: parting[string]{},
	}
}

var _ Wire = (*IPsec)(nil)

// Ensure implements Wire. It returns while connections are still being made; Status tells of them.
func (w *IPsec) Ensure(local Local, peers []Peer) (Devices, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	local, err := local.among(peers)
	if err != nil {
		return Devices{}, fmt.Errorf("ipsec: %w", err)
	}
	if err := w.configure(local); err != nil {
		return Devices{}, fmt.Errorf("ipsec: %w", err)
	}
	// A daemon that was started anew has nothing and needs a new session: the second try finds it.
	devices, err := w.ensure(local, peers)
	if errors.Is(err, errDaemon) {
		w.hangUp()
		devices, err = w.ensure(local, peers)
	}
	if errors.Is(err, errDaemon) && w.esp == ESPKernel {
		devices = w.unattended(peers)
	}
	if err != nil {
		return devices, fmt.Errorf("ipsec: %w", err)
	}
	return devices, nil
}

// unattended are the devices while the daemon is away: the kernel goes on with the keys that it has.
func (w *IPsec) unattended(peers []Peer) Devices {
	out := Devices{Ifindexes: slices.Clone(w.last.Ifindexes), Fleeting: w.last.Fleeting, MTU: w.last.MTU, Peers: map[netip.Addr][]int{}}
	for _, p := range peers {
		if tunnels, ok := w.last.Peers[p.Fabric]; ok {
			out.Peers[p.Fabric] = slices.Clone(tunnels)
		}
	}
	return out
}

// configure tells the supervisor how the daemon is to run, and waits a moment for one that is new.
func (w *IPsec) configure(local Local) error {
	if w.o.Dir == "" {
		return nil
	}
	if err := os.Remove(filepath.Join(w.o.Dir, leftName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("take back that pelago-node has left: %w", err)
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
	w.hangUp()
	_ = os.Remove(w.o.Socket) // that of a daemon that is about to stop, if there is one
	for end := time.Now().Add(boot); w.vici == nil && time.Now().Before(end); time.Sleep(look / 3) {
		if c, err := dialCharon(w.o.Socket); err == nil {
			w.vici = c
		}
	}
	return nil // whether it runs, ensure finds out
}

// errDaemon: a question to the daemon failed.
var errDaemon = errors.New("no answer")

func (w *IPsec) hangUp() {
	if w.vici != nil {
		w.vici.close()
	}
	w.vici = nil
}

func (w *IPsec) ensure(local Local, peers []Peer) (Devices, error) {
	if w.vici == nil {
		c, err := dialCharon(w.o.Socket)
		if err != nil {
			return Devices{}, fmt.Errorf("%w: %w", errDaemon, err)
		}
		w.vici = c
	}
	m, err := w.vici.call("stats", nil)
	if err != nil {
		return Devices{}, fmt.Errorf("%w: %w", errDaemon, err)
	}
	userspace := slices.Contains(list(m, "plugins"), "kernel-libipsec")
	w.esp = ESPKernel
	if userspace {
		w.esp = ESPUserspace
		local.Tunnels, local.MTU = 1, min(local.MTU, tunMTU)
	}
	now := time.Now()
	if err := w.ensureDevices(local, userspace, now); err != nil {
		return Devices{}, err
	}
	var usable []Peer
	var errs []error
	for _, p := range peers {
		if err := w.fits(p); err != nil {
			errs = append(errs, fmt.Errorf("peer %s: %w", p.Name, err))
			continue
		}
		usable = append(usable, p)
	}
	w.peers = usable
	states, err := w.sas()
	if err != nil {
		return Devices{}, fmt.Errorf("%w: %w", errDaemon, err)
	}
	errs = append(errs, w.ensureConnections(local, usable, userspace, states, now))

	devices := Devices{Ifindexes: slices.Concat(w.index, w.surplusIndex), Fleeting: true, MTU: local.MTU, Peers: map[netip.Addr][]int{}}
	routes := map[netip.Addr]int{}
	for _, p := range usable {
		routes[p.Fabric] = w.index[0]
		for i := range min(len(w.index), max(1, p.Tunnels)) {
			// One that had keys once stays: it will have some again, and the probes know sooner whether it works.
			name := connectionName(p.Fabric, i)
			if w.up[name] = w.up[name] || states[name].installed; w.up[name] {
				devices.Peers[p.Fabric] = append(devices.Peers[p.Fabric], w.index[i])
			}
		}
	}
	errs = append(errs, ensureRoutes(local.Fabric, routes, devices.Ifindexes))
	w.last = devices
	return devices, errors.Join(errs...)
}

// fits says why p cannot be a peer on this wire.
func (w *IPsec) fits(p Peer) error {
	own := w.identity()[IdentityIKE]
	switch its := p.Identity[IdentityIKE]; {
	case its == "":
		return fmt.Errorf("it does not say that it speaks IKE: is its cable driver another than %s here?", IPsecDriver)
	case its != own:
		return fmt.Errorf("it uses IKE with %s, this gateway with %s: all clusters must use the same", its, own)
	case p.Address.IsValid() && p.Port == 0:
		return errors.New("UDP port 0: use 1 to 65535")
	}
	return nil
}

// Identity implements Wire. What does ESP it says once the daemon was reached.
func (w *IPsec) Identity() (map[string]string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.identity(), nil
}

func (w *IPsec) identity() map[string]string {
	out := map[string]string{IdentityIKE: "psk"}
	if w.o.Certificates != nil {
		out[IdentityIKE] = "certificate"
	}
	if w.esp != "" {
		out[IdentityESP] = w.esp
	}
	if n := len(w.index); n > 1 {
		out[IdentityTunnels] = strconv.Itoa(n)
	}
	return out
}

// Remove implements Wire: connections and secrets go from the daemon, xfrm interfaces from the kernel. A daemon with a
// Supervisor stops; if it does not run already, there is nothing to take from it.
func (w *IPsec) Remove() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var errs []error
	if w.vici == nil {
		c, err := dialCharon(w.o.Socket)
		if err != nil && w.o.Dir == "" {
			errs = append(errs, err)
		}
		w.vici = c
	}
	if w.vici != nil {
		names, err := w.known()
		errs = append(errs, err)
		for name := range names {
			errs = append(errs, w.forget(name))
		}
	}
	for i := range MaxTunnels {
		errs = append(errs, removeLink(w.o.Prefix+strconv.Itoa(i)))
	}
	if name, err := findTUN(); err == nil && len(w.devices) == 0 {
		errs = append(errs, strip(name)) // the device is the daemon's
	}
	w.peers, w.index, w.devices, w.surplusIndex = nil, nil, nil, nil
	clear(w.up)
	if w.o.Dir != "" {
		w.hangUp()
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

// Left implements Outlived: the supervisor need not wait any longer. Ensure takes it back.
func (w *IPsec) Left() error {
	if w.o.Dir == "" {
		return nil
	}
	if err := os.WriteFile(filepath.Join(w.o.Dir, leftName), nil, 0o600); err != nil {
		return fmt.Errorf("tell the IKE daemon that it may end: %w", err)
	}
	return nil
}

// Close implements Wire. The daemon and its tunnels go on.
func (w *IPsec) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hangUp()
	return nil
}
