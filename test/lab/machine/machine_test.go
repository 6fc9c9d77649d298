package machine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestCgroupHierarchies(t *testing.T) {
	v1 := t.TempDir()
	write(t, filepath.Join(v1, "cpu/cgroup.procs"), "")
	write(t, filepath.Join(v1, "memory/cgroup.procs"), "")
	write(t, filepath.Join(v1, "unified/cgroup.procs"), "")
	write(t, filepath.Join(v1, "unified/cgroup.controllers"), "")
	write(t, filepath.Join(v1, "other/file"), "")
	v2 := t.TempDir()
	write(t, filepath.Join(v2, "cgroup.controllers"), "cpu memory")
	write(t, filepath.Join(v2, "system.slice/cgroup.procs"), "")

	if dirs, isV2, err := cgroupHierarchies(v1); err != nil || isV2 || !cmp.Equal(dirs, []string{v1 + "/cpu", v1 + "/memory"}) {
		t.Errorf("v1: %q, v2 %v, %v; want cpu and memory, without the v2 hierarchy beside them", dirs, isV2, err)
	}
	if dirs, isV2, err := cgroupHierarchies(v2); err != nil || !isV2 || !cmp.Equal(dirs, []string{v2}) {
		t.Errorf("v2: %q, v2 %v, %v; want the mount itself", dirs, isV2, err)
	}
	if got := unifiedHierarchy(v1); got != v1+"/unified" {
		t.Errorf("v1: the v2 hierarchy is at %s, want the one beside", got)
	}
	if got := unifiedHierarchy(v2); got != v2 {
		t.Errorf("v2: the hierarchy is at %s, want the mount itself", got)
	}
	if _, _, err := cgroupHierarchies(t.TempDir()); err == nil {
		t.Error("nothing mounted: no error")
	}
}

func TestPodCgroup(t *testing.T) {
	root := unifiedHierarchy(cgroupMount)
	for text, want := range map[string]string{
		"4:memory:/pelago-lab/g1\n0::/pelago-lab/g1/pod1/c1\n": root + "/pelago-lab/g1/pod1/c1",
		"0::/kubepods.slice/c1\n":                              root + "/kubepods.slice/c1",
		"4:memory:/x\n0::/\n":                                  "",
		"4:memory:/x\n":                                        "",
	} {
		if got := PodCgroup(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestInheritCPUs(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "cpuset.cpus"), "0-1\n")
	write(t, filepath.Join(dir, "cpuset.mems"), "0\n")
	child := filepath.Join(dir, "child")
	write(t, filepath.Join(child, "cpuset.cpus"), "\n")
	write(t, filepath.Join(child, "cpuset.mems"), "1\n")
	if err := inheritCPUs(dir, child); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		data, err := os.ReadFile(filepath.Join(child, file))
		if err != nil {
			t.Fatal(err)
		}
		got[file] = strings.TrimSpace(string(data))
	}
	want := map[string]string{"cpuset.cpus": "0-1", "cpuset.mems": "1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("an empty setting is copied, a set one kept (-want +got):\n%s", diff)
	}
}

// The CPU controller's file is written, and no other hierarchy gets one.
func TestWeigh(t *testing.T) {
	dir := t.TempDir()
	for version, want := range map[string]string{"cpu.shares": "16384", "cpu.weight": "1600"} {
		group := filepath.Join(dir, version)
		write(t, filepath.Join(group, version), "")
		weighed, err := weigh(group, 16)
		got, readErr := os.ReadFile(filepath.Join(group, version))
		if err != nil || !weighed || readErr != nil || string(got) != want {
			t.Errorf("%s: %v, %v, %q, %v; want %q", version, weighed, err, got, readErr, want)
		}
	}
	if weighed, err := weigh(filepath.Join(dir, "memory"), 16); weighed || err != nil {
		t.Errorf("another controller: %v, %v", weighed, err)
	}
}

func TestRemoveCgroup(t *testing.T) {
	mount := t.TempDir()
	for _, dir := range []string{"cpu/lab/x/g1-n1/kubepods/pod1", "memory/lab/x/g1-n1", "cpu/lab/y", "cpu/other"} {
		if err := os.MkdirAll(filepath.Join(mount, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeCgroup(mount, "/lab/x", time.Second); err != nil {
		t.Fatal(err)
	}
	for dir, stays := range map[string]bool{"cpu/lab/x": false, "memory/lab/x": false, "cpu/lab/y": true, "cpu/other": true} {
		if _, err := os.Stat(filepath.Join(mount, dir)); (err == nil) != stays {
			t.Errorf("%s: %v, want it to stay: %v", dir, err, stays)
		}
	}
	// A busy cgroup cannot be removed: the error names it, after the limit.
	write(t, filepath.Join(mount, "cpu/lab/busy/in-use"), "")
	if err := removeCgroup(mount, "/lab/busy", 20*time.Millisecond); err == nil || !strings.Contains(err.Error(), "cpu/lab/busy") {
		t.Errorf("busy cgroup: %v, want an error that names it", err)
	}
}

func TestReaperReportsExits(t *testing.T) {
	r := newReaper(t.TempDir())
	go r.loop()
	if err := r.run("ok", service{argv: []string{"cat"}, input: "hello"}); err != nil {
		t.Errorf("cat: %v", err)
	}
	if data, err := os.ReadFile(filepath.Join(r.logs, "ok.log")); err != nil || string(data) != "hello" {
		t.Errorf("log of cat = %q, %v; want its output", data, err)
	}
	err := r.run("fails", service{argv: []string{"sh", "-c", "exit 3"}})
	if err == nil || !strings.Contains(err.Error(), "exit status 3 (see fails.log)") {
		t.Errorf("sh: %v, want its exit status and where its output is", err)
	}
	if err := r.run("missing", service{argv: []string{"/no/such/program"}}); err == nil {
		t.Error("missing program: no error")
	}
}

func TestDescribe(t *testing.T) {
	for status, want := range map[unix.WaitStatus]string{0: "exit status 0", 2 << 8: "exit status 2", unix.WaitStatus(unix.SIGKILL): "killed by SIGKILL"} {
		if got := describe(status); got != want {
			t.Errorf("describe(%#x) = %q, want %q", status, got, want)
		}
	}
}

func TestReadSpec(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadSpec(dir); err == nil {
		t.Error("no file: no error")
	}
	write(t, SpecFile(dir), `{"hostname":"g1-n1","dir":"/d","bootID":"b"}`)
	got, err := ReadSpec(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Spec{Hostname: "g1-n1", Dir: "/d", BootID: "b"}, got); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
}

func TestRunRefusesToBeAnOrdinaryProcess(t *testing.T) {
	if err := Run(Spec{}); err == nil || !strings.Contains(err.Error(), "pid 1") {
		t.Errorf("Run outside of a pid namespace: %v, want an error that says so", err)
	}
}
