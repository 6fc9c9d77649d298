package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// settings are kernel-wide values that the kubelet insists on. The node sees
// plain files with these values in place of the machine's own switches.
var settings = map[string]string{
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
}

// enterRoot builds the node's root file system and moves the process into it:
//
//	/                   a tmpfs
//	/usr, /bin, …       the host's, read-only
//	/etc                the host's under an overlay that belongs to the node
//	/var/lib, /var/log  the node's directories
//	/proc, /sys         of the node's pid and network namespaces
//	/sys/fs/bpf         a bpffs of the node's own
//	/dev                the host's
//	/host               the host's root, read-only
//
// All mounts are shared among each other, so that Bidirectional and
// HostToContainer propagation of hostPath volumes work, and none reaches the host.
func enterRoot(s Spec) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("separate the node's mounts: %w", err)
	}
	root := filepath.Join(s.Dir, "root")
	b := &builder{root: root}
	b.run("make the root directory", func() error { return os.MkdirAll(root, 0o755) })
	b.mountAt("", "tmpfs", "tmpfs", 0, "mode=755")
	for _, dir := range []string{"home", "media", "mnt", "srv", "opt", "root", "run", "var/cache", "var/lib", "var/log"} {
		b.mkdir(dir, 0o755)
	}
	for _, dir := range []string{"tmp", "var/tmp"} {
		b.mkdir(dir, 0o777|os.ModeSticky)
	}
	b.symlink("/run", "var/run")
	b.system()
	b.bind("/", HostDir, true)
	b.bind(s.Kubernetes, BinDir, true)
	b.bind(s.Containerd, ContainerdDir, true)
	b.bind(s.Images, ImageDir, true)
	b.mkdir(NetworkDir, 0o755)
	if s.Network != "" {
		b.bind(s.Network, NetworkDir, true)
	}
	b.mkdir("opt/cni", 0o755)
	b.symlink("/usr/lib/cni", "opt/cni/bin") // where upstream's documentation has the plugins
	for host, node := range map[string]string{"lib": "var/lib", "log": "var/log"} {
		b.run("make the node's directories", func() error { return os.MkdirAll(filepath.Join(s.Dir, host), 0o755) })
		b.bind(filepath.Join(s.Dir, host), node, false)
	}
	b.overlay(s.Dir, "etc")
	b.mkdir("dev", 0o755)
	b.mountAt("dev", "/dev", "", unix.MS_BIND|unix.MS_REC, "")
	b.mkdir("proc", 0o555)
	b.mountAt("proc", "proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	b.sys()
	b.settings(s.BootID)
	b.run("change the root file system", func() error { return pivot(root) })
	b.run("share the node's mounts", func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "") })
	return b.err
}

// builder applies mount steps below root until one fails.
type builder struct {
	root string
	err  error
}

func (b *builder) run(what string, step func() error) {
	if b.err != nil {
		return
	}
	if err := step(); err != nil {
		b.err = fmt.Errorf("%s: %w", what, err)
	}
}

func (b *builder) path(p string) string { return filepath.Join(b.root, p) }

func (b *builder) mkdir(p string, mode os.FileMode) {
	b.run("make "+p, func() error {
		return errors.Join(os.MkdirAll(b.path(p), mode), os.Chmod(b.path(p), mode))
	})
}

func (b *builder) symlink(target, p string) {
	b.run("link "+p, func() error { return os.Symlink(target, b.path(p)) })
}

func (b *builder) mountAt(p, source, fstype string, flags uintptr, data string) {
	b.run("mount "+source+" on the node's /"+p, func() error { return unix.Mount(source, b.path(p), fstype, flags, data) })
}

// bind shows the host's directory source at p, without what is mounted in it.
func (b *builder) bind(source, p string, readOnly bool) {
	b.mkdir(p, 0o755)
	b.mountAt(p, source, "", unix.MS_BIND, "")
	if readOnly {
		b.mountAt(p, source, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	}
}

// system shows the host's programs and libraries; on most distributions all but
// /usr are symbolic links into it.
func (b *builder) system() {
	for _, dir := range []string{"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"} {
		info, err := os.Lstat("/" + dir)
		switch {
		case err != nil:
		case info.Mode()&os.ModeSymlink != 0:
			target, err := os.Readlink("/" + dir)
			b.run("read the link /"+dir, func() error { return err })
			b.symlink(target, dir)
		case info.IsDir():
			b.bind("/"+dir, dir, true)
		}
	}
}

// overlay lays the node's directory over the host's one of the same name.
func (b *builder) overlay(dir, name string) {
	upper, work := filepath.Join(dir, name), filepath.Join(dir, name+".work")
	b.run("make the node's "+name, func() error { return errors.Join(os.MkdirAll(upper, 0o755), os.MkdirAll(work, 0o755)) })
	b.mkdir(name, 0o755)
	b.mountAt(name, "overlay", "overlay", 0, fmt.Sprintf("lowerdir=/%s,upperdir=%s,workdir=%s", name, upper, work))
}

// sys mounts the sysfs of the node's network namespace, the host's cgroups, a
// new bpffs and, where the kernel has them, debugfs and tracefs.
func (b *builder) sys() {
	b.mkdir("sys", 0o555)
	b.mountAt("sys", "sysfs", "sysfs", 0, "")
	b.mountAt("sys/fs/cgroup", "/sys/fs/cgroup", "", unix.MS_BIND|unix.MS_REC, "")
	b.mountAt("sys/fs/bpf", "bpf", "bpf", 0, "mode=700")
	for p, fs := range map[string]string{"sys/kernel/debug": "debugfs", "sys/kernel/tracing": "tracefs"} {
		// Only for looking at programs; a kernel without them is fine.
		_ = unix.Mount(fs, b.path(p), fs, 0, "")
	}
}

// settings puts files over kernel-wide settings, and gives this start of the
// node a boot id of its own, which the kubelet reports.
func (b *builder) settings(bootID string) {
	b.mkdir("run/kernel", 0o755)
	values := map[string]string{}
	for key, value := range settings {
		values["sys/"+key] = value
	}
	values["sys/kernel/random/boot_id"] = bootID
	for key, value := range values {
		p := filepath.Join("proc", key)
		if _, err := os.Stat(b.path(p)); err != nil {
			continue // this kernel does not have the switch
		}
		file := filepath.Join("run/kernel", filepath.Base(filepath.Dir(key))+"."+filepath.Base(key))
		b.run("write "+file, func() error { return os.WriteFile(b.path(file), []byte(value+"\n"), 0o644) })
		b.mountAt(p, b.path(file), "", unix.MS_BIND, "")
	}
}

// pivot makes root the root directory and removes every mount of the host, including named network
// namespaces of other nodes.
func pivot(root string) error {
	old := filepath.Join(root, ".old")
	if err := os.Mkdir(old, 0o700); err != nil {
		return err
	}
	if err := unix.PivotRoot(root, old); err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := unix.Unmount("/.old", unix.MNT_DETACH); err != nil {
		return err
	}
	return os.Remove("/.old")
}
