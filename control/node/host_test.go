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
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	ready := make(chan struct{})
	requests := make(chan func())
	go func() { // the loop of Run, in the node's network
		ended <- ns.Do(func() error {
			var err error
			if config.Edge, err = netdev.EnsureOverlay(config.MTU); err != nil {
				return err
			}
			if _, err := netdev.Ensure(config); err != nil {
				return err
			}
			d.kernel.network = &config
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
	<-ready
	foreign := func() (foreign []string) {
		done := make(chan struct{})
		requests <- func() { foreign = d.kernel.foreign(); close(done) }
		<-done
		return foreign
	}
	there := func() bool {
		out, err := ns.Run("sh", "-c", "ip rule; ip route show table all")
		return err == nil && strings.Contains(string(out), "105:\tfrom all lookup 4800") && strings.Contains(string(out), "120.2.0.0/24 dev pelago0 table 4800") &&
			strings.Contains(string(out), "unreachable 120.2.0.0/24 proto kernel metric 4800")
	}
	for _, damage := range []string{"ip rule del lookup 4800", "ip route flush table 4800", "ip route del unreachable 120.2.0.0/24 metric 4800"} {
		requests <- func() { d.kernel.interference = nil }
		if out, err := ns.Run("sh", "-c", damage); err != nil {
			t.Fatalf("%s: %v\n%s", damage, err, out)
		}
		await.True(t, damage+": it comes back", there)
		await.True(t, damage+": it is reported", func() bool { return slices.Equal(foreign(), []string{interferenceRoutes}) })
	}
	requests <- func() {
		d.kernel.interference = nil
		config.Prefixes = []netip.Prefix{netip.MustParsePrefix("120.3.0.0/24")}
		if _, err := netdev.Ensure(config); err != nil {
			t.Error(err)
		}
	}
	if got := foreign(); len(got) > 0 {
		t.Errorf("of the daemon's own change: %q", got)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
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
	for i := range 4200 {
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
		t.Errorf("with 4,200 ClusterIPs: %v", err)
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
