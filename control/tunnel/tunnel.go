// Package tunnel carries requests of users at the hub to the API server of a pull member: Agent is
// the end that the member opens, Config the session of both ends (the other is in
// control/hub/access), and Forward the reverse proxy that both ends use.
//
// pelago-agent runs Agent. A request without a user is never forwarded: it would have the agent's
// rights.
package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
)

const (
	// attachTimeout bounds the connection to the hub and the change of protocol.
	attachTimeout = 15 * time.Second
	// minAttach and maxAttach bound the pauses between attempts to attach to a replica of
	// pelago-hub that has no tunnel yet.
	minAttach, maxAttach = time.Second, time.Minute
	// shortSession is the minimum duration of a session after which the next attempt follows
	// without a pause.
	shortSession = 5 * time.Second
)

// Agent carries requests of users at the hub to the API server of this cluster, through connections
// that are opened from here: the hub need not reach the cluster. Each replica of pelago-hub gets
// one, because any of them may have a request to forward.
type Agent struct {
	Cluster string
	// Server and CA (PEM) are those of the hub; Token returns the bearer token to use now.
	Server string
	CA     []byte
	Token  func() string
	// Member is the access of an account that may impersonate.
	Member *rest.Config
	Log    *slog.Logger

	sessions prometheus.Gauge
}

// Metrics has the number of tunnels.
func (a *Agent) Metrics() prometheus.Collector {
	if a.sessions == nil {
		a.sessions = prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "pelago_agent_tunnels", Help: "Tunnels to replicas of pelago-hub, by which users at the hub reach this cluster.",
		})
	}
	return a.sessions
}

// Start keeps the tunnels until ctx ends. The hub being away, or without this API, is no error.
func (a *Agent) Start(ctx context.Context) error {
	a.Metrics()
	serve, err := a.handler()
	if err != nil {
		return err
	}
	hub, err := rest.TransportFor(&rest.Config{
		Host: a.Server, UserAgent: "pelago-agent",
		// HTTP/2 cannot change the protocol
		TLSClientConfig: rest.TLSClientConfig{CAData: a.CA, NextProtos: []string{"http/1.1"}},
		Dial:            (&net.Dialer{Timeout: attachTimeout, KeepAlive: 30 * time.Second}).DialContext,
	})
	if err != nil {
		return fmt.Errorf("prepare the tunnel to the hub at %s: %w", a.Server, err)
	}
	var all sync.WaitGroup
	defer all.Wait()
	var mu sync.Mutex
	replicas := map[string]bool{}
	brief := false // the last session that ended was short
	lost := make(chan struct{}, 1)
	fresh := wait.Backoff{Duration: minAttach, Factor: 2, Jitter: 0.2, Steps: 16, Cap: maxAttach}
	backoff, reported := fresh, ""
	for ctx.Err() == nil {
		mu.Lock()
		known := slices.Sorted(maps.Keys(replicas))
		mu.Unlock()
		session, replica, err := a.attach(ctx, hub, known)
		switch {
		case ctx.Err() != nil:
		case err != nil && err.Error() != reported:
			a.Log.Warn("users at the hub cannot reach this cluster by the hub", "tunnels", len(known), "error", err)
			reported = err.Error()
		case session != nil:
			a.Log.Info("tunnel to the hub is open", "replica", replica)
			reported = ""
			began := time.Now()
			mu.Lock()
			if !brief {
				backoff = fresh
			}
			replicas[replica] = true
			a.sessions.Set(float64(len(replicas)))
			mu.Unlock()
			all.Go(func() {
				err := a.serve(ctx, session, serve)
				mu.Lock()
				delete(replicas, replica)
				a.sessions.Set(float64(len(replicas)))
				brief = time.Since(began) < shortSession
				again := !brief
				mu.Unlock()
				if ctx.Err() == nil {
					a.Log.Info("tunnel to the hub has ended", "replica", replica, "error", err)
				}
				if !again {
					// the next attempt waits: a hub that ends its sessions at once must not be
					// queried in a loop
					return
				}
				select {
				case lost <- struct{}{}:
				default:
				}
			})
		}
		select {
		case <-ctx.Done():
		case <-lost:
			backoff = fresh
		case <-time.After(backoff.Step()):
		}
	}
	return nil
}

// attach opens a session with a replica that is not among the known ones; nil: one of those
// answered.
func (a *Agent) attach(ctx context.Context, hub http.RoundTripper, known []string) (*yamux.Session, string, error) {
	ctx, cancel := context.WithCancelCause(ctx) // of the connection, so it has no deadline
	late := time.AfterFunc(attachTimeout, func() { cancel(errors.New("the hub does not answer in time")) })
	attached := false
	defer func() {
		if !attached {
			cancel(nil)
		}
	}()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(a.Server, "/")+pelagov1alpha1.ProxyPath(a.Cluster, "attach")+
		"?"+url.Values{pelagov1alpha1.ProxyExceptParameter: {strings.Join(known, ",")}}.Encode(), nil)
	if err != nil {
		return nil, "", err
	}
	q.Header.Set("Connection", "Upgrade")
	q.Header.Set("Upgrade", pelagov1alpha1.ProxyUpgrade)
	q.Header.Set("Authorization", "Bearer "+a.Token())
	r, err := hub.RoundTrip(q)
	if err != nil {
		return nil, "", err
	}
	conn, ok := r.Body.(io.ReadWriteCloser)
	if r.StatusCode == http.StatusSwitchingProtocols && ok && late.Stop() {
		session, err := yamux.Server(conn, Config())
		if err != nil {
			return nil, "", err
		}
		attached = true
		context.AfterFunc(ctx, func() { _ = session.Close() }) // it ends in any case
		go func() {
			<-session.CloseChan()
			cancel(nil)
		}()
		return session, r.Header.Get(pelagov1alpha1.ProxyReplicaHeader), nil
	}
	defer r.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(r.Body, 1<<10)) // for the message
	switch r.StatusCode {
	case http.StatusConflict:
		return nil, "", nil
	case http.StatusNotFound, http.StatusForbidden:
		return nil, "", fmt.Errorf("the hub answers %s: it serves %s with `pelago-hub --proxy-address`, and accepts agents of joined clusters: %s",
			r.Status, pelagov1alpha1.ProxyGroup, text)
	}
	return nil, "", fmt.Errorf("the hub answers %s: %s", r.Status, text)
}

// serve serves the streams of a session until it or ctx ends.
func (a *Agent) serve(ctx context.Context, session *yamux.Session, handler http.Handler) error {
	web := &http.Server{Handler: handler, ReadHeaderTimeout: attachTimeout, ErrorLog: slog.NewLogLogger(a.Log.Handler(), slog.LevelDebug)}
	// what is under way is repeated by its client
	defer context.AfterFunc(ctx, func() { _ = web.Close() })()
	return web.Serve(session)
}

// handler forwards requests to this cluster's API server. One that impersonates no user is refused:
// it would have the agent's rights.
func (a *Agent) handler() (http.Handler, error) {
	plain, err := rest.TransportFor(a.Member)
	if err != nil {
		return nil, fmt.Errorf("prepare the tunnel's access to this cluster: %w", err)
	}
	single := rest.CopyConfig(a.Member)
	single.NextProtos = []string{"http/1.1"}
	upgrade, err := rest.TransportFor(single)
	if err != nil {
		return nil, fmt.Errorf("prepare the tunnel's access to this cluster: %w", err)
	}
	to, _, err := rest.DefaultServerURL(a.Member.Host, "", schema.GroupVersion{}, true)
	if err != nil {
		return nil, fmt.Errorf("read the address of this cluster's API server: %w", err)
	}
	p := Forward(to, plain, upgrade, func(in, out *http.Request) {
		for name, values := range in.Header {
			if strings.HasPrefix(name, "Impersonate-") {
				out.Header[name] = values
			}
		}
	})
	p.ErrorLog = slog.NewLogLogger(a.Log.Handler(), slog.LevelDebug)
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.Header.Get("Impersonate-User") == "" || slices.Contains(q.Header.Values("Impersonate-Group"), "system:masters") {
			http.Error(w, "requests through the tunnel name a user, and never the group system:masters", http.StatusForbidden)
			return
		}
		p.ServeHTTP(w, q)
	}), nil
}

// Config is the session of both ends of the tunnel between pelago-hub and the agent of a pull
// member: an end that has vanished is noticed within half a minute.
func Config() *yamux.Config {
	c := yamux.DefaultConfig()
	c.KeepAliveInterval, c.ConnectionWriteTimeout = 15*time.Second, 10*time.Second
	c.LogOutput = io.Discard // both ends report the end of a session themselves
	return c
}
