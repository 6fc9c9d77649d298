package node

import (
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/loader"
	"github.com/pelago-net/pelago/dataplane/netdev"
	"github.com/pelago-net/pelago/test/bpffs"
	"github.com/pelago-net/pelago/test/clusterset"
)

// pelago0 keeps its MTU where packets of one cluster must be smaller: that cluster's routes have
// the limit, and that of ClusterSetIPs, which it may serve.
func TestDeviceConfig(t *testing.T) {
	for name, limits := range map[string]map[uint16]int{"no limit": nil, "g2 has one": {2: 1300}} {
		t.Run(name, func(t *testing.T) {
			objs, host := clusterset.Encrypted("n1")
			objs.Config.ClusterSetIPRange = netip.MustParsePrefix("243.0.0.0/8")
			host.Edge, host.MTU, host.Limits = 7, 1390, limits
			want := netdev.Config{
				Edge: 7, Source: ip("172.31.1.11"), MTU: 1390,
				Prefixes: []netip.Prefix{netip.MustParsePrefix("120.2.0.0/24"), netip.MustParsePrefix("120.1.0.0/24"), objs.Config.ClusterSetIPRange},
				Limits:   map[netip.Prefix]int{},
			}
			if limit, ok := limits[2]; ok {
				want.Limits[want.Prefixes[0]], want.Limits[objs.Config.ClusterSetIPRange] = limit, limit
			}
			if diff := cmp.Diff(want, deviceConfig(tables.Desired(objs, host).State, host), clusterset.Comparable,
				cmpopts.SortSlices(func(a, b netip.Prefix) int { return a.Compare(b) })); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// The programs are on every device by which packets of peers leave or arrive.
func TestUplinks(t *testing.T) {
	objs, host := clusterset.Globalnet("n1")
	host.Others = map[netip.Addr][]uint32{ip("172.31.1.12"): {4, 7}, ip("172.31.2.11"): {5}, ip("198.51.100.1"): {9}}
	host.OwnDevices, host.Unusable = []uint32{2, 6}, map[uint32]string{7: "odd"}
	if diff := cmp.Diff([]int{2, 4, 5, 6}, uplinks(tables.Desired(objs, host).State, host)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestPodDevices(t *testing.T) {
	s := dataplane.State{Endpoints: map[netip.Addr]dataplane.Endpoint{ip("10.7.2.6"): {Ifindex: 5}, ip("10.7.2.5"): {Ifindex: 3}, ip("10.7.2.7"): {Ifindex: 5}}}
	if diff := cmp.Diff([]int{3, 5}, podDevices(s)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// Flows that the tables do not allow any more are removed once: again after a failure, not again
// without a change.
func TestPurgesAreRepeatedUntilTheySucceed(t *testing.T) {
	path := filepath.Join(bpffs.Mount(t), "pelago")
	works, err := loader.Open(loader.Options{PinPath: path, MaxFlows: 1024})
	if err != nil {
		t.Fatal(err)
	}
	defer works.Close()
	fails, err := loader.OpenMaps(path) // it has no program to remove flows with
	if err != nil {
		t.Fatal(err)
	}
	defer fails.Close()
	result := func(uid types.UID, cluster uint16) tables.Result {
		var audience dataplane.ClusterSet
		audience.Add(cluster)
		source := dataplane.Source{Egress: netip.AddrFrom4([4]byte{120, 1, 0, byte(cluster)}), Mapped: true}
		return tables.Result{
			Owners: map[netip.Addr]types.UID{ip("10.7.2.5"): uid},
			State: dataplane.State{
				Settings:  dataplane.Settings{Ready: true},
				Sources:   map[netip.Addr]dataplane.Source{ip("10.7.2.5"): source},
				Audiences: map[netip.Addr]dataplane.ClusterSet{ip("120.1.0.9"): audience},
			},
		}
	}
	log := slog.New(slog.DiscardHandler)
	for name, only := range map[string]func(*tables.Result){
		"pods":      func(r *tables.Result) { r.State.Audiences, r.State.Sources = nil, nil },
		"audiences": func(r *tables.Result) { r.Owners, r.State.Settings.Ready = nil, false; r.State.Sources = nil },
		"mappings":  func(r *tables.Result) { r.Owners, r.State.Settings.Ready = nil, false; r.State.Audiences = nil },
	} {
		t.Run(name, func(t *testing.T) {
			var p purges
			// attempt reports whether anything was to be removed.
			attempt := func(l *loader.Loader) (bool, error) {
				job, due := p.next()
				if due {
					p.begun(job)
					job.run(l, log)
					p.done(job)
				}
				return due, job.err
			}
			for _, r := range []tables.Result{result("first", 1), result("second", 2)} {
				only(&r)
				p.note(r)
				for range 2 {
					if due, err := attempt(fails); !due || err == nil {
						t.Fatal("a failure was forgotten")
					}
				}
				if _, err := attempt(works); err != nil {
					t.Fatal(err)
				}
				if due, err := attempt(fails); due || err != nil {
					t.Error("without a change, flows are removed again")
				}
			}
		})
	}
	t.Run("a pod that goes meanwhile", func(t *testing.T) {
		p := purges{purged: true}
		for _, uid := range []types.UID{"first", "second"} {
			r := result(uid, 1)
			r.State.Audiences, r.State.Sources = nil, nil
			p.note(r)
		}
		job, _ := p.next()
		p.begun(job)
		r := result("third", 1)
		r.State.Audiences, r.State.Sources = nil, nil
		p.note(r)
		job.run(works, log)
		p.done(job)
		if _, due := p.next(); !due {
			t.Error("the flows of the second pod of an address are left to the third")
		}
	})
}
