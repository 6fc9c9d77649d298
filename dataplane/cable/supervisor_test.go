//go:build linux

package cable

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pelago-net/pelago/test/await"
)

// supervised is a gateway whose IKE daemon a Supervisor runs, as in production.
type supervised struct {
	*gateway
	dir    string
	starts chan *exec.Cmd // the daemons that were started
	end    func()         // ends the supervisor and waits for it
	// drainTimeout is Supervisor.DrainTimeout, watchInterval WatchInterval.
	drainTimeout, watchInterval time.Duration
}

func supervise(t *testing.T, g *gateway) *supervised {
	t.Helper()
	dir, err := os.MkdirTemp("", "ike") // the path of a socket is short
	must(t, err)
	s := &supervised{gateway: g, dir: dir, starts: make(chan *exec.Cmd, 10)}
	s.open()
	s.run(t)
	t.Cleanup(func() {
		g.wire.Close()
		s.end()
		os.RemoveAll(dir)
	})
	return s
}

func (s *supervised) open() {
	s.wire = NewIPsec(IPsecOptions{Dir: s.dir, Log: slog.New(slog.DiscardHandler)})
}

func (s *supervised) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	start := func(environment []string) (*exec.Cmd, error) {
		c := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", "mount -t tmpfs none /run && exec "+charonBinary)
		c.Env = environment
		if err := s.ns.Start(c); err != nil {
			return nil, err
		}
		s.starts <- c
		return c, nil
	}
	go func() {
		ended <- Supervisor{
			Dir: s.dir, DrainTimeout: s.drainTimeout, WatchInterval: s.watchInterval, Start: start, Log: slog.New(slog.DiscardHandler),
		}.Run(ctx)
	}()
	s.end = func() {
		cancel()
		must(t, <-ended)
		ended <- nil
	}
}

func (s *supervised) started(t *testing.T) *exec.Cmd {
	t.Helper()
	select {
	case c := <-s.starts:
		return c
	case <-time.After(10 * time.Second):
		t.Fatal("the IKE daemon was not started")
		return nil
	}
}

func alive(c *exec.Cmd) bool { return c.Process.Signal(syscall.Signal(0)) == nil }

// The IKE daemon runs while the node is a gateway. When it crashes, when its container ends and
// when pelago-node starts again, the tunnel comes back by itself.
func TestSupervisor(t *testing.T) {
	s := newSet(t, 2)
	a, b := supervise(t, s.gateways[0]), supervise(t, s.gateways[1])
	time.Sleep(2 * pollInterval) // it may not start one
	if len(a.starts) > 0 {
		t.Fatal("a daemon runs on a node that is no gateway")
	}
	if id, err := a.wire.Identity(); err != nil || id[IdentityESP] != "" {
		t.Errorf("before the daemon runs its identity is %v, %v", id, err)
	}
	s.join(t)
	esp := ESPUserspace
	if KernelESP() == nil {
		esp = ESPKernel
	}
	if id, err := a.wire.Identity(); err != nil || id[IdentityESP] != esp || id[IdentityIKE] != "psk" {
		t.Errorf("with ESP in the %s the identity is %v, %v", esp, id, err)
	}
	passes := func(what string) {
		t.Helper()
		begin := time.Now()
		for ; time.Since(begin) < 30*time.Second; time.Sleep(200 * time.Millisecond) {
			// What fails while there is no daemon is repeated by the next call, as pelago-node
			// does.
			err := errors.Join(a.tryEnsure(b.peer(t)), b.tryEnsure(a.peer(t)))
			if err == nil && reaches(t, a.gateway, b.gateway, 300*time.Millisecond) {
				t.Logf("%s: back after %.1f s", what, time.Since(begin).Seconds())
				return
			}
		}
		t.Fatalf("%s: nothing passes", what)
	}
	passes("at first")

	if esp == ESPUserspace { // it has room for what comes while it is not scheduled
		await.Equal(t, 2, func() int { // the kernel doubles it
			return strings.Count(run(t, a.ns, "ss", "-Hlnum", "sport", "=", "4500"), fmt.Sprintf("rb%d,", 2*receiveBuffer))
		})
		if out := run(t, a.ns, "ip", "link", "show", "ipsec0"); !strings.Contains(out, fmt.Sprintf("qlen %d", tunQueue)) {
			t.Errorf("the daemon's TUN, want a queue of %d packets:\n%s", tunQueue, out)
		}
	}

	first := a.started(t)
	must(t, first.Process.Kill())
	second := a.started(t)
	passes("a daemon that crashed")

	a.end()
	if alive(second) {
		t.Error("the daemon has outlived its container")
	}
	a.run(t)
	a.started(t)
	passes("the container restarted")
	// Those are the old keys where the kernel has them. A daemon knows its own only.
	a.await(t, b.gateway, func(st Status) bool { return st.Tunnels == 1 })

	b.started(t)
	must(t, b.wire.Close())
	b.open()
	there := stream(t, a.gateway, b.gateway)
	b.ensure(t, a.peer(t))
	time.Sleep(2 * pollInterval) // it may not start one
	calm(t, there)
	if len(b.starts) > 0 {
		t.Error("a pelago-node that starts anew restarts the IKE daemon")
	}

	b.local.Listen = 4501 // join --nattport
	b.ensure(t, a.peer(t))
	third := b.started(t)
	passes("another port")

	must(t, b.ns.Do(b.wire.Remove))
	for end := time.Now().Add(10 * time.Second); alive(third); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the daemon runs on a node that is a gateway no more")
		}
	}
	if out := run(t, b.ns, "ss", "-Hlnu"); strings.TrimSpace(out) != "" {
		t.Errorf("something still listens: %s", out)
	}
	must(t, b.ns.Do(b.wire.Remove)) // again, without a daemon
}

// A daemon that does ESP itself continues until pelago-node, which ends at the same time, no longer
// uses it. The notice of an earlier process has no effect.
func TestSupervisorWaitsForPelagoNode(t *testing.T) {
	s := newSet(t, 1)
	a := supervise(t, s.gateways[0])
	a.end()
	a.drainTimeout = time.Minute
	a.run(t)
	wire := a.wire.(*IPsec)
	wire.kernel = func() error { return errors.New("ESP, for this test") }
	must(t, wire.leave())
	a.ensure(t)
	daemon := a.started(t)
	ended := make(chan struct{})
	go func() { a.end(); close(ended) }()
	await.Never(t, 2*pollInterval, "the daemon ends before pelago-node has left", func() bool { return !alive(daemon) })
	must(t, wire.leave())
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Fatal("the supervisor goes on although pelago-node has left")
	}
	if alive(daemon) {
		t.Error("the daemon has outlived its supervisor")
	}
}

// A daemon that hangs is killed and started again; one that answers stays.
func TestSupervisorEndsHangingDaemon(t *testing.T) {
	s := newSet(t, 1)
	a := supervise(t, s.gateways[0])
	a.end()
	a.watchInterval = 3 * time.Second
	a.run(t)
	a.ensure(t)
	first := a.started(t)
	await.Never(t, (maxUnanswered+1)*a.watchInterval, "a daemon that answers is killed", func() bool { return !alive(first) })
	must(t, first.Process.Signal(syscall.SIGSTOP))
	await.True(t, "a hanging daemon is killed", func() bool { return !alive(first) })
	second := a.started(t)
	await.True(t, "the next daemon is used", func() bool { return a.tryEnsure() == nil })
	if !alive(second) {
		t.Error("the next daemon does not run")
	}
}

// A gateway is used once a tunnel leads to it, and remains in use when the tunnel is down for a
// while: probes detect a failure sooner.
func TestIPsecTunnelsInUse(t *testing.T) {
	s, daemons := ipsecSet(t, 2)
	a, b := s.gateways[0], s.gateways[1]
	a.ensure(t, b.peer(t))
	time.Sleep(500 * time.Millisecond) // no tunnel may come up
	a.ensure(t, b.peer(t))
	if d := a.devices.Peers[b.local.Fabric]; len(d) > 0 {
		t.Errorf("packets go into %v to a gateway that does not know this one", d)
	}
	s.join(t)
	if d := a.devices.Peers[b.local.Fabric]; len(d) != 1 {
		t.Errorf("no packets go to a gateway that a tunnel leads to: %v", d)
	}
	must(t, daemons[a].Kill())
	daemons[a].start(t)
	a.ensure(t, b.peer(t))
	if d := a.devices.Peers[b.local.Fabric]; len(d) != 1 {
		t.Errorf("after a crash of the daemon no packets go there any more: %v", d)
	}
	a.ensure(t)
	a.ensure(t, b.peer(t))
	if d := a.devices.Peers[b.local.Fabric]; len(d) > 0 {
		t.Errorf("packets go into %v to a gateway that was away", d)
	}
}

// With ESP in the kernel the daemon is killed, so that it cannot delete the SAs.
func TestSupervisorKeepsKernelKeys(t *testing.T) {
	for esp, want := range map[string]string{ESPKernel: "killed", ESPUserspace: "asked to leave"} {
		dir := t.TempDir()
		_, err := Charon{Socket: filepath.Join(dir, socketName), Port: 4500, Userspace: esp == ESPUserspace}.write(dir)
		must(t, err)
		note := filepath.Join(dir, "asked")
		ready := make(chan bool)
		start := func([]string) (*exec.Cmd, error) {
			c := exec.Command("sh", "-c", "trap 'touch "+note+"; exit' TERM; echo; while :; do sleep 0.05; done")
			out, err := c.StdoutPipe()
			if err != nil {
				return nil, err
			}
			if err := c.Start(); err != nil {
				return nil, err
			}
			go func() { out.Read(make([]byte, 1)); ready <- true }()
			return c, nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- Supervisor{Dir: dir, Start: start, Log: slog.New(slog.DiscardHandler)}.Run(ctx)
		}()
		<-ready
		cancel()
		must(t, <-ended)
		got := "asked to leave"
		if _, err := os.Stat(note); errors.Is(err, fs.ErrNotExist) {
			got = "killed"
		}
		if got != want {
			t.Errorf("ESP in the %s: the daemon was %s, want %s", esp, got, want)
		}
	}
}

func TestSupervisorWithoutDirectory(t *testing.T) {
	err := Supervisor{Dir: filepath.Join(t.TempDir(), "none")}.Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "mount the directory") {
		t.Errorf("error %v", err)
	}
	s := newSet(t, 1)
	s.gateways[0].wire = NewIPsec(IPsecOptions{Dir: filepath.Join(t.TempDir(), "none"), Log: slog.New(slog.DiscardHandler)})
	if err := s.gateways[0].tryEnsure(); err == nil || !strings.Contains(err.Error(), "does the pod have the container ike?") {
		t.Errorf("error %v", err)
	}
}

// ESP is found where there are xfrm interfaces, which come with it. Trying it changes nothing in
// the namespace of the caller.
func TestKernelESP(t *testing.T) {
	ns, xfrmi := newSet(t, 1).gateways[0].ns, hasXfrmi()
	before := run(t, ns, "ip", "link")
	must(t, ns.Do(func() error {
		inside, err := os.Readlink("/proc/thread-self/ns/net")
		if err != nil {
			return err
		}
		if err := KernelESP(); (err == nil) != (xfrmi == nil) {
			t.Errorf("ESP: %v; xfrm interfaces: %v", err, xfrmi)
		}
		after, err := os.Readlink("/proc/thread-self/ns/net")
		if after != inside {
			t.Errorf("the caller was in %s and is in %s", inside, after)
		}
		return err
	}))
	if after := run(t, ns, "ip", "link"); after != before {
		t.Errorf("devices before:\n%safter:\n%s", before, after)
	}
}

func TestLimit(t *testing.T) {
	for _, tt := range []struct {
		identity  map[string]string
		mtu, want int
	}{
		{map[string]string{IdentityIKE: "psk", IdentityESP: ESPKernel}, 1385, 1385},
		{map[string]string{IdentityIKE: "psk", IdentityESP: ESPUserspace}, 1385, 1350},
		{map[string]string{IdentityIKE: "psk", IdentityESP: ESPUserspace}, 1200, 1200},
		{nil, 1450, 1450},
	} {
		if got := Limit(tt.identity, tt.mtu); got != tt.want {
			t.Errorf("%v, %d: %d, want %d", tt.identity, tt.mtu, got, tt.want)
		}
	}
}

// What a wire leaves on a node goes with the next wire, or at the end; other devices stay.
func TestRemoveDevices(t *testing.T) {
	for but, want := range map[string]string{
		WireGuardDriver: "eth0 lo pelago-wg0 pelago-wg4 pelago-wgx",
		IPsecDriver:     "eth0 lo pelago-ipsec1 pelago-wgx",
		"":              "eth0 lo pelago-wgx",
	} {
		ns := newSet(t, 1).gateways[0].ns
		for _, name := range []string{"pelago-wg0", "pelago-wg4", "pelago-wgx", "pelago-ipsec1"} {
			run(t, ns, "ip", "link", "add", name, "type", "bridge")
		}
		must(t, ns.Do(func() error { return RemoveDevices(but) }))
		var got []string
		for line := range strings.Lines(run(t, ns, "ip", "-br", "link")) {
			name, _, _ := strings.Cut(strings.Fields(line)[0], "@")
			got = append(got, name)
		}
		if g := strings.Join(slices.Sorted(slices.Values(got)), " "); g != want {
			t.Errorf("all but %q removed: %s are left, want %s", but, g, want)
		}
	}
}
