package lab

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pelago-net/pelago/test/await"
)

func TestParseStat(t *testing.T) {
	const rest = " 1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 1000 200"
	tests := []struct {
		line string
		want procStat
		err  bool
	}{
		{"12 (sleep) S" + rest, procStat{'S', 4711}, false},
		{"12 (a) b) (c) T" + rest, procStat{'T', 4711}, false},
		{"12 (sleep", procStat{}, true},
		{"12 (sleep) S 1 2", procStat{}, true},
		{"", procStat{}, true},
	}
	for _, test := range tests {
		got, err := parseStat(test.line)
		if (err != nil) != test.err || got != test.want {
			t.Errorf("parseStat(%q) = %+v, %v; want %+v, error %v", test.line, got, err, test.want, test.err)
		}
	}
}

func startSleep(t *testing.T) (process, <-chan error) {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // usually gone already
	p, err := identify("sleep", cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return p, done
}

func TestOnlyTheVeryProcessIsSignalled(t *testing.T) {
	p, done := startSleep(t)
	if !p.alive() {
		t.Fatal("a running process does not count as alive")
	}
	for name, other := range map[string]process{
		"another start time (a recycled pid)": {Name: "x", PID: p.PID, Start: p.Start + 1, Boot: p.Boot},
		"another boot":                        {Name: "x", PID: p.PID, Start: p.Start, Boot: "00000000-0000-0000-0000-000000000000"},
		"no process":                          {},
	} {
		if other.alive() {
			t.Errorf("%s: counts as alive", name)
		}
		if err := other.signal(syscall.SIGKILL); err != nil {
			t.Errorf("%s: %v, want no error", name, err)
		}
	}
	select {
	case err := <-done:
		t.Fatalf("a signal for another process ended ours: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	if err := kill([]process{p}); err != nil {
		t.Fatal(err)
	}
	if p.alive() {
		t.Error("alive after kill")
	}
	if err := p.signal(syscall.SIGKILL); err != nil {
		t.Errorf("signal to a process that is gone: %v, want no error", err)
	}
}

func TestProcessState(t *testing.T) {
	p, _ := startSleep(t)
	becomes := func(want byte) {
		t.Helper()
		await.Equal(t, string(want), func() string { return string(p.state()) })
	}
	becomes('S')
	if err := p.signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	becomes('T')
	if err := p.signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	becomes('S')
}

func TestRecordedProcesses(t *testing.T) {
	l := &Lab{dir: t.TempDir()}
	if p := l.recorded("g1/etcd"); p.alive() {
		t.Errorf("nothing is recorded: %+v counts as alive", p)
	}
	want := []process{{Name: "g1-n1/init", PID: 8, Start: 2, Boot: "b"}, {Name: "g1/etcd", PID: 7, Start: 1, Boot: "b"}}
	for _, p := range want {
		if err := writeJSON(l.processFile(p.Name), p); err != nil {
			t.Fatal(err)
		}
	}
	got, err := l.allRecorded()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	if err := os.WriteFile(l.processFile("broken"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := l.allRecorded(); err == nil || !strings.Contains(err.Error(), "broken.json") {
		t.Errorf("unreadable record: %v, want an error that names the file", err)
	}
}

func TestStraysAreFoundByTheirID(t *testing.T) {
	l := &Lab{record: record{ID: "TESTONLY" + t.Name()}}
	cmd := exec.Command("sleep", "60")
	cmd.Env = []string{idVariable + "=" + l.record.ID}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = cmd.Wait() }()
	strays, err := l.strays()
	if err != nil {
		t.Fatal(err)
	}
	if len(strays) != 1 || strays[0].PID != cmd.Process.Pid {
		t.Errorf("strays = %+v, want just pid %d", strays, cmd.Process.Pid)
	}
	if err := kill(strays); err != nil {
		t.Error(err)
	}
}

func TestLastLines(t *testing.T) {
	file := t.TempDir() + "/log"
	if got := lastLines(file, 2); got != "" {
		t.Errorf("no file: %q", got)
	}
	if err := os.WriteFile(file, []byte("a\nb\nc\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := lastLines(file, 2); got != "b\nc" {
		t.Errorf("last two lines = %q", got)
	}
	if got := lastLines(file, 9); got != "a\nb\nc" {
		t.Errorf("more than there are = %q", got)
	}
}

func TestMountsBelow(t *testing.T) {
	const info = `21 1 254:0 / / rw - ext4 /dev/vda rw
40 21 0:50 / /var/lib/pelago-lab/x/root rw - tmpfs tmpfs rw
41 40 0:51 / /var/lib/pelago-lab/x/root/sys rw - sysfs sysfs rw
42 21 0:52 / /var/lib/pelago-lab/xy rw - tmpfs tmpfs rw
`
	want := []string{"/var/lib/pelago-lab/x/root/sys", "/var/lib/pelago-lab/x/root"}
	if diff := cmp.Diff(want, mountsBelow(info, "/var/lib/pelago-lab/x")); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
}

func TestNamespacePatternOfALostRecord(t *testing.T) {
	l := &Lab{record: record{Plan: Plan{Name: "x"}}}
	for name, want := range map[string]bool{"x-router": true, "x-g1": true, "x-g12-n3": true, "x-g1-switch": true, "x-hub": true, "x-hub-switch": true,
		"x": false, "x-other": false, "xy-g1": false, "y-g1": false, "x-g1-nope": false} {
		if got := l.namespacePattern().MatchString(name); got != want {
			t.Errorf("namespace %s is the lab's: %v, want %v", name, got, want)
		}
	}
}
