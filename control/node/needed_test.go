package node

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pelago-net/pelago/test/clusterset"
)

type hosts map[string][]netip.Addr

func (h hosts) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	if a, ok := h[host]; ok {
		return a, nil
	}
	return nil, errors.New("no such host")
}

func TestNeededAddresses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(file, []byte("search example.org\nnameserver 172.20.0.53\nnameserver 127.0.0.53\nnameserver fd00::53\nnameserver\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	dns := hosts{"api.example.org": {ip("172.31.9.2"), ip("172.31.9.3")}}
	changes := 0
	n := newNeeded("https://api.example.org:6443", file, dns, func() { changes++ })
	at := func() []netip.Addr {
		return n.addresses("", "https://192.0.2.7:6443", "192.0.2.8:443", "https://[fd00::1]:6443", "127.0.0.1")
	}
	check := func(when string, want ...string) {
		t.Helper()
		var addresses []netip.Addr
		for _, w := range want {
			addresses = append(addresses, ip(w))
		}
		if diff := cmp.Diff(addresses, at(), clusterset.Comparable); diff != "" {
			t.Errorf("%s: -want +got\n%s", when, diff)
		}
	}
	check("before the first look-up", "172.20.0.53", "192.0.2.7", "192.0.2.8")
	n.refresh(t.Context())
	check("afterwards", "172.20.0.53", "172.31.9.2", "172.31.9.3", "192.0.2.7", "192.0.2.8")
	delete(dns, "api.example.org")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.refresh(t.Context())
	check("while nothing resolves", "172.20.0.53", "172.31.9.2", "172.31.9.3", "192.0.2.7", "192.0.2.8")
	if changes != 1 {
		t.Errorf("%d changes, want one", changes)
	}
}

// Saved routes do not outlive a silent API server: a bad one may be the cause of the silence.
func TestSavedPeersExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objs, _ := clusterset.Full(false)
		s := objectSource{saved: &objs, since: time.Now()}
		if got := s.fromSaved(&gateway{}); len(got.Peers) != 1 || s.expired != "" {
			t.Errorf("%d peers after the start, problem %q", len(got.Peers), s.expired)
		}
		time.Sleep(savedLife)
		if got := s.fromSaved(&gateway{}); len(got.Peers) != 1 {
			t.Errorf("%d peers after %s", len(got.Peers), savedLife)
		}
		time.Sleep(time.Second)
		if got := s.fromSaved(&gateway{}); len(got.Peers) != 0 || s.expired == "" || len(got.Nodes) != 2 {
			t.Errorf("later %d peers, %d nodes, problem %q; want no peer, and the reason", len(got.Peers), len(got.Nodes), s.expired)
		}
		if s.goLive(); s.expired != "" {
			t.Errorf("problem %q once the API server answers", s.expired)
		}
	})
}
