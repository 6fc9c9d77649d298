package e2e

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/pelago-net/pelago/test/e2e/walk"
	"github.com/pelago-net/pelago/test/lab"
)

// formerVersion is the commit whose maps have the first layout.
const formerVersion = "2c18591"

// TestVersions: clusters that the former version's own CLI has joined are upgraded to this version
// and back, both by `join`, while connections run; none breaks and no datagram is lost.
func TestVersions(t *testing.T) {
	formerBin, formerImages := buildFormer(t)
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
	change := func(bin, images string, deploy ...string) func(*testing.T, *clusterset) {
		return func(t *testing.T, s *clusterset) {
			l := s.needLoad(t)
			connections := s.hold(t, l.client, 100, l.web.String()+":80")
			datagrams := s.ping(t, l.client, 1000, l.sink.String()+":7")
			use(s, bin, images)
			_, err := s.Pelago(ctx, append([]string{"deploy-broker", "--context", "hub"}, deploy...)...)
			must(t, err)
			for _, cluster := range s.Members() {
				must(t, s.Join(ctx, cluster))
				s.kubectl(t, cluster, "-n", "pelago-system", "rollout", "status", "daemonset/pelago-node", walk.WaitFlag)
			}
			must(t, s.Connected(ctx))
			onlyBrokenOf(t, connections)
			nothingLost(t, datagrams)
		}
	}
	s.run(t, "upgrade", change(bin, images))
	s.run(t, "downgrade", change(formerBin, formerImages, "--globalnet", "--globalnet-cidr-range", walk.GlobalRange))
	s.run(t, "upgrade again", change(bin, images))
}

// buildFormer builds the programs and the image of the former version from this repository's
// history.
func buildFormer(t *testing.T) (bin, images string) {
	t.Helper()
	tree := t.TempDir()
	bin, images = filepath.Join(tree, "bin"), filepath.Join(tree, "out")
	for _, c := range []struct{ dir, command string }{
		{"../..", "git archive " + formerVersion + " | tar -x -C " + tree},
		{tree, "go build -o bin/ ./cmd/..."},
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
