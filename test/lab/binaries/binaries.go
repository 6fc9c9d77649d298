// Package binaries builds the programs that a lab runs from source and keeps
// them in a cache: Kubernetes with etcd, CoreDNS and metrics-server from the
// nested modules under test/kube, and small programs of this module.
//
// A cached build is named by its version and a hash of everything that goes
// into it (module files, sources, flags, Go version, platform), so a second
// build of the same thing costs a few file reads. Builds appear by rename, an
// interrupted one leaves nothing that a later one would use.
package binaries

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Progress receives one line of text per step, at times from a goroutine of its
// own; it must not be nil.
type Progress func(line string)

// artifact is one binary built from a nested module.
type artifact struct {
	title   string   // what people read: "Kubernetes 1.34.4"
	name    string   // cache directory and file name of the binary
	version string   // part of the cache directory's name
	source  string   // module directory, relative to the repository
	ldflags string   // flags of the linker
	links   []string // further names of the binary
	cold    string   // how long a first build takes on two cores
}

const (
	// KubernetesVersion is the Kubernetes release that test/kube pins.
	KubernetesVersion = "1.34.4"
	// CoreDNSVersion is the CoreDNS release that test/kube/coredns pins.
	CoreDNSVersion = "1.14.4"
	// MetricsServerVersion is the metrics-server release that test/kube/metricsserver pins.
	MetricsServerVersion = "0.8.0"
)

var kubernetes = artifact{
	title: "Kubernetes " + KubernetesVersion, name: "kube", version: KubernetesVersion, source: "test/kube",
	ldflags: strings.Join([]string{"-s -w",
		"-X k8s.io/component-base/version.gitVersion=v" + KubernetesVersion,
		"-X k8s.io/component-base/version.gitMajor=1",
		"-X k8s.io/component-base/version.gitMinor=34",
		"-X k8s.io/client-go/pkg/version.gitVersion=v" + KubernetesVersion}, " "),
	links: []string{"etcd", "etcdutl", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl"},
	cold:  "6 minutes",
}

var coredns = artifact{
	title: "CoreDNS " + CoreDNSVersion, name: "coredns", version: CoreDNSVersion, source: "test/kube/coredns",
	ldflags: "-s -w", cold: "1 minute",
}

var metricsServer = artifact{
	title: "metrics-server " + MetricsServerVersion, name: "metrics-server", version: MetricsServerVersion, source: "test/kube/metricsserver",
	ldflags: "-s -w", cold: "2 minutes",
}

// Kubernetes returns a directory that holds kube-apiserver,
// kube-controller-manager, kube-scheduler, kubelet, kube-proxy, kubectl,
// etcd and etcdutl, building them first if the cache lacks them.
func Kubernetes(ctx context.Context, progress Progress) (dir string, err error) {
	return kubernetes.ensure(ctx, progress)
}

// CoreDNS returns the path of a static CoreDNS binary, building it first if the
// cache lacks it.
func CoreDNS(ctx context.Context, progress Progress) (file string, err error) {
	dir, err := coredns.ensure(ctx, progress)
	return filepath.Join(dir, coredns.name), err
}

// MetricsServer returns the path of a static metrics-server binary, building it
// first if the cache lacks it.
func MetricsServer(ctx context.Context, progress Progress) (file string, err error) {
	dir, err := metricsServer.ensure(ctx, progress)
	return filepath.Join(dir, metricsServer.name), err
}

// ensure returns the cache directory of a, filled.
func (a artifact) ensure(ctx context.Context, progress Progress) (string, error) {
	root, err := Repository()
	if err != nil {
		return "", err
	}
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	module := filepath.Join(root, filepath.FromSlash(a.source))
	key, err := a.key(module)
	if err != nil {
		return "", fmt.Errorf("hash the sources of %s: %w", a.title, err)
	}
	parent := filepath.Join(cache, a.name)
	dir := filepath.Join(parent, a.version+"-"+key)
	if complete(dir, a.name) {
		return dir, nil
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", fmt.Errorf("make the cache directory: %w (set PELAGO_CACHE to a writable directory)", err)
	}
	unlock, err := Lock(ctx, filepath.Join(parent, ".lock"))
	if err != nil {
		return "", fmt.Errorf("wait for another build of %s: %w", a.title, err)
	}
	defer unlock()
	if complete(dir, a.name) { // built by another process meanwhile
		return dir, nil
	}
	return dir, a.build(ctx, module, dir, progress)
}

// build compiles a in module and moves the result to dir.
func (a artifact) build(ctx context.Context, module, dir string, progress Progress) error {
	// Left by killed builds: with the lock held none is running.
	stale, err := filepath.Glob(filepath.Join(filepath.Dir(dir), ".building-*"))
	for _, old := range stale {
		err = errors.Join(err, os.RemoveAll(old))
	}
	if err != nil {
		return fmt.Errorf("clear the cache of %s: %w", a.title, err)
	}
	stop := heartbeat(fmt.Sprintf("building %s from its Go module (about %s the first time)", a.title, a.cold), progress)
	defer stop()
	tmp, err := os.MkdirTemp(filepath.Dir(dir), ".building-")
	if err != nil {
		return fmt.Errorf("build %s: %w", a.title, err)
	}
	defer os.RemoveAll(tmp)
	if err := goBuild(ctx, module, ".", filepath.Join(tmp, a.name), runtime.GOARCH, a.ldflags); err != nil {
		return fmt.Errorf("build %s: %w", a.title, err)
	}
	for _, link := range a.links {
		if err := os.Symlink(a.name, filepath.Join(tmp, link)); err != nil {
			return fmt.Errorf("build %s: %w", a.title, err)
		}
	}
	if err := os.Chmod(tmp, 0o755); err != nil { // MkdirTemp makes it private
		return fmt.Errorf("build %s: %w", a.title, err)
	}
	if err := os.Rename(tmp, dir); err != nil {
		return fmt.Errorf("move the build of %s into the cache: %w", a.title, err)
	}
	return nil
}

// Program compiles the main package pkg (an import path relative to the
// repository, such as "./cmd/pelago") of this module without cgo into the file
// out. Go's own build cache makes an unchanged program cheap.
func Program(ctx context.Context, pkg, out string) error {
	return compile(ctx, pkg, out, runtime.GOARCH, "-s -w")
}

// Release is Program for the architecture arch (a GOARCH), with a version that
// the program reports.
func Release(ctx context.Context, pkg, out, arch, version string) error {
	return compile(ctx, pkg, out, arch, "-s -w -X main.version="+version)
}

func compile(ctx context.Context, pkg, out, arch, ldflags string) error {
	root, err := Repository()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return fmt.Errorf("build %s: %w", pkg, err)
	}
	tmp := fmt.Sprintf("%s.%d", out, os.Getpid())
	defer os.Remove(tmp)
	if err := goBuild(ctx, root, pkg, tmp, arch, ldflags); err != nil {
		return fmt.Errorf("build %s: %w", pkg, err)
	}
	if err := os.Rename(tmp, out); err != nil {
		return fmt.Errorf("build %s: %w", pkg, err)
	}
	return nil
}

// goBuild runs "go build" in module. The result depends on nothing but sources,
// flags and Go version.
func goBuild(ctx context.Context, module, pkg, out, arch, ldflags string) error {
	goTool, err := exec.LookPath("go")
	if err != nil {
		return errors.New("the Go tool is not in PATH: install Go and put its bin directory into PATH (with sudo: sudo env PATH=\"$PATH\" …)")
	}
	cmd := exec.CommandContext(ctx, goTool, "build", "-trimpath", "-buildvcs=false", "-ldflags", ldflags, "-o", out, pkg)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOOS=linux", "GOARCH="+arch)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, strings.TrimSpace(string(output)))
	}
	return nil
}

// heartbeat prints title now, a reminder each half minute and the time used
// when the returned function is called.
func heartbeat(title string, progress Progress) (stop func()) {
	start := time.Now()
	progress(title + "…")
	done := make(chan struct{})
	go func() {
		tick := time.NewTicker(30 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				progress(fmt.Sprintf("%s… %s so far", title, time.Since(start).Round(time.Second)))
			case <-done:
				return
			}
		}
	}()
	return func() {
		close(done)
		progress(fmt.Sprintf("%s: %s", title, time.Since(start).Round(100*time.Millisecond)))
	}
}

// complete reports whether dir holds a finished build of name.
func complete(dir, name string) bool {
	info, err := os.Stat(filepath.Join(dir, name))
	return err == nil && info.Mode().IsRegular()
}

// Lock takes an exclusive lock on file, which it creates.
func Lock(ctx context.Context, file string) (unlock func(), err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			f.Close()
			return nil, err
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}
