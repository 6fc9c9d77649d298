package node

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/loader"
	"github.com/pelago-net/pelago/dataplane/netdev"
	"github.com/pelago-net/pelago/dataplane/probe"
	"github.com/pelago-net/pelago/test/netns"
)

var (
	fits = probe.Size{Full: 1390, Passes: 1390}
	hole = probe.Size{Full: 1390, Passes: 1300}
)

// How large packets to another cluster may be is what passes on every way that they may take.
func TestLimits(t *testing.T) {
	type sizes = map[netip.Addr]probe.Size
	first, second := ip("241.0.128.1"), ip("241.0.128.2") // gateways of g2
	for name, tt := range map[string]struct {
		from   string
		sizes  sizes
		change func(*Objects)
		limits map[uint16]int
		tells  map[string]int32
	}{
		"nothing is known":         {from: "n1"},
		"all is well":              {from: "n1", sizes: sizes{first: fits, second: fits}},
		"a hole behind a gateway":  {from: "n1", sizes: sizes{first: fits, second: hole}, limits: map[uint16]int{2: 1300}, tells: map[string]int32{"g2": 1300}},
		"two holes":                {from: "n1", sizes: sizes{first: {Full: 1390, Passes: 1200}, second: hole}, limits: map[uint16]int{2: 1200}, tells: map[string]int32{"g2": 1200}},
		"a hole before a gateway":  {from: "n2", sizes: sizes{ip("172.31.1.11"): hole}, limits: map[uint16]int{2: 1300}},
		"a hole to somebody else":  {from: "n2", sizes: sizes{ip("172.31.9.9"): hole}},
		"the gateway tells of one": {from: "n2", change: func(o *Objects) { o.NodeIndexes[0].Status.PathMTU = map[string]int32{"g2": 1280, "g9": 1000} }, limits: map[uint16]int{2: 1280}},
		"the smallest of all": {from: "n2", sizes: sizes{ip("172.31.1.11"): hole}, change: func(o *Objects) {
			o.NodeIndexes[0].Status.PathMTU = map[string]int32{"g2": 1310}
		}, limits: map[uint16]int{2: 1300}},
		"one that is no gateway any more told of one": {from: "n2", change: func(o *Objects) {
			o.NodeIndexes[0].Status.PathMTU, o.NodeIndexes[0].Status.Gateway = map[string]int32{"g2": 1280}, false
		}},
		"a gateway that has just begun anew": {from: "n1", change: func(o *Objects) {
			o.NodeIndexes[0].Status.PathMTU = map[string]int32{"g2": 1280}
		}, limits: map[uint16]int{2: 1280}, tells: map[string]int32{"g2": 1280}},
		"and knows better now": {from: "n1", sizes: sizes{first: fits}, change: func(o *Objects) {
			o.NodeIndexes[0].Status.PathMTU = map[string]int32{"g2": 1280}
		}},
		"a cluster that is refused": {from: "n1", sizes: sizes{first: hole}, change: func(o *Objects) {
			o.Peers[0].Status.Conditions = nil
			o.NodeIndexes[0].Status.PathMTU = map[string]int32{"g2": 1280}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			objs, host := encryptedWorld(tt.from)
			if tt.change != nil {
				tt.change(&objs)
			}
			host.MTU, host.Limits, host.PathMTU = 1390, limits(objs, tt.sizes), cableLimits(objs, tt.sizes)
			if diff := cmp.Diff(tt.limits, host.Limits); diff != "" {
				t.Errorf("limits -want +got\n%s", diff)
			}
			r := Desired(objs, host)
			if diff := cmp.Diff(tt.tells, r.PathMTU); diff != "" {
				t.Errorf("what the others are told -want +got\n%s", diff)
			}
			mtu, routes := 1390, map[netip.Prefix]int{}
			if limit, ok := tt.limits[2]; ok {
				mtu = limit
				routes[netip.MustParsePrefix("120.2.0.0/24")] = limit
			}
			if got := int(r.State.Settings.MSS); got != mtu-40 {
				t.Errorf("MSS %d, want %d", got, mtu-40)
			}
			c := deviceConfig(r.State, host)
			if diff := cmp.Diff(routes, c.Limits, comparable); diff != "" || c.MTU != 1390 {
				t.Errorf("pelago0 has MTU %d; routes -want +got\n%s", c.MTU, diff)
			}
		})
	}
}

// A black hole stands in the status of the connection, of the node and in the metrics, and is reported at once; the connection stays
// connected.
func TestBlackHoleIsShown(t *testing.T) {
	const says = "packets of more than 1300 bytes are lost on the way (with headers 1410; the uplinks allow 1500), so pods are told to send none: " +
		"let packets of 1500 bytes pass on every link between the nodes, or set the MTU of the uplinks to 1410"
	far := ip("241.0.128.1")
	snap, l := pair("n1")
	paths := map[netip.Addr]loader.Path{far: answering()}
	l.note(snap, paths, map[netip.Addr]probe.Size{far: fits}, begin)
	before := l.urgent(snap)
	if said := connections(snap, l)[0].StatusMessage; said != "" {
		t.Errorf("all is well: %q", said)
	}
	l.note(snap, paths, map[netip.Addr]probe.Size{far: hole}, begin)
	if l.urgent(snap) == before {
		t.Error("it is not urgent")
	}
	c := connections(snap, l)[0]
	if c.Status != submarinerv1.Connected || c.StatusMessage != says {
		t.Errorf("%s %q", c.Status, c.StatusMessage)
	}
	found := false
	for _, p := range view(snap, l).Peers {
		if p.Path == far {
			found = p.BlackHole && p.MTU == 1300
		}
	}
	if !found {
		t.Errorf("the view is %+v", view(snap, l).Peers)
	}
	weak := lossy()
	l.note(snap, map[netip.Addr]loader.Path{far: weak}, map[netip.Addr]probe.Size{far: hole}, begin)
	if said := connections(snap, l)[0].StatusMessage; said != "degraded: 12 % of the probes are lost; "+says {
		t.Errorf("with loss: %q", said)
	}

	// At a node that is no gateway.
	snap, l = town("n2")
	snap.objs.NodeIndexes[2].Status.PathMTU = map[string]int32{"g2": 1280}
	n1, n3 := ip("172.31.1.11"), ip("172.31.1.13")
	l.note(snap, map[netip.Addr]loader.Path{n1: answering(), n3: slow(answering())}, map[netip.Addr]probe.Size{n1: {Full: 1450, Passes: 1400}}, begin)
	said := routeAgentReport(snap, l, "v3").status.RemoteEndpoints[0].StatusMessage
	for _, part := range []string{"To gateway n1 packets of more than 1400 bytes are lost", "From gateway n3 to g2 packets of more than 1280 bytes are lost", "Through gateway n1"} {
		if !strings.Contains(said, part) {
			t.Errorf("%q does not say %q", said, part)
		}
	}
}

// pelago0, the MSS and the wire's device follow the MTU of the uplink, of whose change the daemon hears.
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
			objs, _ := encryptedWorld("n1")
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
					host, err := d.lookAtHost(objs)
					if err != nil {
						return err
					}
					wire, _ := d.ensureWire(objs, host.Underlay, nil) // it complains of the peers, whose keys are none
					r := Desired(objs, host)
					edge, err := netdev.Ensure(deviceConfig(r.State, host))
					if err != nil {
						return err
					}
					inner := mtu - cable.Overhead(driver, false)
					if got, err := netdev.UplinkMTU(uint32(edge)); err != nil || got != inner {
						t.Errorf("uplink %d: pelago0 has MTU %d, %v; want %d", mtu, got, err, inner)
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
						if got, err := netdev.UplinkMTU(uint32(index)); err != nil || got != inner+netdev.Overhead {
							t.Errorf("uplink %d: the wire's device has MTU %d, %v; want %d", mtu, got, err, inner+netdev.Overhead)
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
				case <-time.After(20 * time.Second):
					t.Fatalf("uplink %d: the daemon did not hear of it", mtu)
				}
				reconciled(mtu)
			}
		})
	}
}
