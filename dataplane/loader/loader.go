// Package loader writes a dataplane.State to the kernel and reads one back: it loads the programs,
// pins maps and links below one bpffs directory, attaches the programs and updates the maps. What
// it pins keeps working when the process ends. pelago-node and the CLI call it; it never uses
// Kubernetes.
package loader

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
)

// Timers are idle times after which a flow may be removed. Zero fields keep the defaults of
// bpf/config.h.
type Timers struct {
	UDP, ICMP, TCPEstablished, TCPTransitory time.Duration
	// ClosedFloor and UDPWellKnown apply to closed TCP flows, and UDP to ports below 1024, while
	// ports or table entries run short.
	ClosedFloor, UDPWellKnown time.Duration
	// Unreplied applies to flows without a reply, TCP handshakes included, under the same
	// condition.
	Unreplied time.Duration
}

// Options of Open.
type Options struct {
	// PinPath is a directory on a bpffs, created if missing; dataplane.DefaultPinPath if empty.
	PinPath string
	Timers  Timers
	// MaxFlows is the size of a new flow table, a power of two; 0: by the memory of the node. A
	// pinned table keeps its size.
	MaxFlows int
	// Sockets: processes of the calling thread's network namespace, that of the node, reach
	// ClusterSetIPs by Devices.Cgroup.
	Sockets bool
	// Clsact attaches by clsact filters, as before Linux 6.6, even if the kernel has TCX.
	Clsact bool
}

// Loader holds the loaded programs and the open maps. Methods that only read maps (Counters, Flows,
// Paths, Path, LargeProbe, Marks), Sweep, and those that purge flows, are safe for concurrent use,
// also with one other method at a time; the other methods are not. Sweep and purges change no field
// of the Loader, and the program that removes flows for them uses the same compare-and-swap as the
// packet path.
type Loader struct {
	pinPath string
	objs    bpf.PelagoObjects
	// spec has the programs that are loaded at their first use (Program); nil after OpenMaps.
	spec *ebpf.CollectionSpec
	// rejected are the errors of programs that the verifier has rejected, by name.
	rejected map[string]error
	clsact   atomic.Bool // attach by clsact filters instead of TCX links
	// attached is what the last Attach attached to devices, by the name of the pin.
	attached map[string]bool
	// conntrack: the programs read conntrack.
	conntrack bool
	// sockets: the programs of sockets have the node's network namespace.
	sockets bool
	have    *dataplane.State // what the maps hold; nil: read them first
	// paths are the entries of `paths` and whether they are probed, which only Apply changes; nil:
	// read them first.
	paths map[netip.Addr]bool
	// filled are the inner maps of `tables2`, whose content is not read again.
	filled map[bpf.PelagoServiceKey]filledTable
}

// Open opens or creates the pinned maps of PinPath and loads the programs that every node has, the
// others at their first use. Existing maps keep their content. The programs do nothing until they
// are attached and the first Apply sets Settings.Ready.
//
// The error names the remedy if the caller is not root, PinPath is no bpffs, the kernel is too old,
// or a pinned map has another layout.
func Open(opts Options) (*Loader, error) {
	l := &Loader{pinPath: opts.PinPath, rejected: map[string]error{}, filled: map[bpf.PelagoServiceKey]filledTable{}}
	l.clsact.Store(opts.Clsact)
	if l.pinPath == "" {
		l.pinPath = dataplane.DefaultPinPath
	}
	if err := CheckKernel(); err != nil {
		return nil, err
	}
	if err := makePinPath(l.pinPath); err != nil {
		return nil, err
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("remove RLIMIT_MEMLOCK: %w", err)
	}
	spec, err := bpf.LoadPelago()
	if err != nil {
		return nil, fmt.Errorf("read the embedded programs: %w", err)
	}
	if opts.Sockets {
		if err := l.setHostNetns(spec); err != nil {
			return nil, err
		}
	}
	former, err := checkABI(l.pinPath)
	if err := errors.Join(err, setFlows(spec, l.pinPath, opts.MaxFlows), setTimers(spec, opts.Timers), l.setConntrack(spec)); err != nil {
		return nil, err
	}
	var common struct {
		bpf.PelagoMaps
		bpf.PelagoVariables
		EdgeIn     *ebpf.Program `ebpf:"edge_in"`
		EdgeOut    *ebpf.Program `ebpf:"edge_out"`
		UplinkIn   *ebpf.Program `ebpf:"uplink_in"`
		UplinkOut  *ebpf.Program `ebpf:"uplink_out"`
		SweepFlows *ebpf.Program `ebpf:"sweep_flows"`
		Advertise  *ebpf.Program `ebpf:"advertise"`
	}
	err = spec.LoadAndAssign(&common, &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: l.pinPath}})
	l.spec, l.objs.PelagoMaps, l.objs.PelagoVariables = spec, common.PelagoMaps, common.PelagoVariables
	l.objs.EdgeIn, l.objs.EdgeOut, l.objs.UplinkIn, l.objs.UplinkOut = common.EdgeIn, common.EdgeOut, common.UplinkIn, common.UplinkOut
	l.objs.SweepFlows, l.objs.Advertise = common.SweepFlows, common.Advertise
	switch {
	case errors.Is(err, ebpf.ErrMapIncompatible):
		return nil, fmt.Errorf("open the maps in %s: their layout is that of another version: run `pelago-node cleanup` on this node, which ends its connections to other clusters: %w", l.pinPath, err)
	case err != nil:
		return nil, loadError("the programs", err)
	}
	if err := l.migrate(former); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// OpenMaps opens the pinned maps without loading a program, for tools other than the daemon.
// Methods that run a program fail.
func OpenMaps(pinPath string) (*Loader, error) {
	return openMaps(pinPath, func(spec *ebpf.CollectionSpec, opts *ebpf.CollectionOptions, objs *bpf.PelagoObjects) error {
		return spec.LoadAndAssign(&objs.PelagoMaps, opts)
	})
}

// OpenSweeper also loads the program that removes flows, for Flush.
func OpenSweeper(pinPath string) (*Loader, error) {
	return openMaps(pinPath, func(spec *ebpf.CollectionSpec, opts *ebpf.CollectionOptions, objs *bpf.PelagoObjects) error {
		var loaded struct {
			bpf.PelagoMaps
			SweepFlows *ebpf.Program `ebpf:"sweep_flows"`
		}
		err := spec.LoadAndAssign(&loaded, opts)
		objs.PelagoMaps, objs.SweepFlows = loaded.PelagoMaps, loaded.SweepFlows
		return err
	})
}

func openMaps(pinPath string, load func(*ebpf.CollectionSpec, *ebpf.CollectionOptions, *bpf.PelagoObjects) error) (*Loader, error) {
	l := &Loader{pinPath: pinPath}
	if l.pinPath == "" {
		l.pinPath = dataplane.DefaultPinPath
	}
	spec, err := bpf.LoadPelago()
	if err != nil {
		return nil, fmt.Errorf("read the embedded programs: %w", err)
	}
	number, err := pinnedABI(l.pinPath)
	if err != nil {
		return nil, fmt.Errorf("open the maps in %s: %w", l.pinPath, err)
	}
	switch number {
	case abi:
	case 0:
		return nil, fmt.Errorf("open the maps in %s: pelago-node has not run on this node since boot", l.pinPath)
	default:
		return nil, fmt.Errorf("open the maps in %s: they have layout %d, this command knows layout %d: use the one of pelago-node's version",
			l.pinPath, number, abi)
	}
	if err := setFlows(spec, l.pinPath, 0); err != nil {
		return nil, err
	}
	if err := load(spec, &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: l.pinPath}}, &l.objs); err != nil {
		return nil, fmt.Errorf("open the maps in %s: %w", l.pinPath, err)
	}
	return l, nil
}

// Close releases the file descriptors. Pinned maps and links stay.
func (l *Loader) Close() error {
	return l.objs.Close()
}

// Program returns a program by its name, which it loads at its first use: the verifier takes half
// of its time for programs that most nodes do not attach. One that is rejected is not tried again.
func (l *Loader) Program(name string) (*ebpf.Program, error) {
	program, ok := l.programs()[name]
	switch {
	case !ok:
		return nil, fmt.Errorf("load program %q: there is none of this name", name)
	case *program != nil:
		return *program, nil
	case l.spec == nil:
		return nil, fmt.Errorf("load program %s: the Loader was not made by Open", name)
	case l.rejected[name] != nil:
		return nil, l.rejected[name]
	}
	spec := l.spec.Copy()
	spec.Programs = map[string]*ebpf.ProgramSpec{name: spec.Programs[name]}
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: l.pinPath}})
	if err != nil {
		var verifier *ebpf.VerifierError
		if errors.As(err, &verifier) { // further attempts would fail too, after seconds each
			l.rejected[name] = loadError("program "+name, err)
		}
		return nil, loadError("program "+name, err)
	}
	defer c.Close()
	*program = c.DetachProgram(name)
	return *program, nil
}

func loadError(what string, err error) error {
	var verifier *ebpf.VerifierError
	if errors.As(err, &verifier) {
		return fmt.Errorf("load %s: rejected by the verifier: %+v", what, verifier)
	}
	return fmt.Errorf("load %s: %w", what, err)
}

// Programs returns the programs that are loaded by name, for run-time statistics and tests. Empty
// after OpenMaps.
func (l *Loader) Programs() map[string]*ebpf.Program {
	out := map[string]*ebpf.Program{}
	for name, p := range l.programs() {
		if *p != nil {
			out[name] = *p
		}
	}
	return out
}

// programs are the places of all programs, by name.
func (l *Loader) programs() map[string]**ebpf.Program {
	return map[string]**ebpf.Program{
		bpf.PelagoProgEdgeIn: &l.objs.EdgeIn, bpf.PelagoProgEdgeOut: &l.objs.EdgeOut,
		bpf.PelagoProgUplinkIn: &l.objs.UplinkIn, bpf.PelagoProgUplinkOut: &l.objs.UplinkOut,
		bpf.PelagoProgUplinkL3In: &l.objs.UplinkL3In, bpf.PelagoProgUplinkL3Out: &l.objs.UplinkL3Out,
		bpf.PelagoProgWireIn: &l.objs.WireIn, bpf.PelagoProgWireOut: &l.objs.WireOut,
		bpf.PelagoProgSweepFlows: &l.objs.SweepFlows, bpf.PelagoProgAdvertise: &l.objs.Advertise,
		bpf.PelagoProgUplinkXdp: &l.objs.UplinkXdp, bpf.PelagoProgPodOut: &l.objs.PodOut, bpf.PelagoProgPodIn: &l.objs.PodIn,
		bpf.PelagoProgPodEnd:   &l.objs.PodEnd,
		bpf.PelagoProgConnect4: &l.objs.Connect4, bpf.PelagoProgConnect6: &l.objs.Connect6, bpf.PelagoProgSendmsg4: &l.objs.Sendmsg4,
		bpf.PelagoProgRecvmsg4: &l.objs.Recvmsg4, bpf.PelagoProgRecvmsg6: &l.objs.Recvmsg6,
		bpf.PelagoProgGetpeername4: &l.objs.Getpeername4, bpf.PelagoProgGetpeername6: &l.objs.Getpeername6,
	}
}

// Remove detaches the programs and deletes everything that Open and Attach pinned below pinPath.
// Connections end.
func Remove(pinPath string) error {
	if pinPath == "" {
		pinPath = dataplane.DefaultPinPath
	}
	errs := []error{detachClsact(hooks(), nil)}
	if err := os.RemoveAll(pinPath); err != nil {
		errs = append(errs, fmt.Errorf("remove the pinned maps and links in %s: %w", pinPath, err))
	}
	return errors.Join(errs...)
}

func makePinPath(path string) error {
	parent := filepath.Dir(path)
	var fs unix.Statfs_t
	if err := unix.Statfs(parent, &fs); err != nil {
		return fmt.Errorf("statfs %s: %w", parent, err)
	}
	if fs.Type != unix.BPF_FS_MAGIC {
		return fmt.Errorf("pin below %s: no bpffs is mounted on %s: run `mount -t bpf bpf %s`", path, parent, parent)
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return fmt.Errorf("create %s: %w", path, err)
	}
	return nil
}

// setConntrack tells the programs whether they may read conntrack.
func (l *Loader) setConntrack(spec *ebpf.CollectionSpec) error {
	l.conntrack = bpf.HaveConntrack()
	if err := spec.Variables[bpf.PelagoVarHasConntrack].Set(map[bool]uint32{true: 1}[l.conntrack]); err != nil {
		return fmt.Errorf("set %s to %t: %w", bpf.PelagoVarHasConntrack, l.conntrack, err)
	}
	return nil
}

// Conntrack reports whether the programs read conntrack, which the hybrid datapath needs: without
// it, hybrid acts like strict.
func (l *Loader) Conntrack() bool { return l.conntrack }

func setTimers(spec *ebpf.CollectionSpec, t Timers) error {
	for name, d := range map[string]time.Duration{
		bpf.PelagoVarUdpTimeout:            t.UDP,
		bpf.PelagoVarIcmpTimeout:           t.ICMP,
		bpf.PelagoVarTcpEstablishedTimeout: t.TCPEstablished,
		bpf.PelagoVarTcpTransitoryTimeout:  t.TCPTransitory,
		bpf.PelagoVarClosedFloor:           t.ClosedFloor,
		bpf.PelagoVarUdpKnownTimeout:       t.UDPWellKnown,
		bpf.PelagoVarUnrepliedTimeout:      t.Unreplied,
	} {
		if d == 0 {
			continue
		}
		if err := spec.Variables[name].Set(uint64(d)); err != nil {
			return fmt.Errorf("set %s to %s: %w", name, d, err)
		}
	}
	return nil
}

// newSecrets makes the secrets of a node. None is 0, the mark of foreign packets.
func newSecrets() (secrets, error) {
	var b [8]byte
	for {
		if _, err := rand.Read(b[:]); err != nil {
			return secrets{}, fmt.Errorf("create the secrets of this node: %w", err)
		}
		s := secrets{binary.NativeEndian.Uint32(b[:]), binary.NativeEndian.Uint32(b[4:])}
		// The low 24 bits of the cookie are a VNI. The probe mark is a priority as well, which any
		// process may set up to 6.
		if s.cookie&0xffffff != 0 && s.probeMark > 7 {
			return s, nil
		}
	}
}
