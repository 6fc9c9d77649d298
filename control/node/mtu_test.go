package node

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/netdev"
	"github.com/pelago-net/pelago/dataplane/probe"
	"github.com/pelago-net/pelago/test/clusterset"
	"github.com/pelago-net/pelago/test/netns"
)

// pelago0, the MSS and the wire's device follow the MTU of the uplink, of whose change the daemon
// hears.
func TestMTUFollowsUplink(t *testing.T) {
	netns.Require(t)
	for _, driver := range []string{config.CableVXLAN, config.CableWireGuard} {
		t.Run(driver, func(t *testing.T) {
			ns := netns.ForTest(t, "mtu")
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			// The veth pair's other end takes whatever comes.
			must(netns.Veth(netns.End{NS: ns, Name: "un0", Addrs: []netip.Prefix{netip.MustParsePrefix("172.31.1.11/24")}}, netns.End{NS: ns, Name: "peer", MTU: 9000}))
			must(ns.AddRoute(netip.MustParsePrefix("0.0.0.0/0"), ip("172.31.1.1"), "un0"))
			d := newNatted(t, ns, 1, "172.31.1.11", driver).d
			d.prober = probe.New(d.loader, func() (int, int) { return 0, 0 }, func() {}, d.log)
			d.opts.OverlayTokenDir = t.TempDir()
			must(os.WriteFile(filepath.Join(d.opts.OverlayTokenDir, config.KeyTokenCurrent), []byte("0000a1"), 0o600))
			objs, _ := clusterset.Encrypted("n1")
			objs.Config.CableDriver, objs.Pods = driver, nil

			ctx, cancel := context.WithCancel(t.Context())
			watching := make(chan error, 1)
			go func() { watching <- ns.Do(func() error { d.watchHost(ctx); return nil }) }()
			defer func() {
				cancel()
				must(<-watching)
			}()
			reconciled := func(mtu int) {
				t.Helper()
				must(ns.Do(func() error {
					host, err := d.observeHost(objs)
					if err != nil {
						return err
					}
					// it reports the peers, whose keys are not valid
					wire, _ := d.ensureWire(objs, host.Underlay, nil)
					r := tables.Desired(objs, host)
					if _, err := netdev.Ensure(deviceConfig(r.State, host)); err != nil {
						return err
					}
					inner := mtu - cable.Overhead(driver)
					if got, _, err := netdev.ReadUplink(host.Edge); err != nil || got.MTU != inner {
						t.Errorf("uplink %d: pelago0 has MTU %d, %v; want %d", mtu, got.MTU, err, inner)
					}
					if got := int(r.State.Settings.MSS); got != inner-40 {
						t.Errorf("uplink %d: MSS %d; want %d", mtu, got, inner-40)
					}
					if driver == config.CableVXLAN {
						return nil
					}
					if len(wire.Devices) == 0 {
						t.Error("the wire has no devices")
					}
					for _, index := range wire.Devices {
						if got, _, err := netdev.ReadUplink(uint32(index)); err != nil || got.MTU != inner+netdev.Overhead {
							t.Errorf("uplink %d: the wire's device has MTU %d, %v; want %d", mtu, got.MTU, err, inner+netdev.Overhead)
						}
					}
					return nil
				}))
			}
			reconciled(1500)
			for _, mtu := range []int{1400, 9000, 1500} {
				for quiet := false; !quiet; { // our own changes have been heard of
					select {
					case <-d.trigger:
					case <-time.After(300 * time.Millisecond):
						quiet = true
					}
				}
				_, err := ns.Run("ip", "link", "set", "un0", "mtu", fmt.Sprint(mtu))
				must(err)
				select {
				case <-d.trigger:
				case <-time.After(3 * time.Minute):
					t.Fatalf("uplink %d: the daemon did not hear of it", mtu)
				}
				reconciled(mtu)
			}
		})
	}
}
