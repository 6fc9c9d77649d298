package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// programs are what tests call in the VM, and the Debian package of each. What is not here is
// busybox's.
var programs = []struct{ path, pkg string }{
	{"/usr/bin/busybox", "busybox-static"},
	{"/usr/bin/ip", "iproute2"},
	{"/usr/bin/ss", "iproute2"},
	{"/usr/sbin/tc", "iproute2"},
	{"/usr/bin/unshare", "util-linux"},
	{"/usr/bin/mount", "mount"},
	{"/usr/bin/wg", "wireguard-tools"},
	{"/usr/bin/wireguard-go", "wireguard-go"},
	{"/usr/sbin/nft", "nftables"},
	{"/usr/sbin/xtables-nft-multi", "iptables"},
	{"/usr/sbin/conntrack", "conntrack"},
	{"/usr/sbin/bpftool", "bpftool"},
	{"/usr/lib/ipsec/charon", "strongswan-charon"},
}

// plugins are loaded by programs at run time: patterns of files.
var plugins = []struct{ pattern, pkg string }{
	{"/usr/lib/x86_64-linux-gnu/xtables/*.so", "iptables"},
	{"/usr/lib/ipsec/plugins/*.so", "libstrongswan-standard-plugins"},
	{"/usr/lib/ipsec/plugins/*-vici.so", "strongswan-swanctl"},
	{"/usr/lib/x86_64-linux-gnu/ossl-modules/*.so", "libssl3"},
}

// links are names of programs, as Debian's alternatives make them, and one that the kernel calls.
var links = map[string]string{
	"/usr/sbin/iptables":     "xtables-nft-multi",
	"/usr/sbin/iptables-nft": "xtables-nft-multi",
	"/sbin/modprobe":         "../usr/bin/busybox",
	"/bin/sh":                "../usr/bin/busybox",
}

// folders of kernel modules that are in the VM, below kernel/ of the package; the kernel loads them
// on request.
var folders = []string{
	"net", "crypto", "lib", "arch/x86/crypto", "drivers/net/wireguard", "drivers/net/vxlan", "drivers/net/veth.ko", "drivers/net/tun.ko",
	"drivers/net/dummy.ko", "drivers/net/tap.ko",
}

// modules are loaded before the tests: without them one would test another wire, or nothing.
var modules = []string{
	"wireguard", "esp4", "xfrm_user", "xfrm_interface", "gcm", "seqiv", "ctr", "veth", "vxlan", "tun", "bridge", "sch_netem", "sch_ingress", "cls_bpf",
}

// tree is the root directory of the VM while it is put together.
type tree string

// fill adds programs with the libraries that they need, the kernel's modules and what every root
// directory has.
func (t tree) fill(ctx context.Context, k kernel) error {
	for _, d := range []string{"proc", "sys", "dev", "tmp", "run", "root", "etc", "var", "bin", "sbin", "usr/bin", "usr/sbin"} {
		if err := os.MkdirAll(t.at(d), 0o755); err != nil {
			return err
		}
	}
	if err := os.Symlink("../run", t.at("/var/run")); err != nil {
		return err
	}
	if err := t.programs(ctx); err != nil {
		return err
	}
	for name, text := range map[string]string{
		"/etc/passwd": "root:x:0:0:root:/root:/bin/sh\n", "/etc/group": "root:x:0:\n", "/etc/hosts": "127.0.0.1 localhost vm\n",
		"/etc/protocols": "icmp 1 ICMP\ntcp 6 TCP\nudp 17 UDP\n", "/etc/nsswitch.conf": "hosts: files\n",
	} {
		if err := os.WriteFile(t.at(name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if err := t.modules(ctx, k); err != nil {
		return fmt.Errorf("modules of kernel %s: %w", k.release, err)
	}
	return nil
}

func (t tree) at(path string) string { return filepath.Join(string(t), path) }

func (t tree) programs(ctx context.Context) error {
	var files []string
	var errs []error
	for _, p := range programs {
		if !exists(p.path) {
			errs = append(errs, missing(p.path, p.pkg))
			continue
		}
		files = append(files, p.path)
	}
	for _, p := range plugins {
		found, err := filepath.Glob(p.pattern)
		if err != nil || len(found) == 0 {
			errs = append(errs, missing(p.pattern, p.pkg))
		}
		files = append(files, found...)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	libraries, err := closure(ctx, files)
	if err != nil {
		return err
	}
	files = append(files, libraries...)
	slices.Sort(files)
	for _, f := range slices.Compact(files) {
		if err := t.copy(f, f, 0o755); err != nil {
			return err
		}
	}
	applets, err := output(ctx, "/usr/bin/busybox", "--list")
	if err != nil {
		return err
	}
	for name, target := range links {
		if err := t.link(name, target); err != nil {
			return err
		}
	}
	for _, a := range strings.Fields(applets) {
		if exists(t.at("/usr/sbin/"+a)) || exists(t.at("/usr/bin/"+a)) {
			continue
		}
		if err := t.link("/usr/bin/"+a, "busybox"); err != nil {
			return err
		}
	}
	return nil
}

func missing(path, pkg string) error {
	return fmt.Errorf("%s is missing: install the Debian package %s, or all by `pelago-lab prerequisites --install`", path, pkg)
}

var mapped = regexp.MustCompile(`(?m)^\s*(?:\S+ => )?(/\S+) \(0x`)

// closure lists the shared libraries that files need, by ldd(1), which asks the dynamic linker.
func closure(ctx context.Context, files []string) ([]string, error) {
	var out []string
	for _, f := range files {
		text, err := exec.CommandContext(ctx, "ldd", f).CombinedOutput()
		if err != nil && strings.Contains(string(text), "not a dynamic executable") {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("ldd %s: %w: %s", f, err, text)
		}
		if strings.Contains(string(text), "not found") {
			if filepath.Ext(f) == ".so" {
				// a plugin of a package that is not whole here: whoever needs it reports it
				continue
			}
			return nil, fmt.Errorf("%s lacks a library: reinstall its package:\n%s", f, text)
		}
		for _, m := range mapped.FindAllStringSubmatch(string(text), -1) {
			out = append(out, m[1])
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

func (t tree) copy(from, to string, mode fs.FileMode) error {
	raw, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(t.at(to)), 0o755); err != nil {
		return err
	}
	return os.WriteFile(t.at(to), raw, mode)
}

func (t tree) link(name, target string) error {
	if err := os.MkdirAll(filepath.Dir(t.at(name)), 0o755); err != nil {
		return err
	}
	if err := os.Symlink(target, t.at(name)); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// modules copies the kernel's modules, unpacked, with the indexes by which modprobe finds them.
func (t tree) modules(ctx context.Context, k kernel) error {
	base := filepath.Join("lib", "modules", k.release)
	var packed []string
	for _, folder := range folders {
		root := filepath.Join(k.modules, "kernel", folder)
		if strings.HasSuffix(folder, ".ko") && !exists(root) {
			root += ".xz"
		}
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			rel, err := filepath.Rel(k.modules, path)
			if err != nil {
				return err
			}
			to := filepath.Join(base, rel)
			if filepath.Ext(path) == ".xz" {
				packed = append(packed, t.at(to))
			}
			return t.copy(path, to, 0o644)
		})
		if err != nil {
			return err
		}
	}
	for some := range slices.Chunk(packed, 200) {
		if _, err := output(ctx, "xz", append([]string{"--decompress"}, some...)...); err != nil {
			return fmt.Errorf("unpack (Debian package xz-utils): %w", err)
		}
	}
	for _, index := range []string{"modules.builtin", "modules.builtin.modinfo", "modules.order"} {
		if err := t.copy(filepath.Join(k.modules, index), filepath.Join(base, index), 0o644); err != nil {
			return err
		}
	}
	if _, err := output(ctx, "/usr/bin/busybox", "depmod", "-b", string(t), k.release); err != nil {
		return err
	}
	return nil
}

// archive writes the directory as an initramfs. It is not compressed: the emulated processor would
// take longer to unpack it than the machine to hand it over.
func (t tree) archive(ctx context.Context, path string) error {
	var names strings.Builder
	err := filepath.WalkDir(string(t), func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(string(t), path)
		if err == nil && rel != "." {
			fmt.Fprintln(&names, rel)
		}
		return err
	})
	if err != nil {
		return err
	}
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	defer out.Close()
	var said strings.Builder
	command := exec.CommandContext(ctx, "/usr/bin/busybox", "cpio", "-o", "-H", "newc", "-R", "0:0")
	command.Dir, command.Stdin, command.Stdout, command.Stderr = string(t), strings.NewReader(names.String()), out, &said
	if err := command.Run(); err != nil {
		return fmt.Errorf("make the initramfs: busybox cpio: %w: %s", err, said.String())
	}
	return out.Close()
}
