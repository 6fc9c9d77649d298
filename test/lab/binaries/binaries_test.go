package binaries

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/test/need"
)

// tree makes a repository with a nested module whose program prints text, and
// points the package at it and at an empty cache.
func tree(t *testing.T, text string) artifact {
	t.Helper()
	root := t.TempDir()
	t.Setenv("PELAGO_ROOT", root)
	t.Setenv("PELAGO_CACHE", filepath.Join(t.TempDir(), "cache"))
	t.Setenv(need.TierVariable, "") // a program of the standard library alone
	write(t, filepath.Join(root, "go.mod"), "module "+module+"\n\ngo 1.24\n")
	write(t, filepath.Join(root, "tool/go.mod"), "module example.com/tool\n\ngo 1.24\n")
	write(t, filepath.Join(root, "tool/main.go"), program(text))
	return artifact{title: "a tool", name: "tool", version: "1.0", source: "tool", ldflags: "-s -w", links: []string{"alias"}, cold: "a second"}
}

func program(text string) string {
	return "package main\n\nfunc main() { println(\"" + text + "\") }\n"
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestBuildIsCachedBySources(t *testing.T) {
	a := tree(t, "one")
	var lines []string
	progress := func(line string) { lines = append(lines, line) }
	first, err := a.ensure(t.Context(), progress)
	if err != nil {
		t.Fatal(err)
	}
	if len(lines) != 2 || !strings.Contains(lines[0], "building a tool from its Go module (about a second the first time)") {
		t.Errorf("progress of the first build = %q, want its start and its end", lines)
	}
	if target, err := os.Readlink(filepath.Join(first, "alias")); err != nil || target != "tool" {
		t.Errorf("link alias = %q, %v", target, err)
	}
	lines = nil
	again, err := a.ensure(t.Context(), progress)
	if err != nil || again != first || len(lines) != 0 {
		t.Errorf("second build: dir %s, progress %q, error %v; want %s from the cache, silently", again, lines, err, first)
	}
	write(t, filepath.Join(os.Getenv("PELAGO_ROOT"), "tool/main.go"), program("two"))
	changed, err := a.ensure(t.Context(), progress)
	if err != nil || changed == first || len(lines) == 0 {
		t.Errorf("build after a change: dir %s, progress %q, error %v; want a new one", changed, lines, err)
	}
}

// TestPrograms: files with names of their own, and a folder of a module beside them.
func TestPrograms(t *testing.T) {
	a := tree(t, "one")
	a.links, a.programs = nil, map[string]string{"tool": "example.com/tool"}
	first, err := a.ensure(t.Context(), func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(os.Getenv("PELAGO_ROOT"), "tool/data/one.txt"), "text")
	a.of, a.copies = "example.com/tool", map[string]string{"files": "data"}
	second, err := a.ensure(t.Context(), func(string) {})
	if err != nil || second == first {
		t.Fatalf("with a folder to copy: %s, %v; want another build than %s", second, err, first)
	}
	if text, err := os.ReadFile(filepath.Join(second, "files/one.txt")); err != nil || string(text) != "text" {
		t.Errorf("the copied file has %q, %v", text, err)
	}
	a.copies = map[string]string{"files": "absent"}
	if _, err := a.ensure(t.Context(), func(string) {}); err == nil || !strings.Contains(err.Error(), "copy absent of example.com/tool") {
		t.Errorf("a folder that the module lacks: %v, want an error that names it", err)
	}
}

func TestFailedBuildLeavesNothing(t *testing.T) {
	a := tree(t, "one")
	write(t, filepath.Join(os.Getenv("PELAGO_ROOT"), "tool/main.go"), "package main\n\nfunc main() { undefinedName() }\n")
	_, err := a.ensure(t.Context(), func(string) {})
	if err == nil || !strings.Contains(err.Error(), "build a tool") || !strings.Contains(err.Error(), "undefinedName") {
		t.Fatalf("error = %v, want one that names the tool and shows the compiler's words", err)
	}
	entries, err := os.ReadDir(filepath.Join(os.Getenv("PELAGO_CACHE"), "tool"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != ".lock" {
			t.Errorf("left behind: %s", e.Name())
		}
	}
}

func TestStaleBuildsAreCleared(t *testing.T) {
	a := tree(t, "one")
	stale := filepath.Join(os.Getenv("PELAGO_CACHE"), "tool", ".building-123")
	write(t, filepath.Join(stale, "tool"), "half")
	if _, err := a.ensure(t.Context(), func(string) {}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(stale); !os.IsNotExist(err) {
		t.Errorf("a killed build's directory is still there: %v", err)
	}
}

func TestRepository(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "go.mod"), "module "+module+"\n")
	write(t, filepath.Join(root, "nested/go.mod"), "module "+module+"/nested\n")
	t.Setenv("PELAGO_ROOT", "")
	t.Chdir(filepath.Join(root, "nested"))
	got, err := Repository()
	if err != nil {
		t.Fatal(err)
	}
	if resolved, _ := filepath.EvalSymlinks(root); got != root && got != resolved {
		t.Errorf("Repository() in a nested module = %s, want %s", got, root)
	}
	t.Setenv("PELAGO_ROOT", t.TempDir())
	if _, err := Repository(); err == nil || !strings.Contains(err.Error(), "PELAGO_ROOT=") {
		t.Errorf("Repository() with a wrong PELAGO_ROOT: %v, want an error that names it", err)
	}
}

func TestCacheDir(t *testing.T) {
	t.Setenv("PELAGO_CACHE", "")
	t.Setenv("XDG_CACHE_HOME", "/xdg")
	if dir, err := CacheDir(); err != nil || dir != "/xdg/pelago" {
		t.Errorf("CacheDir() = %s, %v, want /xdg/pelago", dir, err)
	}
	t.Setenv("PELAGO_CACHE", "/own")
	if dir, err := CacheDir(); err != nil || dir != "/own" {
		t.Errorf("CacheDir() = %s, %v, want /own", dir, err)
	}
}

// TestVersions keeps the constants equal to what the nested modules pin.
func TestVersions(t *testing.T) {
	root, err := Repository()
	if err != nil {
		t.Fatal(err)
	}
	for file, line := range map[string]string{
		"test/kube/go.mod":               "k8s.io/kubernetes v" + KubernetesVersion,
		"test/kube/release-1.35.mod":     "k8s.io/kubernetes v" + OldestHub,
		"test/kube/release-1.33.mod":     "k8s.io/kubernetes v" + OldestMember,
		"test/kube/containerd/go.mod":    "github.com/containerd/containerd/v2 v" + ContainerdVersion,
		"test/kube/coredns/go.mod":       "github.com/coredns/coredns v" + CoreDNSVersion,
		"test/kube/metricsserver/go.mod": "sigs.k8s.io/metrics-server v" + MetricsServerVersion,
		"test/kube/cilium/go.mod":        ciliumModule + " v" + CiliumVersion,
		"test/kube/flannel/go.mod":       "github.com/flannel-io/flannel v" + FlannelVersion,
		"test/kube/flannelplugin/go.mod": "github.com/containernetworking/plugins v" + flannelPlugin.version,
		"test/kube/kuberouter/go.mod":    kubeRouterModule + " v" + KubeRouterVersion,
	} {
		data, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(data), line) {
			t.Errorf("%s does not require %s", file, line)
		}
	}
}

// TestReleaseSetsTheDefaultImage: the linker ignores a flag that names no variable, so it is
// compared with the variable's package.
func TestReleaseSetsTheDefaultImage(t *testing.T) {
	_ = &manifests.DefaultImage // a variable: the linker cannot set a constant
	flag := "-X " + reflect.TypeFor[manifests.MemberOptions]().PkgPath() + ".DefaultImage="
	if got, want := releaseFlags("v1", "registry.example/pelago:v1"), "-s -w -X main.version=v1 "+flag+"registry.example/pelago:v1"; got != want {
		t.Errorf("flags %q, want %q", got, want)
	}
	if got := releaseFlags("v1", ""); strings.Contains(got, "DefaultImage") {
		t.Errorf("without an image: flags %q", got)
	}
	makefile, err := os.ReadFile("../../../Makefile")
	if err != nil || !strings.Contains(string(makefile), flag+"$(IMAGE)") {
		t.Errorf("make build does not set %s (%v)", flag, err)
	}
}
