package node

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/pelago-net/pelago/control/node/tables"
)

// fake answers every DNS look-up with its function.
type publicIPFake func(ctx context.Context, host string) (string, error)

func (f publicIPFake) LookupNetIP(ctx context.Context, _, host string) ([]netip.Addr, error) {
	text, err := f(ctx, host)
	if err != nil {
		return nil, err
	}
	return []netip.Addr{netip.MustParseAddr(text)}, nil
}

type forbidden struct{ t *testing.T }

func (f forbidden) RoundTrip(r *http.Request) (*http.Response, error) {
	f.t.Errorf("somebody asks %s", r.URL)
	return nil, errors.New("forbidden")
}

// start runs a resolver (inside of a synctest bubble) that records the addresses of Changed.
func start(t *testing.T, names publicIPFake) (*Resolver, *[]string) {
	told := &[]string{}
	r := NewResolver(ResolverOptions{
		Names: names, Transport: forbidden{t}, Log: slog.New(slog.DiscardHandler),
		Service: func(context.Context, string) (*corev1.Service, error) {
			t.Error("somebody reads a Service")
			return nil, errors.New("forbidden")
		},
		Changed: func(res PublicIP) { *told = append(*told, res.Address.String()) },
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return r, told
}

func want(t *testing.T, r *Resolver, address string, failed bool) {
	t.Helper()
	synctest.Wait()
	got := r.Result()
	if got.Address.String() != address || (got.Err != nil) != failed {
		t.Errorf("result = %s, %v; want %s, failed %t", got.Address, got.Err, address, failed)
	}
}

// Without an annotation nobody outside is asked, for however long.
func TestAirGapped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, told := start(t, func(_ context.Context, host string) (string, error) {
			t.Errorf("somebody looks up %s", host)
			return "", errors.New("forbidden")
		})
		time.Sleep(24 * time.Hour)
		want(t, r, "invalid IP", true)
		r.Set([]tables.PublicIPSource{{Method: tables.IPv4, Argument: "198.51.100.7"}})
		time.Sleep(24 * time.Hour)
		want(t, r, "198.51.100.7", false)
		r.Set(nil)
		want(t, r, "invalid IP", true)
		if diff := cmp.Diff([]string{"198.51.100.7", "invalid IP"}, *told); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
	})
}

func TestKeepsTheLastGoodOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var address atomic.Value // what the server answers; empty: it fails
		var asked atomic.Int32
		address.Store("")
		r, told := start(t, func(context.Context, string) (string, error) {
			asked.Add(1)
			if a := address.Load().(string); a != "" {
				return a, nil
			}
			return "", errors.New("server misbehaving")
		})
		r.Set([]tables.PublicIPSource{{Method: tables.DNS, Argument: "gw.example"}})
		want(t, r, "invalid IP", true)
		address.Store("198.51.100.7")
		time.Sleep(soonest) // a first failure is repeated soon
		want(t, r, "198.51.100.7", false)
		at := r.Result().At

		address.Store("")
		asked.Store(0)
		time.Sleep(time.Hour)
		want(t, r, "198.51.100.7", true)
		if got := r.Result(); got.At.Sub(at) > interval || got.Err.Error() != "look up dns:gw.example: server misbehaving" {
			t.Errorf("after an hour of failures: %+v", got)
		}
		if n := asked.Load(); n < 60 || n > 90 {
			t.Errorf("asked %d times in an hour; want about once a minute", n)
		}

		address.Store("198.51.100.7")
		time.Sleep(interval)
		want(t, r, "198.51.100.7", false)
		address.Store("198.51.100.8")
		time.Sleep(interval)
		want(t, r, "198.51.100.8", false)
		time.Sleep(time.Hour)
		if diff := cmp.Diff([]string{"198.51.100.7", "198.51.100.8"}, *told); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
	})
}

// Other sources take effect at once, also while an old one is being waited for. An address goes
// when its source is not wanted any more and the new ones have failed, not before.
func TestSetWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var waiting atomic.Int32
		r, told := start(t, func(ctx context.Context, host string) (string, error) {
			if host != "silent" {
				return "", errors.New("no such host")
			}
			waiting.Add(1)
			<-ctx.Done()
			waiting.Add(-1)
			return "", ctx.Err()
		})
		begin := time.Now()
		r.Set([]tables.PublicIPSource{{Method: tables.DNS, Argument: "silent"}})
		synctest.Wait()
		if waiting.Load() != 1 {
			t.Fatal("nobody waits for the silent server")
		}
		r.Set([]tables.PublicIPSource{{Method: tables.IPv4, Argument: "198.51.100.7"}})
		want(t, r, "198.51.100.7", false)
		r.Set([]tables.PublicIPSource{{Method: tables.DNS, Argument: "silent"}})
		want(t, r, "198.51.100.7", false) // not yet known to fail
		if waited := time.Since(begin); waited != 0 {
			t.Errorf("Set and Result took %s", waited)
		}
		time.Sleep(bound)
		want(t, r, "invalid IP", true)
		r.Set([]tables.PublicIPSource{{Method: tables.DNS, Argument: "missing"}, {Method: tables.IPv4, Argument: "198.51.100.7"}})
		want(t, r, "198.51.100.7", false)
		// the same
		r.Set([]tables.PublicIPSource{{Method: tables.DNS, Argument: "missing"}, {Method: tables.IPv4, Argument: "198.51.100.7"}})
		if diff := cmp.Diff([]string{"198.51.100.7", "invalid IP", "198.51.100.7"}, *told); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
	})
}

func TestPause(t *testing.T) {
	for failures, low := range map[int]time.Duration{0: 45 * time.Second, 1: 1500 * time.Millisecond, 2: 3 * time.Second, 5: 24 * time.Second, 6: 45 * time.Second, 1 << 20: 45 * time.Second} {
		for range 100 {
			if p := pause(interval, failures); p < low || p > low*4/3 {
				t.Fatalf("pause after %d failures = %s; want %s to %s", failures, p, low, low*4/3)
			}
		}
	}
}
