package access

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
	"github.com/prometheus/client_golang/prometheus"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/tunnel"
)

// tunnels are the sessions that the agents of pull members have opened to this replica.
type tunnels struct {
	replica  string
	sessions *prometheus.GaugeVec

	mu     sync.Mutex
	by     map[string][]*attachment // of a cluster, the newest last
	closed bool
}

type attachment struct {
	session   *yamux.Session
	transport *http.Transport // of all requests through the session
}

func newTunnels(replica string) *tunnels {
	return &tunnels{replica: replica, by: map[string][]*attachment{}, sessions: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "pelago_proxy_tunnels", Help: "Tunnels from the agent of a pull member to this replica.",
	}, []string{"member_cluster"})}
}

// attach makes the connection of a request a tunnel of the cluster.
func (t *tunnels) attach(w http.ResponseWriter, q *http.Request, cluster string) {
	except := strings.Split(q.URL.Query().Get(pelagov1alpha1.ProxyExceptParameter), ",")
	switch {
	case q.Header.Get("Upgrade") != pelagov1alpha1.ProxyUpgrade:
		w.Header().Set("Upgrade", pelagov1alpha1.ProxyUpgrade)
		http.Error(w, "only the protocol "+pelagov1alpha1.ProxyUpgrade+" is served here", http.StatusUpgradeRequired)
		return
	case slices.Contains(except, t.replica):
		http.Error(w, "the agent has a tunnel to this replica", http.StatusConflict)
		return
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, "take over the connection: "+err.Error(), http.StatusHTTPVersionNotSupported)
		return
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return // it has ended
	}
	_, err = fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n%s: %s\r\n\r\n",
		pelagov1alpha1.ProxyUpgrade, pelagov1alpha1.ProxyReplicaHeader, t.replica)
	if err != nil {
		return
	}
	session, err := yamux.Client(&bufferedConn{conn, buffered.Reader}, tunnel.Config())
	if err != nil {
		return
	}
	defer session.Close()
	x := &attachment{session: session, transport: &http.Transport{
		DialContext:           func(context.Context, string, string) (net.Conn, error) { return session.Open() },
		IdleConnTimeout:       time.Minute,
		ResponseHeaderTimeout: 0, // the member's API server bounds requests
	}}
	if t.add(cluster, x) {
		<-session.CloseChan()
		t.remove(cluster, x)
		x.transport.CloseIdleConnections()
	}
}

// bufferedConn reads what the HTTP server has read ahead first.
type bufferedConn struct {
	net.Conn
	reader *bufio.Reader
}

func (c *bufferedConn) Read(p []byte) (int, error) { return c.reader.Read(p) }

var _ io.ReadWriteCloser = (*bufferedConn)(nil)

func (t *tunnels) add(cluster string, x *attachment) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.by[cluster] = append(t.by[cluster], x)
	t.sessions.WithLabelValues(cluster).Set(float64(len(t.by[cluster])))
	return true
}

func (t *tunnels) remove(cluster string, x *attachment) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.by[cluster] = slices.DeleteFunc(t.by[cluster], func(y *attachment) bool { return x == y })
	t.sessions.WithLabelValues(cluster).Set(float64(len(t.by[cluster])))
	if len(t.by[cluster]) == 0 {
		delete(t.by, cluster)
		t.sessions.DeleteLabelValues(cluster)
	}
}

// to returns the transport of the newest tunnel of a cluster; nil: none exists.
func (t *tunnels) to(cluster string) http.RoundTripper {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range slices.Backward(t.by[cluster]) {
		if !x.session.IsClosed() {
			return x.transport
		}
	}
	return nil
}

// close ends all tunnels: the agents look for another replica.
func (t *tunnels) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, all := range t.by {
		for _, x := range all {
			_ = x.session.Close() // it ends in any case
		}
	}
}
