package access

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/hashicorp/yamux"
	"k8s.io/apimachinery/pkg/types"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/tunnel"
	"github.com/pelago-net/pelago/test/await"
)

// TestTunnelLimits: a member has two tunnels to a replica at most, opens no streams itself, and one
// that joins under a name that was used before does not have the tunnels of the former.
func TestTunnelLimits(t *testing.T) {
	tunnels := newTunnels("replica")
	current := func(uid types.UID) *clusterv1alpha1.Cluster {
		c := &clusterv1alpha1.Cluster{}
		c.Name, c.UID = "m1", uid
		return c
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		tunnels.attach(w, q, current(types.UID(q.URL.Query().Get("uid"))))
	}))
	defer server.Close()
	defer tunnels.close()
	newest := func() *attachment {
		tunnels.mu.Lock()
		defer tunnels.mu.Unlock()
		if all := tunnels.by["m1"]; len(all) > 0 {
			return all[len(all)-1]
		}
		return nil
	}
	attach := func(uid string) *yamux.Session {
		t.Helper()
		before := newest()
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(conn, "GET /?uid=%s HTTP/1.1\r\nHost: hub\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", uid, pelagov1alpha1.ProxyUpgrade); err != nil {
			t.Fatal(err)
		}
		reader := bufio.NewReader(conn)
		response, err := http.ReadResponse(reader, nil)
		if err != nil || response.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("attach: %v, %v", response, err)
		}
		session, err := yamux.Server(&bufferedConn{conn, reader}, tunnel.Config())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = session.Close() }) // most have ended
		await.True(t, "the tunnel is the newest", func() bool { return newest() != before })
		return session
	}
	count := func() int {
		tunnels.mu.Lock()
		defer tunnels.mu.Unlock()
		return len(tunnels.by["m1"])
	}

	first, second, third := attach("1"), attach("1"), attach("1")
	await.True(t, "the oldest of three ends", first.IsClosed)
	await.Equal(t, 2, count)
	if second.IsClosed() || third.IsClosed() {
		t.Error("one of the two newest has ended")
	}

	_, _ = third.Open() // the hub may end the session before Open returns
	await.True(t, "a tunnel whose agent opens a stream ends", third.IsClosed)
	await.Equal(t, 1, count)

	if tunnels.to(current("2")) != nil {
		t.Error("another cluster of the same name has the tunnel of the former one")
	}
	fourth := attach("2")
	await.True(t, "the tunnel of the former cluster ends", second.IsClosed)
	if tunnels.to(current("2")) == nil || tunnels.to(current("1")) != nil || fourth.IsClosed() {
		t.Error("the new cluster does not have its tunnel, or the former one has it")
	}
	tunnels.end("m1")
	await.Equal(t, 0, count)
}
