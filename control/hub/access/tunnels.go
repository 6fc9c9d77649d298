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
	"k8s.io/apimachinery/pkg/types"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
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

// maxTunnels is how many tunnels of a cluster a replica keeps, the newest: one agent has one, and
// another one takes over before that has ended.
const maxTunnels = 2

type attachment struct {
	session   *yamux.Session
	uid       types.UID       // of the Cluster, whose name another one may have later
	transport *http.Transport // of all requests through the session
}

func newTunnels(replica string) *tunnels {
	return &tunnels{replica: replica, by: map[string][]*attachment{}, sessions: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "pelago_proxy_tunnels", Help: "Tunnels from the agent of a pull member to this replica.",
	}, []string{"member_cluster"})}
}

// attach makes the connection of a request a tunnel of the cluster.
func (t *tunnels) attach(w http.ResponseWriter, q *http.Request, c *clusterv1alpha1.Cluster) {
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
	settings := tunnel.Config()
	settings.AcceptBacklog = 1 // the agent opens no streams
	session, err := yamux.Client(&bufferedConn{conn, buffered.Reader}, settings)
	if err != nil {
		return
	}
	defer session.Close()
	go func() {
		if _, err := session.Accept(); err == nil {
			_ = session.Close() // the end of the session is what matters
		}
	}()
	x := &attachment{session: session, uid: c.UID, transport: &http.Transport{
		DialContext:           func(context.Context, string, string) (net.Conn, error) { return session.Open() },
		IdleConnTimeout:       time.Minute,
		ResponseHeaderTimeout: 0, // the member's API server bounds requests
	}}
	if t.add(c.Name, x) {
		<-session.CloseChan()
		t.remove(c.Name, x)
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
	var kept []*attachment
	for _, y := range slices.Backward(t.by[cluster]) {
		if y.uid == x.uid && len(kept) < maxTunnels-1 {
			kept = append(kept, y)
		} else {
			_ = y.session.Close() // it ends in any case
		}
	}
	slices.Reverse(kept)
	t.by[cluster] = append(kept, x)
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
func (t *tunnels) to(c *clusterv1alpha1.Cluster) http.RoundTripper {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range slices.Backward(t.by[c.Name]) {
		if x.uid == c.UID && !x.session.IsClosed() {
			return x.transport
		}
	}
	return nil
}

// end ends the tunnels of a cluster.
func (t *tunnels) end(cluster string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range t.by[cluster] {
		_ = x.session.Close() // it ends in any case
	}
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
