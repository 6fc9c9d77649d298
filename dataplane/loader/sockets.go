package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/bpf"
)

// socketHooks are the socket calls at which the processes of the node reach ClusterSetIPs, by name
// of the program. Those that receive come first: a socket that sends to a pod must already take its
// answers for the ClusterSetIP's.
var socketHooks = []struct {
	name   string
	attach ebpf.AttachType
}{
	{bpf.PelagoProgRecvmsg4, ebpf.AttachCGroupUDP4Recvmsg},
	{bpf.PelagoProgRecvmsg6, ebpf.AttachCGroupUDP6Recvmsg},
	{bpf.PelagoProgGetpeername4, ebpf.AttachCgroupInet4GetPeername},
	{bpf.PelagoProgGetpeername6, ebpf.AttachCgroupInet6GetPeername},
	{bpf.PelagoProgSendmsg4, ebpf.AttachCGroupUDP4Sendmsg},
	{bpf.PelagoProgConnect4, ebpf.AttachCGroupInet4Connect},
	{bpf.PelagoProgConnect6, ebpf.AttachCGroupInet6Connect},
}

// socketPrefix begins the names of their pinned links.
const socketPrefix = "socket_"

// attachSockets attaches the programs of the node's sockets to the root of the cgroup hierarchy, or
// detaches them (cgroup is ""). An attached program is replaced atomically.
func (l *Loader) attachSockets(cgroup string) error {
	entries, err := os.ReadDir(l.pinPath)
	if err != nil {
		return fmt.Errorf("list %s: %w", l.pinPath, err)
	}
	var errs []error
	if cgroup != "" && !l.sockets {
		return errors.New("sockets of the node are not known by a cookie: Linux 5.14 or newer is needed")
	}
	if cgroup == "" {
		// Those that send are detached first.
		for _, h := range slices.Backward(socketHooks) {
			err := os.Remove(filepath.Join(l.pinPath, socketPrefix+h.name))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, fmt.Errorf("detach %s: %w", h.name, err))
			}
		}
		return errors.Join(errs...)
	}
	pinned := func(name string) bool {
		return slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == name })
	}
	for _, h := range socketHooks {
		program, err := l.Program(h.name)
		if err != nil {
			return err
		}
		pin := socketPrefix + h.name
		if err := l.attachSocket(cgroup, pin, pinned(pin), h.attach, program); err != nil {
			return fmt.Errorf("attach %s to cgroup %s: %w", h.name, cgroup, err)
		}
	}
	return nil
}

func (l *Loader) attachSocket(cgroup, pin string, pinned bool, attach ebpf.AttachType, program *ebpf.Program) error {
	path := filepath.Join(l.pinPath, pin)
	if pinned {
		old, err := link.LoadPinnedLink(path, nil)
		if err != nil {
			return fmt.Errorf("open link %s: %w", path, err)
		}
		defer old.Close()
		return old.Update(program)
	}
	made, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: attach, Program: program})
	if err != nil {
		return err
	}
	defer made.Close()
	return made.Pin(path)
}

// setHostNetns has the programs of sockets work for those of the calling thread's network
// namespace.
func (l *Loader) setHostNetns(spec *ebpf.CollectionSpec) error {
	cookie, err := netnsCookie()
	if errors.Is(err, unix.ENOPROTOOPT) { // before Linux 5.14
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the cookie of the network namespace: %w", err)
	}
	if err := spec.Variables[bpf.PelagoVarHostNetns].Set(cookie); err != nil {
		return fmt.Errorf("set %s: %w", bpf.PelagoVarHostNetns, err)
	}
	l.sockets = true
	return nil
}

func netnsCookie() (uint64, error) {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(s)
	return unix.GetsockoptUint64(s, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
}

// CgroupRoot returns the root of the cgroup2 hierarchy in a directory where all hierarchies are
// mounted: dir itself, or dir/unified with cgroup v1. Empty: neither is one.
func CgroupRoot(dir string) string {
	for _, path := range []string{dir, filepath.Join(dir, "unified")} {
		var fs unix.Statfs_t
		if dir != "" && unix.Statfs(path, &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC {
			return path
		}
	}
	return ""
}
