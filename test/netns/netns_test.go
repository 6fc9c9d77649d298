package netns

import (
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pelago-net/pelago/test/need"
)

// pair makes two namespaces joined by a veth with the addresses 10.9.0.1/24 and 10.9.0.2/24 (and
// fd09::1, fd09::2).
func pair(t *testing.T) (a, b *NS) {
	t.Helper()
	a, b = ForTest(t, "a"), ForTest(t, "b")
	prefixes := func(s ...string) (out []netip.Prefix) {
		for _, x := range s {
			out = append(out, netip.MustParsePrefix(x))
		}
		return out
	}
	err := Veth(
		End{NS: a, Name: "eth0", Addrs: prefixes("10.9.0.1/24", "fd09::1/64"), MTU: 1400},
		End{NS: b, Name: "eth0", Addrs: prefixes("10.9.0.2/24", "fd09::2/64"), MTU: 1400})
	if err != nil {
		t.Fatal(err)
	}
	return a, b
}

func TestVethCarriesTraffic(t *testing.T) {
	a, b := pair(t)
	for _, addr := range []string{"10.9.0.2:7000", "[fd09::2]:7000"} {
		var srv net.Listener
		if err := b.Do(func() (err error) { srv, err = net.Listen("tcp", addr); return err }); err != nil {
			t.Fatal(err)
		}
		defer srv.Close()
		err := a.Do(func() error {
			c, err := net.DialTimeout("tcp", addr, 5*time.Second)
			if err != nil {
				return err
			}
			return c.Close()
		})
		if err != nil {
			t.Errorf("connect to %s: %v", addr, err)
		}
	}
}

func TestRoutesSysctlsAndMTU(t *testing.T) {
	a, _ := pair(t)
	if err := a.AddRoute(netip.MustParsePrefix("172.30.0.0/16"), netip.MustParseAddr("10.9.0.2"), "eth0"); err != nil {
		t.Fatal(err)
	}
	if err := a.Sysctl("net/ipv4/ip_forward", "1"); err != nil {
		t.Fatal(err)
	}
	var forward string
	err := a.Do(func() error {
		b, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
		forward = strings.TrimSpace(string(b))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	routes, err := a.Handle().RouteGet(net.IPv4(172, 30, 1, 1))
	if err != nil {
		t.Fatal(err)
	}
	link, err := a.Handle().LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]any{"forward": forward, "via": routes[0].Gw.String(), "mtu": link.Attrs().MTU}
	want := map[string]any{"forward": "1", "via": "10.9.0.2", "mtu": 1400}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestCommandsRunInside(t *testing.T) {
	a, _ := pair(t)
	out, err := a.Run("cat", "/proc/net/dev")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(out), "eth0:") {
		t.Errorf("the command does not see eth0:\n%s", out)
	}
	if out, err = a.RunInput("hello", "cat"); err != nil || string(out) != "hello" {
		t.Errorf("cat = %q, %v; want hello", out, err)
	}
	_, err = a.Run("sh", "-c", "echo broken >&2; exit 3")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 3 || !strings.Contains(err.Error(), "broken") {
		t.Errorf("error = %v; want exit status 3 with the text from standard error", err)
	}
}

// Neither Create nor Do may leave a thread of this process behind in another namespace.
func TestThreadsReturnHome(t *testing.T) {
	need.Root(t)
	before := threadNamespaces(t)
	n, err := Create("home-test")
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	for range 20 {
		sentinel := errors.New("from f")
		if err := n.Do(func() error { return sentinel }); !errors.Is(err, sentinel) {
			t.Fatalf("Do = %v; want the error of f", err)
		}
	}
	if diff := cmp.Diff(before, threadNamespaces(t)); diff != "" {
		t.Error(diff)
	}
}

// threadNamespaces returns the set of network namespaces in which the threads of this process are.
func threadNamespaces(t *testing.T) map[string]bool {
	t.Helper()
	links, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	set := map[string]bool{}
	for _, l := range links {
		if ns, err := os.Readlink(l); err == nil { // a thread may end meanwhile
			set[ns] = true
		}
	}
	return set
}

func TestCloseAndStale(t *testing.T) {
	Require(t)
	n, err := Create("stale-test-1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Create("stale-test-1"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("second Create = %v; want a refusal", err)
	}
	again, err := Open("stale-test-1")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(n.Release(), again.Release()); err != nil {
		t.Fatal(err)
	}
	removed, err := RemoveStale("stale-test-")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{Prefix + "stale-test-1"}, removed); diff != "" {
		t.Error(diff)
	}
	if _, err := os.Stat(n.Path()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("stat %s = %v; want it gone", n.Path(), err)
	}
}

func TestBadNames(t *testing.T) {
	for _, name := range []string{"", "../x", "a/b", "UPPER", strings.Repeat("x", 65)} {
		if n, err := Create(name); err == nil {
			n.Close()
			t.Errorf("Create(%q) succeeded; want a refusal", name)
		}
	}
}
