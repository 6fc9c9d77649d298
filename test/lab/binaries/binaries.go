// Package binaries builds the programs that a lab runs from source and keeps
// them in a cache: Kubernetes with etcd, containerd, CoreDNS and metrics-server
// from the nested modules under test/kube, and small programs of this module.
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
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/test/need"
)

// Progress receives one line of text per step, at times from a goroutine of its
// own; it must not be nil.
type Progress func(line string)

// artifact is one binary built from a nested module.
type artifact struct {
	title   string // what people read: "Kubernetes 1.37.2"
	name    string // cache directory and file name of the binary
	version string // part of the cache directory's name
	source  string // module directory, relative to the repository
	modfile string // file of the module directory used in place of go.mod; empty: go.mod
	tags    string // build tags
	// import paths to build, each into a file of its last element; none: the module's root, into
	// name
	packages []string
	programs map[string]string // in place of packages: import paths by the file to build them into
	copies   map[string]string // folders of the module of, by the name that they get
	of       string            // path of a module
	cgo      bool
	ldflags  string   // flags of the linker
	links    []string // further names of the binary
	cold     string   // how long a first build takes on two cores
}

const (
	// KubernetesVersion is the Kubernetes release that test/kube pins.
	KubernetesVersion = "1.37.2"
	// ContainerdVersion is the containerd release that test/kube/containerd pins.
	ContainerdVersion = "2.4.2"
	// CoreDNSVersion is the CoreDNS release that test/kube/coredns pins.
	CoreDNSVersion = "1.15.0"
	// MetricsServerVersion is the metrics-server release that test/kube/metricsserver pins.
	MetricsServerVersion = "0.9.0"
)

// controlPlane are the programs that every build of Kubernetes has.
var controlPlane = []string{"etcd", "etcdutl", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"}

var kubernetes = artifact{
	title: "Kubernetes " + KubernetesVersion, name: "kube", version: KubernetesVersion, source: "test/kube",
	ldflags: kubernetesFlags(KubernetesVersion), links: append([]string{"kubelet", "kube-proxy"}, controlPlane...), cold: "6 minutes",
}

// kubernetesFlags have the programs report their version.
func kubernetesFlags(version string) string {
	minor := strings.Split(version, ".")[1]
	return strings.Join([]string{"-s -w",
		"-X k8s.io/component-base/version.gitVersion=v" + version,
		"-X k8s.io/component-base/version.gitMajor=1",
		"-X k8s.io/component-base/version.gitMinor=" + minor,
		"-X k8s.io/client-go/pkg/version.gitVersion=v" + version}, " ")
}

// OldestHub and OldestMember are the oldest supported releases of Kubernetes (docs/reference.md),
// which test/kube can build, too.
const (
	OldestHub    = "1.35.4"
	OldestMember = "1.33.13"
)

// olderKubernetes is a control plane of an older release, from the module file of its minor
// version.
func olderKubernetes(version string) artifact {
	return artifact{
		title: "Kubernetes " + version, name: "kube", version: version, source: "test/kube",
		modfile: "release-" + version[:strings.LastIndex(version, ".")] + ".mod", tags: "controlplane",
		ldflags: kubernetesFlags(version), links: controlPlane, cold: "5 minutes",
	}
}

const containerdModule = "github.com/containerd/containerd/v2"

var containerd = artifact{
	title: "containerd " + ContainerdVersion, name: "containerd", version: ContainerdVersion, source: "test/kube/containerd",
	packages: []string{containerdModule + "/cmd/containerd", containerdModule + "/cmd/containerd-shim-runc-v2", containerdModule + "/cmd/ctr"},
	ldflags:  "-s -w -X " + containerdModule + "/version.Version=" + ContainerdVersion, cold: "2 minutes",
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

// KubernetesRelease is Kubernetes for KubernetesVersion, OldestHub or
// OldestMember; the latter two without kubelet and kube-proxy.
func KubernetesRelease(ctx context.Context, version string, progress Progress) (dir string, err error) {
	switch version {
	case KubernetesVersion:
		return Kubernetes(ctx, progress)
	case OldestHub, OldestMember:
		return olderKubernetes(version).ensure(ctx, progress)
	}
	return "", fmt.Errorf("find Kubernetes %s: test/kube builds %s, %s and %s", version, OldestMember, OldestHub, KubernetesVersion)
}

// Containerd returns a directory that holds containerd, containerd-shim-runc-v2
// and ctr, building them first if the cache lacks them.
func Containerd(ctx context.Context, progress Progress) (dir string, err error) {
	return containerd.ensure(ctx, progress)
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
	if os.Getenv(need.TierVariable) == need.TierCheck {
		return "", fmt.Errorf("%s is not for `make check`: the test is to ask package need", a.title)
	}
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
	packages, out := a.packages, tmp
	if packages == nil {
		packages, out = []string{"."}, filepath.Join(tmp, a.name)
	}
	var flags []string
	if a.modfile != "" {
		flags = append(flags, "-modfile="+a.modfile)
	}
	if a.tags != "" {
		flags = append(flags, "-tags="+a.tags)
	}
	compile := func(out string, packages ...string) error {
		return goBuild(ctx, module, out, Platform{"linux", runtime.GOARCH}, a.cgo, a.ldflags, append(slices.Clone(flags), packages...)...)
	}
	if a.programs == nil {
		err = compile(out, packages...)
	}
	for file, path := range a.programs {
		err = errors.Join(err, compile(filepath.Join(tmp, file), path))
	}
	if err == nil {
		err = a.copyFolders(ctx, module, tmp)
	}
	if err != nil {
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

// copyFolders copies folders of the module a.of into dir.
func (a artifact) copyFolders(ctx context.Context, module, dir string) error {
	if len(a.copies) == 0 {
		return nil
	}
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", a.of)
	cmd.Dir, cmd.Env = module, append(os.Environ(), "GOWORK=off")
	root, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("find the sources of %s: %w", a.of, err)
	}
	for to, from := range a.copies {
		if err := os.CopyFS(filepath.Join(dir, to), os.DirFS(filepath.Join(strings.TrimSpace(string(root)), from))); err != nil {
			return fmt.Errorf("copy %s of %s: %w", from, a.of, err)
		}
	}
	return nil
}

// Program compiles the main package pkg (an import path relative to the
// repository, such as "./cmd/pelago") of this module without cgo into the file
// out. Go's own build cache makes an unchanged program cheap.
func Program(ctx context.Context, pkg, out string) error {
	return compile(ctx, pkg, out, Platform{"linux", runtime.GOARCH}, "-s -w")
}

// Platform is what a program is compiled for: a GOOS and a GOARCH.
type Platform struct{ OS, Arch string }

// Release is Program for a platform, with a version that the program reports, and
// the image that it installs if none is named; without an image, that of a build
// without a release.
func Release(ctx context.Context, pkg, out string, platform Platform, version, image string) error {
	return compile(ctx, pkg, out, platform, releaseFlags(version, image))
}

func releaseFlags(version, image string) string {
	flags := "-s -w -X main.version=" + version
	if image != "" {
		flags += " -X github.com/pelago-net/pelago/deploy/manifests.DefaultImage=" + image
	}
	return flags
}

func compile(ctx context.Context, pkg, out string, platform Platform, ldflags string) error {
	root, err := Repository()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return fmt.Errorf("build %s: %w", pkg, err)
	}
	tmp := fmt.Sprintf("%s.%d", out, os.Getpid())
	defer os.Remove(tmp)
	if err := goBuild(ctx, root, tmp, platform, false, ldflags, pkg); err != nil {
		return fmt.Errorf("build %s: %w", pkg, err)
	}
	if err := os.Rename(tmp, out); err != nil {
		return fmt.Errorf("build %s: %w", pkg, err)
	}
	return nil
}

// goBuild runs "go build" in module. The result depends on nothing but sources,
// flags and Go version.
func goBuild(ctx context.Context, module, out string, platform Platform, cgo bool, ldflags string, flagsAndPackages ...string) error {
	goTool, err := exec.LookPath("go")
	if err != nil {
		return errors.New("the Go tool is not in PATH: install Go and put its bin directory into PATH (with sudo: sudo env PATH=\"$PATH\" …)")
	}
	args := append([]string{"build", "-trimpath", "-buildvcs=false", "-ldflags", ldflags, "-o", out}, flagsAndPackages...)
	cmd := exec.CommandContext(ctx, goTool, args...)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+map[bool]string{true: "1", false: "0"}[cgo], "GOWORK=off", "GOOS="+platform.OS, "GOARCH="+platform.Arch)
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
