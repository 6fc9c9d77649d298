// Package e2e runs Pelago in real clusters, the way a user does, and asserts what the foundation
// promises: see README.md.
package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pelago-net/pelago/test/e2e/walk"
	"github.com/pelago-net/pelago/test/lab"
	"github.com/pelago-net/pelago/test/need"
)

var (
	binDir   = flag.String("bin", "../../bin", "directory of the product's programs")
	imageDir = flag.String("images", "../../out/images", "directory of the image archives")
	labName  = flag.String("lab", "e2e", "name of the lab, of at most eight characters; runs at the same time need different ones")
	plain    = flag.Bool("plain", false, "TestWireGuard and TestIPsec without globalnet")
	kills    = flag.Int("kills", 5, "how many agents are killed while they export services, 1 to 100")
	rounds   = flag.Int("rounds", 2, "how many power failures TestThreeClusters measures")
	floods   = flag.Duration("flood", 5*time.Second, "how long a pod floods its node with new flows")
	keep     = flag.Bool("keep", false, "leave the clusters up at the end, and reuse those of an earlier run")
)

// clusterset is joined clusters and their hub, with what the tests run in them.
type clusterset struct {
	walk.Walk
	load *load // filled by the first that needs it
}

// newClusterset brings the clusters up and installs the product in them. w selects its gateways,
// wire and addressing.
func newClusterset(t *testing.T, o lab.Options, w walk.Walk) *clusterset {
	t.Helper()
	start := time.Now()
	s := bringUp(t, o, w)
	if *keep && s.joined(t) {
		t.Log("the clusters of an earlier run are used as they are, with the images of then")
	} else {
		must(t, s.Install(t.Context()))
	}
	must(t, s.Connected(t.Context()))
	t.Logf("installed after %.1f s", time.Since(start).Seconds())
	return s
}

// bringUp brings the clusters up, with nothing installed. They are taken down when the test has
// ended, however it ended; those of a killed run are taken down first.
func bringUp(t *testing.T, o lab.Options, w walk.Walk) *clusterset {
	t.Helper()
	need.Clusters(t)
	w.Dir, w.Bin, w.Images, w.Out = t.TempDir(), absolute(t, *binDir), absolute(t, *imageDir), t.Output()
	s := &clusterset{Walk: w, load: &load{}}
	for _, file := range []string{filepath.Join(s.Bin, "pelago"), filepath.Join(s.Images, "pelago.tar"), filepath.Join(s.Images, "whereami.tar")} {
		if _, err := os.Stat(file); err != nil {
			t.Fatalf("%v: make it with `make images`", err)
		}
	}
	if !*keep {
		down(t, o.Name)
		t.Cleanup(func() { down(t, o.Name) })
	}
	t.Cleanup(func() {
		if t.Failed() && s.Lab != nil {
			s.showState(t)
		}
	})
	o.Clusters = len(s.Members())
	o.PodCIDRs = []netip.Prefix{netip.MustParsePrefix(s.Pods("g1"))} // one for all
	o.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix(s.Services("g1"))}
	if s.Plain {
		o.PodCIDRs = append(o.PodCIDRs, netip.MustParsePrefix(s.Pods("g2")))
		o.ServiceCIDRs = append(o.ServiceCIDRs, netip.MustParsePrefix(s.Services("g2")))
	}
	o.Progress = func(line string) { t.Log(line) }
	start := time.Now()
	var err error
	if s.Lab, err = lab.Up(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	t.Logf("clusters are up after %.1f s", time.Since(start).Seconds())
	return s
}

// joined reports whether all clusters are installed.
func (s *clusterset) joined(t *testing.T) bool {
	for _, cluster := range s.Members() {
		if _, err := s.Quietly(t.Context(), s.Lab.Kubectl(), "--context", cluster, "-n", "pelago-system", "rollout", "status", "daemonset/pelago-node", "--timeout=1s"); err != nil {
			return false
		}
	}
	return true
}

func down(t *testing.T, name string) {
	t.Helper()
	// The test's context has ended when its clean-ups run.
	if err := lab.Down(context.Background(), name, func(string) {}); err != nil && !errors.Is(err, lab.ErrNotFound) {
		t.Errorf("take the lab down: %v", err)
	}
}

// run is t.Run for a part of a test; the output of its steps is in its own log.
func (s *clusterset) run(t *testing.T, name string, f func(*testing.T, *clusterset)) {
	t.Run(name, func(t *testing.T) {
		start := time.Now()
		part := *s
		part.Out = t.Output()
		f(t, &part)
		t.Logf("%.1f s", time.Since(start).Seconds())
	})
}

// showState prints what helps to understand a failure.
func (s *clusterset) showState(t *testing.T) {
	s.Out = t.Output()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, cluster := range s.Members() {
		for _, args := range [][]string{
			{"get", "pods", "-A", "-o", "wide"},
			{"-n", "pelago-system", "logs", "-l", "app=pelago-node", "--prefix", "--tail=15"},
			{"-n", "pelago-system", "logs", "-l", "app=pelago-agent", "--prefix", "--tail=15"},
		} {
			if _, err := s.Kubectl(ctx, append([]string{"--context", cluster}, args...)...); err != nil {
				t.Log(err)
			}
		}
		if _, err := s.Pelago(ctx, "nat", "stats", "--context", cluster); err != nil {
			t.Log(err)
		}
	}
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	out, err := filepath.Abs(path)
	must(t, err)
	return out
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// within repeats check until it returns no error, and ends the test if that takes more than
// walk.Patience. It returns how long it took, for the log.
func within(t *testing.T, check func() error) time.Duration {
	t.Helper()
	start := time.Now()
	must(t, walk.Eventually(t.Context(), walk.Patience, check))
	return time.Since(start)
}

// kubectl runs kubectl against a cluster without showing it, and returns what it prints.
func (s *clusterset) kubectl(t *testing.T, cluster string, args ...string) string {
	t.Helper()
	out, err := s.Quietly(t.Context(), s.Lab.Kubectl(), append([]string{"--context", cluster}, args...)...)
	must(t, err)
	return strings.TrimSpace(out)
}

// node runs a command on a node and returns what it prints.
func (s *clusterset) node(t *testing.T, node string, argv ...string) string {
	t.Helper()
	out, err := s.Lab.Exec(t.Context(), node, argv...)
	must(t, err)
	return out
}

// nodes are the names of a cluster's nodes.
func (s *clusterset) nodes(t *testing.T, cluster string) []string {
	t.Helper()
	c, err := s.Lab.Plan().Cluster(cluster)
	must(t, err)
	var names []string
	for _, n := range c.Nodes {
		names = append(names, n.Name)
	}
	return names
}

// decode reads JSON that a program printed.
func decode[T any](t *testing.T, text string) (out T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("read %.200q: %v", text, err)
	}
	return out
}
