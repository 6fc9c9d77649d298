package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/dataplane/loader"
	"github.com/pelago-net/pelago/dataplane/netdev"
	"github.com/pelago-net/pelago/test/await"
	"github.com/pelago-net/pelago/test/clusterset"
	"github.com/pelago-net/pelago/test/netns"
)

// kernelNotifications are those of one kind: subscribe fails with the errors first, and then with
// none.
type kernelNotifications struct {
	errs       []error
	subscribed atomic.Int32
	updates    atomic.Value // the last subscription's chan int
}

func (k *kernelNotifications) channel() chan int { return k.updates.Load().(chan int) }

func (k *kernelNotifications) subscribe(updates chan<- int, done <-chan struct{}) error {
	k.subscribed.Add(1)
	if len(k.errs) > 0 {
		err := k.errs[0]
		k.errs = k.errs[1:]
		return err
	}
	inner := make(chan int)
	k.updates.Store(inner)
	go func() {
		defer close(updates)
		for {
			select {
			case <-done:
				for range 100 { // read before, more than the channel holds
					updates <- 0
				}
				return
			case u, ok := <-inner:
				if !ok {
					return // ENOBUFS
				}
				updates <- u
			}
		}
	}()
	return nil
}

// What ends notifications of one kind, or prevents them, ends none for good, and leaves no
// goroutine (synctest waits for all).
func TestNotificationsThatEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Daemon{log: slog.New(slog.DiscardHandler), trigger: make(chan struct{}, 1)}
		woken := func() bool {
			synctest.Wait()
			select {
			case <-d.trigger:
				return true
			default:
				return false
			}
		}
		var routes kernelNotifications
		devices := kernelNotifications{errs: []error{errors.New("too many open files"), errors.New("too many open files")}}
		odd := func(u int) bool { return u%2 == 1 }
		ctx, cancel := context.WithCancel(t.Context())
		go d.watchChanges(ctx, subscription(routes.subscribe, odd), subscription(devices.subscribe, odd))
		if synctest.Wait(); routes.subscribed.Load() != 1 || devices.subscribed.Load() != 1 {
			t.Fatalf("subscribed %d and %d times, want once", routes.subscribed.Load(), devices.subscribed.Load())
		}
		time.Sleep(retry + 2*retry)
		if !woken() || devices.subscribed.Load() != 3 {
			t.Fatalf("subscribed %d times; want a third attempt, which succeeds and wakes the daemon", devices.subscribed.Load())
		}
		devices.channel() <- 2
		if woken() {
			t.Error("woken by a change that does not matter")
		}
		devices.channel() <- 1
		if !woken() {
			t.Error("not woken by a change")
		}
		for range 3 {
			close(routes.channel())
			time.Sleep(retry)
			if !woken() {
				t.Fatal("not woken after notifications were lost")
			}
			routes.channel() <- 1
			if !woken() {
				t.Error("not woken by a change of the new subscription")
			}
		}
		if routes.subscribed.Load() != 6 || devices.subscribed.Load() != 6 {
			t.Errorf("subscribed %d and %d times, want 6", routes.subscribed.Load(), devices.subscribed.Load())
		}
		cancel()
	})
}

// A rule and routes that another program removes come back without a reconcile, and the condition
// says so; what the daemon itself removes is not an interference.
func TestRemovedRulesComeBack(t *testing.T) {
	ns := netns.ForTest(t, "restore")
	config := netdev.Config{MTU: 1450, Prefixes: []netip.Prefix{netip.MustParsePrefix("120.2.0.0/24")}}
	d := &Daemon{log: slog.New(slog.DiscardHandler), trigger: make(chan struct{}, 1), displaced: displaced{changed: make(chan struct{}, 1)}, loader: &loader.Loader{}}
	do := restoring(t, ns, d, func() error {
		var err error
		if config.Edge, err = netdev.EnsureOverlay(config.MTU); err != nil {
			return err
		}
		d.kernel.network = &config
		_, err = netdev.Ensure(config)
		return err
	})
	foreign := func() (foreign []string) {
		do(func() { foreign = d.kernel.foreign() })
		return foreign
	}
	there := func() bool {
		out, err := ns.Run("sh", "-c", "ip rule; ip route show table all")
		return err == nil && strings.Contains(string(out), "105:\tfrom all lookup 4800") && strings.Contains(string(out), "120.2.0.0/24 dev pelago0 table 4800") &&
			strings.Contains(string(out), "unreachable 120.2.0.0/24 proto kernel metric 4800")
	}
	if best := restoredWithin(t, ns); best > 100*time.Millisecond {
		t.Errorf("the rule is back %v after its removal in the best of five runs, want at most 100 ms", best)
	}
	for _, damage := range []string{"ip rule del lookup 4800", "ip route flush table 4800", "ip route del unreachable 120.2.0.0/24 metric 4800"} {
		do(func() { d.kernel.interference = nil })
		if out, err := ns.Run("sh", "-c", damage); err != nil {
			t.Fatalf("%s: %v\n%s", damage, err, out)
		}
		await.True(t, damage+": it comes back", there)
		await.True(t, damage+": it is reported", func() bool { return slices.Equal(foreign(), []string{interferenceRoutes}) })
	}
	do(func() {
		d.kernel.interference = nil
		config.Prefixes = []netip.Prefix{netip.MustParsePrefix("120.3.0.0/24")}
		if _, err := netdev.Ensure(config); err != nil {
			t.Error(err)
		}
	})
	if got := foreign(); len(got) > 0 {
		t.Errorf("of the daemon's own change: %q", got)
	}
}

// restoredWithin returns the shortest time of five from the removal of the rule to the notification
// that it is there again. Reconciles would restore it, too, but up to half a minute later.
func restoredWithin(t *testing.T, ns *netns.NS) time.Duration {
	t.Helper()
	rules, done := make(chan netdev.RuleUpdate), make(chan struct{})
	if err := ns.Do(func() error { return netdev.RuleSubscribe(rules, done) }); err != nil {
		t.Fatal(err)
	}
	back := make(chan time.Time, 64)
	go func() {
		for u := range rules {
			if u.Type == unix.RTM_NEWRULE {
				back <- time.Now()
			}
		}
	}()
	defer close(done)
	rule := netlink.NewRule()
	rule.Priority, rule.Table = netdev.RulePriority, netdev.Table
	best := time.Hour
	for range 5 {
		var removed time.Time
		if err := ns.Do(func() error { removed = time.Now(); return netlink.RuleDel(rule) }); err != nil {
			t.Fatal(err)
		}
		await.True(t, "the rule comes back", func() bool {
			select {
			case at := <-back:
				best = min(best, at.Sub(removed))
				return true
			default:
				return false
			}
		})
	}
	t.Logf("the rule is back after %v", best)
	return best
}

// With clsact, a filter of others that is added before ours goes behind it, and ours come back after
// the removal of the qdisc, both without a reconcile; condition HostNetwork has them.
func TestDisplacedFiltersComeBack(t *testing.T) {
	objs, _ := clusterset.Globalnet("n1")
	n := newKernelNode(t, objs)
	n.openClsact()
	n.d.displaced.changed = make(chan struct{}, 1)
	do := restoring(t, n.ns, n.d, func() error { return n.d.reconcileOnce(t.Context()) })
	pass, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "cil_from_netdev", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}}) // TC_ACT_OK
	if err != nil {
		t.Fatal(err)
	}
	defer pass.Close()
	un0, err := n.ns.Index("un0")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		damage        func() error
		ingress, want string
	}{
		{func() error {
			return netlink.FilterAdd(&netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{LinkIndex: un0, Parent: netlink.HANDLE_MIN_INGRESS,
				Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL}, Fd: pass.FD(), Name: "cil_from_netdev", DirectAction: true})
		}, "pelago_uplink_in cil_from_netdev", "filter cil_from_netdev was executed before pelago_uplink_in on un0 ingress"},
		{func() error {
			_, err := n.ns.Run("tc", "qdisc", "del", "dev", "un0", "clsact")
			return err
		}, "pelago_uplink_in", "another program removed filter pelago_uplink_in from un0 ingress"},
	} {
		if err := n.ns.Do(tt.damage); err != nil {
			t.Fatal(err)
		}
		await.True(t, tt.want+": the filters are "+tt.ingress, func() bool {
			var names []string
			err := n.ns.Do(func() error {
				device, err := netlink.LinkByIndex(un0)
				if err != nil {
					return err
				}
				filters, err := netlink.FilterList(device, netlink.HANDLE_MIN_INGRESS)
				for _, f := range filters {
					names = append(names, f.(*netlink.BpfFilter).Name)
				}
				return err
			})
			return err == nil && strings.Join(names, " ") == tt.ingress
		})
		await.True(t, tt.want+": it is reported", func() bool {
			var index pelagov1alpha1.NodeIndexStatus
			var err error
			do(func() { index, _, err = n.reconcileHere() })
			c := meta.FindStatusCondition(index.Conditions, pelagov1alpha1.NodeHost)
			return err == nil && c != nil && c.Status == metav1.ConditionFalse && strings.Contains(c.Message, tt.want)
		})
	}
}

// restoring runs what Run does about what others displace in a node's network, after prepare and
// until the test ends. do runs a function between.
func restoring(t *testing.T, ns *netns.NS, d *Daemon, prepare func() error) (do func(func())) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended, ready, requests := make(chan error, 1), make(chan struct{}), make(chan func())
	go func() {
		ended <- ns.Do(func() error {
			if err := prepare(); err != nil {
				return err
			}
			// Subscriptions are of the thread's namespace.
			for _, s := range d.hostChanges() {
				if err := s(ctx.Done(), d.wake, func() {}); err != nil {
					return err
				}
			}
			close(ready)
			for {
				select {
				case <-ctx.Done():
					return nil
				case <-d.displaced.changed:
					d.restore(d.displaced.take())
				case f := <-requests:
					f()
				}
			}
		})
	}()
	select {
	case <-ready:
	case err := <-ended:
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return func(f func()) {
		done := make(chan struct{})
		requests <- func() { f(); close(done) }
		<-done
	}
}

// kube-proxy in IPVS mode binds every ClusterIP to a dummy device: their events are ignored, and
// they are not in the tables.
func TestIPVS(t *testing.T) {
	objs, _ := clusterset.Globalnet("n1")
	n := newKernelNode(t, objs)
	n.run(t, "ip link add kube-ipvs0 type bridge && ip addr add 10.96.200.1/32 dev kube-ipvs0")
	ctx, cancel := context.WithCancel(t.Context())
	watching := make(chan error, 1)
	go func() { watching <- n.ns.Do(func() error { n.d.watchHost(ctx); return nil }) }()
	defer func() {
		cancel()
		if err := <-watching; err != nil {
			t.Error(err)
		}
	}()
	woken := func() bool {
		select {
		case <-n.d.trigger:
			return true
		case <-time.After(300 * time.Millisecond):
			return false
		}
	}
	for woken() { // of the start
	}
	if _, _, err := n.reconcile(); err != nil {
		t.Fatal(err)
	}
	sources := len(n.tables().Sources)
	for quiet := 0; quiet < 10; quiet++ { // longer than retry: what the reconcile has done and planned
		if woken() {
			quiet = 0
		}
	}
	// The watch looks up devices in the namespace of this process: those of the node are known.
	if err := n.ns.Do(func() error { _, _, err := n.d.addresses.Read(ip("172.31.1.11")); return err }); err != nil {
		t.Fatal(err)
	}
	var batch strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&batch, "addr add 10.96.%d.%d/32 dev kube-ipvs0\n", i/250, 1+i%250)
		if i%100 == 0 { // as kube-proxy, which does more than this between two
			batch.WriteString("link show lo\n")
		}
	}
	if out, err := n.ns.RunInput(batch.String(), "ip", "-batch", "-"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if woken() {
		t.Error("ClusterIPs wake the daemon")
	}
	n.d.forgetHost()
	if _, _, err := n.reconcile(); err != nil {
		t.Errorf("with 10,000 ClusterIPs: %v", err)
	}
	if got := len(n.tables().Sources); got != sources {
		t.Errorf("%d sources, want %d as without them", got, sources)
	}
	for woken() {
	}
	n.run(t, "ip addr add 10.9.0.1/32 dev un0")
	if !woken() {
		t.Error("an address of a card does not wake the daemon")
	}
}
