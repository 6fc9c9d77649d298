package node

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/test/clusterset"
)

// asked is a wire that notes what is asked of it.
type asked struct {
	cable.Wire
	local cable.Local
}

func (a *asked) Ensure(local cable.Local, _ []cable.Peer) (cable.Devices, error) {
	a.local = local
	return cable.Devices{Ifindexes: []int{20, 21, 24, 22}, Ports: []uint16{4502}}, nil
}

func (a *asked) Identity() (map[string]string, error) {
	return map[string]string{cable.IdentityTunnels: "2"}, nil
}

// The wire has as many tunnels as the cluster joined with; every port at which it listens is
// accepted by the firewall and watched by the guard, also that of a tunnel which is about to go.
func TestEnsureWireTunnels(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, config.KeyPSK), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for tunnels, want := range map[int][]uint16{0: {4500, 4502, 4504}, 2: {4500, 4501, 4502, 4504}} {
		w := &asked{}
		d := &Daemon{opts: Options{PSKDir: dir, OpenWire: func(string) (cable.Wire, error) { return w, nil }}}
		objs, _ := clusterset.Encrypted("n1")
		objs.Config.CableTunnels = tunnels
		got, problems := d.ensureWire(objs, 1500, nil)
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		if w.local.Tunnels != tunnels || w.local.Fabric != netip.MustParseAddr("241.0.64.1") {
			t.Errorf("asked for %+v, want %d tunnels", w.local, tunnels)
		}
		slices.Sort(got.Ports)
		if diff := cmp.Diff(want, got.Ports); diff != "" {
			t.Errorf("%d tunnels, ports -want +got\n%s", tunnels, diff)
		}
		if got.Identity[cable.IdentityTunnels] != "2" {
			t.Errorf("identity %v, want what the wire says", got.Identity)
		}
	}
}

// Configuration, wire and tables have room for as many tunnels.
func TestMaxTunnels(t *testing.T) {
	if got := [2]int{cable.MaxTunnels, dataplane.MaxTunnels}; got != [2]int{config.MaxCableTunnels, config.MaxCableTunnels} {
		t.Errorf("tunnels of wire and tables: %d, of the configuration: %d", got, config.MaxCableTunnels)
	}
}
