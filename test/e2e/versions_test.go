package e2e

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/pelago-net/pelago/test/e2e/walk"
	"github.com/pelago-net/pelago/test/lab"
	"github.com/pelago-net/pelago/test/need"
)

// formerVersions are commits, the first layout of the maps and a later one, and where the lab's
// command is there.
var formerVersions = map[string]string{"2c18591": "./cmd/pelago-lab", "85af6495": "./test/lab/cmd"}

// TestVersions: clusters that a former version's own CLI has joined are upgraded to this version
// and back, both by `join`, while connections run: none breaks, and an upgrade loses no datagram. In
// a downgrade the maps whose layout has changed are empty until the former daemon has filled them.
func TestVersions(t *testing.T) {
	for version := range formerVersions {
		t.Run(version, func(t *testing.T) { testVersion(t, version) })
	}
}

func testVersion(t *testing.T, former string) {
	need.Clusters(t)
	formerBin, formerImages := buildFormer(t, former)
	w := walk.Walk{Gateways: 2, Wire: "vxlan"}
	s := bringUp(t, lab.Options{Name: *labName + "ver", Nodes: 3}, w)
	bin, images := s.Bin, s.Images
	ctx := t.Context()
	use := func(s *clusterset, bin, images string) {
		s.Bin = bin
		must(t, s.Lab.LoadImage(ctx, filepath.Join(images, "pelago.tar")))
	}
	must(t, s.Lab.LoadImage(ctx, filepath.Join(images, "whereami.tar")))
	use(s, formerBin, formerImages)
	_, err := s.Pelago(ctx, "deploy-broker", "--context", "hub", "--globalnet", "--globalnet-cidr-range", walk.GlobalRange)
	must(t, err)
	for _, cluster := range s.Members() {
		must(t, s.Join(ctx, cluster))
	}
	must(t, s.Connected(ctx))
	s.needLoad(t)
	const perSecond = 1000
	change := func(bin, images string, lost int, deploy ...string) func(*testing.T, *clusterset) {
		return func(t *testing.T, s *clusterset) {
			l := s.needLoad(t)
			connections := s.hold(t, l.client, 100, l.web.String()+":80")
			datagrams := s.ping(t, l.client, perSecond, l.sink.String()+":7")
			use(s, bin, images)
			_, err := s.Pelago(ctx, append([]string{"deploy-broker", "--context", "hub"}, deploy...)...)
			must(t, err)
			for _, cluster := range s.Members() {
				must(t, s.Join(ctx, cluster))
				s.kubectl(t, cluster, "-n", "pelago-system", "rollout", "status", "daemonset/pelago-node", walk.WaitFlag)
			}
			must(t, s.Connected(ctx))
			onlyBrokenOf(t, connections)
			lostAtMost(t, datagrams, lost)
		}
	}
	s.run(t, "upgrade", change(bin, images, 0))
	s.run(t, "downgrade", change(formerBin, formerImages, perSecond/2, "--globalnet", "--globalnet-cidr-range", walk.GlobalRange))
	s.run(t, "upgrade again", change(bin, images, 0))
}

// buildFormer builds the programs and the image of a former version from this repository's history.
func buildFormer(t *testing.T, version string) (bin, images string) {
	t.Helper()
	tree := t.TempDir()
	bin, images = filepath.Join(tree, "bin"), filepath.Join(tree, "out")
	for _, c := range []struct{ dir, command string }{
		{"../..", "git archive " + version + " | tar -x -C " + tree},
		{tree, "go build -o bin/ ./cmd/..."},
		{tree, "go build -o bin/pelago-lab " + formerVersions[version]},
		{tree, "bin/pelago-lab image build pelago --output out"},
	} {
		cmd := exec.CommandContext(t.Context(), "bash", "-o", "pipefail", "-c", c.command)
		cmd.Dir = c.dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s (a shallow clone lacks the commit: git fetch --unshallow)", c.command, err, out)
		}
	}
	return bin, images
}
