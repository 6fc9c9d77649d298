package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// defaultKernel is Debian's meta-package of the kernel for virtual machines.
const defaultKernel = "linux-image-cloud-amd64"

// kernel is an unpacked package.
type kernel struct {
	release string // as uname -r
	image   string
	modules string // the directory that has kernel/
}

// findKernel downloads Debian's kernel and unpacks it below cache, if it is not there yet. It is
// not installed: an installed kernel would be what this machine boots next. want is "", the default
// of the Debian release, or the beginning of a version ("6.12").
func findKernel(ctx context.Context, want, cache string) (kernel, error) {
	name, err := kernelPackage(ctx, want)
	if err != nil {
		return kernel{}, fmt.Errorf("find a kernel: %w", err)
	}
	dir := filepath.Join(cache, name)
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		if err := download(ctx, name, dir); err != nil {
			return kernel{}, fmt.Errorf("get kernel package %s: %w", name, err)
		}
	}
	k := kernel{release: strings.TrimPrefix(name, "linux-image-")}
	k.image = filepath.Join(dir, "boot", "vmlinuz-"+k.release)
	for _, root := range []string{"lib", "usr/lib"} {
		if m := filepath.Join(dir, root, "modules", k.release); exists(filepath.Join(m, "kernel")) {
			k.modules = m
		}
	}
	if k.modules == "" || !exists(k.image) {
		return kernel{}, fmt.Errorf("kernel package %s in %s has no image or no modules: remove that directory and try again", name, dir)
	}
	return k, nil
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

func kernelPackage(ctx context.Context, want string) (string, error) {
	if want == "" {
		out, err := output(ctx, "apt-cache", "depends", "--important", defaultKernel)
		if err != nil {
			return "", err
		}
		for _, field := range strings.Fields(out) {
			if field != defaultKernel && cloud.MatchString(field) {
				return field, nil
			}
		}
		return "", fmt.Errorf("package %s is not known: run apt-get update", defaultKernel)
	}
	out, err := output(ctx, "apt-cache", "search", "--names-only", cloud.String())
	if err != nil {
		return "", err
	}
	return newest(strings.Fields(out), want)
}

var cloud = regexp.MustCompile(`^linux-image-[0-9].*-cloud-amd64$`)

// newest picks the package of the highest version that begins with want.
func newest(names []string, want string) (string, error) {
	var fit, all []string
	for _, n := range names {
		if !cloud.MatchString(n) {
			continue
		}
		all = append(all, n)
		rest, ok := strings.CutPrefix(n, "linux-image-"+want)
		if ok && strings.IndexAny(rest, "0123456789") != 0 { // 6.1 does not begin 6.12
			fit = append(fit, n)
		}
	}
	if len(fit) == 0 {
		slices.SortFunc(all, byVersion)
		return "", fmt.Errorf("the package lists have no kernel %s, but %s: run apt-get update, or choose one of these", want, strings.Join(all, ", "))
	}
	return slices.MaxFunc(fit, byVersion), nil
}

var numbers = regexp.MustCompile(`[0-9]+`)

func byVersion(a, b string) int {
	return slices.CompareFunc(numbers.FindAllString(a, -1), numbers.FindAllString(b, -1), func(a, b string) int {
		x, _ := strconv.Atoi(a) // both are digits
		y, _ := strconv.Atoi(b) // likewise
		return x - y
	})
}

// download unpacks the package into dir, which is there only if it is complete.
func download(ctx context.Context, name, dir string) error {
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(parent, ".get")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	get := exec.CommandContext(ctx, "apt-get", "download", name)
	get.Dir = work
	if out, err := get.CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get download: %w: %s: run apt-get update if the package is gone from the mirror", err, strings.TrimSpace(string(out)))
	}
	files, err := filepath.Glob(filepath.Join(work, "*.deb"))
	if err != nil || len(files) != 1 {
		return fmt.Errorf("apt-get download left %d packages: %w", len(files), err)
	}
	if _, err := output(ctx, "dpkg-deb", "--extract", files[0], filepath.Join(work, "tree")); err != nil {
		return err
	}
	return os.Rename(filepath.Join(work, "tree"), dir)
}

// output runs a command to its end and returns what it wrote.
func output(ctx context.Context, name string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return string(out), nil
}
