// Package access serves requests of users to members: the aggregated APIs proxy.pelago.io (one
// member, through the hub's connection or the tunnel of a pull member) and search.karmada.io (lists
// over members). Every replica serves, with connections of its own; the leader registers the APIs.
//
// pelago-hub runs it. It acts in a member only in the name of the user, and caches no objects of
// members.
package access

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/client-go/rest"
	clientcache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
)

const (
	// reload is the interval at which the server's certificate, and the CA and names of the hub's
	// API server, are reread.
	reload = time.Minute
	// reloadRetry is the interval of attempts while that fails, firstRetry before the first success:
	// the leader makes the certificate.
	reloadRetry = 5 * time.Second
	firstRetry  = time.Second
	// drainTime bounds the wait for requests under way at the end.
	drainTime = 5 * time.Second
)

// Options configure Setup.
type Options struct {
	// Address is where the server listens, host:port.
	Address string
	// Host, if set, is the name or address at which the hub's API server reaches Address; a Service
	// is created for it. Otherwise the Deployment's Service is used.
	Host string
	// Namespace holds the Service, which is called Name, and the Secret with the certificate,
	// Name-proxy.
	Namespace, Name string
	// BrokerNamespace holds the ServiceAccounts of members.
	BrokerNamespace string
	// Hub, if set, has search.karmada.io served: it is the access to the hub's API server, without
	// the fence of the leader, since every replica serves. It needs the right to impersonate.
	Hub *rest.Config
	// Karmada, if it has an address, serves the hub's API with clusters/proxy of
	// cluster.karmada.io. It needs Hub.
	Karmada  Front
	Registry prometheus.Registerer
	Log      *slog.Logger
}

// Front is where Karmada's tools reach the hub.
type Front struct {
	// Address is where the server listens, host:port; empty: nowhere.
	Address string
	// CertFile and KeyFile have its certificate, and are read again when they change.
	CertFile, KeyFile string
}

// Setup adds the server to the manager, whose cache must hold Clusters; the leader registers it at
// the hub's API server.
func Setup(mgr manager.Manager, o Options) error {
	s := &server{Options: o, live: mgr.GetAPIReader()}
	h := &proxyHandler{
		clusters: mgr.GetClient(), live: mgr.GetAPIReader(), brokerNamespace: o.BrokerNamespace, log: o.Log,
		authenticate: s.authenticate, tunnels: newTunnels(string(uuid.NewUUID())),
	}
	s.handler, s.tunnels = h, h.tunnels
	if o.Hub != nil {
		var err error
		if h.hub, err = newRouteTo(o.Hub); err != nil {
			return err
		}
		if h.search, err = newSearchHandler(h, client.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()}, o.Hub); err != nil {
			return err
		}
	}
	if o.Karmada.Address != "" {
		if err := setupFront(mgr, s, h); err != nil {
			return err
		}
	}
	_, port, err := net.SplitHostPort(o.Address)
	if err != nil {
		return fmt.Errorf("serve the access to members at %q: %w", o.Address, err)
	}
	leaving := &departures{clusters: mgr.GetCache(), end: func(cluster string) {
		h.tunnels.end(cluster)
		h.routes.close(cluster)
	}}
	r := &registration{Options: o, client: mgr.GetClient(), live: mgr.GetAPIReader(), port: port}
	if err := errors.Join(o.Registry.Register(h.tunnels.sessions), mgr.Add(s), mgr.Add(r), mgr.Add(leaving),
		mgr.AddReadyzCheck("proxy", s.ready)); err != nil {
		return fmt.Errorf("set up the access to members: %w", err)
	}
	return nil
}

func (o Options) secret() client.ObjectKey {
	return client.ObjectKey{Namespace: o.Namespace, Name: o.Name + "-proxy"}
}

// server is the HTTPS server.
type server struct {
	Options
	live    client.Reader
	handler http.Handler
	tunnels *tunnels
	// listens is set once the caches have synced and the port is open.
	listens atomic.Bool

	mu          sync.Mutex
	read, tried time.Time
	failure     error // of the last attempt
	certificate *tls.Certificate
	front       authenticator.Request
	// clients has the users of client certificates; nil: the hub's API server has none.
	clients authenticator.Request
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: every replica serves.
func (s *server) NeedLeaderElection() bool { return false }

// ready is the readiness of a replica: the Service sends it the requests and tunnels of members.
func (s *server) ready(*http.Request) error {
	if !s.listens.Load() {
		return fmt.Errorf("the access to members does not listen at %s yet", s.Address)
	}
	return nil
}

// Start serves until ctx ends.
func (s *server) Start(ctx context.Context) error {
	certificate := func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		cert, _, err := s.material(ctx)
		return cert, err
	}
	defer context.AfterFunc(ctx, s.tunnels.close)()
	return s.listen(ctx, s.Address, s.handler, certificate, s.listens.Store)
}

// listen serves HTTPS until ctx ends; listens is called when the port is open, and at the end.
func (s *server) listen(ctx context.Context, address string, handler http.Handler,
	certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error), listens func(bool)) error {
	web := &http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
		TLSConfig: &tls.Config{
			MinVersion:     tls.VersionTLS12,
			ClientAuth:     tls.RequestClientCert, // the authenticator verifies it
			GetCertificate: certificate,
		},
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("serve the access to members: %w", err)
	}
	listens(true)
	defer listens(false)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		<-ctx.Done()
		drain, cancel := context.WithTimeout(context.Background(), drainTime)
		defer cancel()
		if web.Shutdown(drain) != nil {
			_ = web.Close() // watches and logs go on; their clients connect to another replica
		}
	}()
	if err := web.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the access to members: %w", err)
	}
	<-ended
	return nil
}

// departures ends the connections to clusters that are removed, or not accepted any more.
type departures struct {
	clusters cache.Informers
	end      func(cluster string)
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: every replica has connections.
func (d *departures) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable.
func (d *departures) Start(ctx context.Context) error {
	informer, err := d.clusters.GetInformer(ctx, &clusterv1alpha1.Cluster{})
	if err != nil {
		return fmt.Errorf("watch Clusters, to end the connections to those that leave: %w", err)
	}
	_, err = informer.AddEventHandler(clientcache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, after any) {
			old, ok := before.(*clusterv1alpha1.Cluster)
			c, isCluster := after.(*clusterv1alpha1.Cluster)
			if ok && isCluster && (old.UID != c.UID || old.Accepted() && !c.Accepted()) {
				d.end(c.Name)
			}
		},
		DeleteFunc: func(o any) {
			if missed, ok := o.(clientcache.DeletedFinalStateUnknown); ok {
				o = missed.Obj
			}
			if c, ok := o.(*clusterv1alpha1.Cluster); ok {
				d.end(c.Name)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watch Clusters, to end the connections to those that leave: %w", err)
	}
	<-ctx.Done()
	return nil
}

// material is the certificate that the leader has made, and the authenticator of the hub's API
// server. What was read before stays in use while the API server is away.
func (s *server) material(ctx context.Context) (*tls.Certificate, authenticator.Request, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	retry := reloadRetry
	if s.front == nil {
		retry = firstRetry
	}
	if time.Since(s.read) >= reload && time.Since(s.tried) >= retry {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reloadRetry) // for all requests
		defer cancel()
		cert, err := readCertificate(ctx, s.live, s.secret())
		front, clients, err2 := readFront(ctx, s.live)
		s.tried, s.failure = time.Now(), errors.Join(err, err2)
		if s.failure == nil {
			s.certificate, s.front, s.clients, s.read = cert, front, clients, s.tried
		}
	}
	if s.front == nil {
		return nil, nil, s.failure
	}
	return s.certificate, s.front, nil
}

// authenticate returns the user whom the hub's API server names. All others are refused.
func (s *server) authenticate(q *http.Request) (*authenticator.Response, bool, error) {
	_, front, err := s.material(q.Context())
	if err != nil {
		return nil, false, err
	}
	return front.AuthenticateRequest(q)
}

// authenticateCertificate returns the user of a client certificate of the hub's API server. Before
// its authority could be read, the error is a *StatusError.
func (s *server) authenticateCertificate(q *http.Request) (*authenticator.Response, bool, error) {
	if _, _, err := s.material(q.Context()); err != nil {
		return nil, false, unavailable("the authority of client certificates is not known yet: %v", err)
	}
	s.mu.Lock()
	clients := s.clients
	s.mu.Unlock()
	if clients == nil {
		return nil, false, errors.New("the hub's kube-apiserver has no --client-ca-file")
	}
	return clients.AuthenticateRequest(q)
}

// readFront reads the certificate authority and the headers of the API server's front proxy, and
// the certificate authority of clients, which it publishes for aggregated APIs.
func readFront(ctx context.Context, live client.Reader) (front, clients authenticator.Request, err error) {
	m := &corev1.ConfigMap{}
	key := client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: "extension-apiserver-authentication"}
	if err := live.Get(ctx, key, m); err != nil {
		return nil, nil, fmt.Errorf("get ConfigMap %s: %w", key, err)
	}
	ca := m.Data["requestheader-client-ca-file"]
	if ca == "" {
		return nil, nil, fmt.Errorf("ConfigMap %s has no requestheader-client-ca-file: the hub's kube-apiserver needs the "+
			"flags --requestheader-* and --proxy-client-*", key)
	}
	trust := x509request.DefaultVerifyOptions()
	trust.Roots = x509.NewCertPool()
	if !trust.Roots.AppendCertsFromPEM([]byte(ca)) {
		return nil, nil, fmt.Errorf("read ConfigMap %s: requestheader-client-ca-file holds no certificate", key)
	}
	if of := x509request.DefaultVerifyOptions(); m.Data["client-ca-file"] != "" {
		of.Roots = x509.NewCertPool()
		if !of.Roots.AppendCertsFromPEM([]byte(m.Data["client-ca-file"])) {
			return nil, nil, fmt.Errorf("read ConfigMap %s: client-ca-file holds no certificate", key)
		}
		clients = x509request.New(of, x509request.CommonNameUserConversion)
	}
	lists := map[string]headerrequest.StaticStringSlice{}
	for _, name := range []string{"allowed-names", "username-headers", "uid-headers", "group-headers", "extra-headers-prefix"} {
		var list []string
		if text := m.Data["requestheader-"+name]; text != "" {
			if err := json.Unmarshal([]byte(text), &list); err != nil {
				return nil, nil, fmt.Errorf("read requestheader-%s of ConfigMap %s: %w", name, key, err)
			}
		}
		lists[name] = list
	}
	front = headerrequest.NewDynamicVerifyOptionsSecure(func() (x509.VerifyOptions, bool) { return trust, true },
		lists["allowed-names"], lists["username-headers"], lists["uid-headers"], lists["group-headers"], lists["extra-headers-prefix"])
	return front, clients, nil
}

// readCertificate reads the Secret that the registration writes.
func readCertificate(ctx context.Context, live client.Reader, key client.ObjectKey) (*tls.Certificate, error) {
	secret := &corev1.Secret{}
	if err := live.Get(ctx, key, secret); err != nil {
		return nil, fmt.Errorf("get Secret %s with the certificate of the access to members: %w", key, err)
	}
	cert, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err == nil && cert.Leaf == nil {
		cert.Leaf, err = x509.ParseCertificate(cert.Certificate[0])
	}
	if err != nil {
		return nil, fmt.Errorf("read Secret %s: %w: delete it to have another one made", key, err)
	}
	return &cert, nil
}
