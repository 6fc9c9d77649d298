package loader

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/bpf"
)

// NotSupported names a feature that this machine lacks and the kernel version that introduced it.
type NotSupported struct {
	Feature string
	Since   string // kernel version, "" if it is no matter of version
	Kernel  string // what runs here
	Err     error
}

func (e *NotSupported) Error() string {
	if e.Since == "" {
		return fmt.Sprintf("%s is missing: %v", e.Feature, e.Err)
	}
	return fmt.Sprintf("%s needs Linux %s or newer, this is %s: %v", e.Feature, e.Since, e.Kernel, e.Err)
}

func (e *NotSupported) Unwrap() error { return e.Err }

// requirement is one thing that the data path cannot do without.
type requirement struct {
	feature string
	since   string
	probe   func() error
}

var requirements = []requirement{
	{"eBPF traffic control programs", "4.1", func() error { return features.HaveProgramType(ebpf.SchedCLS) }},
	{"bpf_redirect_neigh", "5.10", func() error { return features.HaveProgramHelper(ebpf.SchedCLS, asm.FnRedirectNeigh) }},
	{"bpf_ktime_get_coarse_ns", "5.11", func() error { return features.HaveProgramHelper(ebpf.SchedCLS, asm.FnKtimeGetCoarseNs) }},
	{"bpf_check_mtu", "5.12", func() error { return features.HaveProgramHelper(ebpf.SchedCLS, asm.FnCheckMtu) }},
	{"bpf_skb_adjust_room", "4.13", func() error { return features.HaveProgramHelper(ebpf.SchedCLS, asm.FnSkbAdjustRoom) }},
	{"syscall programs (flow sweeping)", "5.14", func() error { return features.HaveProgramType(ebpf.Syscall) }},
	{"atomic BPF instructions", "5.12 (arm64: 5.18)", bpf.HaveAtomics},
}

// CheckKernel reports whether the data path can run here: nil, or every missing feature with the
// kernel version that brought it (each a *NotSupported).
func CheckKernel() error {
	if err := checkUser(os.Geteuid()); err != nil {
		return err
	}
	return checkRequirements(requirements, kernelRelease())
}

func checkUser(id int) error {
	if id != 0 {
		return fmt.Errorf("load eBPF programs as user %d: root is needed (in Kubernetes: a privileged pod)", id)
	}
	return nil
}

func checkRequirements(reqs []requirement, kernel string) error {
	var missing []error
	for _, r := range reqs {
		if err := r.probe(); err != nil {
			missing = append(missing, &NotSupported{Feature: r.feature, Since: r.since, Kernel: kernel, Err: err})
		}
	}
	return errors.Join(missing...)
}

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}
