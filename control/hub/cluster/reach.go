package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/connrotation"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
)

// connectTimeout bounds dialling and the TLS handshake, each, so that a member that hangs does not hold goroutines for long.
// Requests have their own timeouts.
const connectTimeout = 5 * time.Second

// reach is the endpoint and credential of a member. If it is unchanged, connections stay.
type reach struct {
	cluster     string // its name, for messages
	id          string // spec.id
	endpoint    string
	token       string
	ca          string // PEM; empty: the roots of the system
	insecure    bool
	proxy       string // URL; empty: of the environment
	proxyHeader http.Header
	upgrades    bool // HTTP/1.1 only, which requests that switch protocols need
}

// reachOf is the reach of a Cluster with its Secret; nil if that does not exist. The error names the object and key to correct.
func reachOf(c *clusterv1alpha1.Cluster, secret *corev1.Secret) (reach, error) {
	r, err := read(c, secret)
	if err != nil {
		return reach{}, fmt.Errorf("cluster %s cannot be asked: %w", c.Name, err)
	}
	return r, nil
}

func read(c *clusterv1alpha1.Cluster, secret *corev1.Secret) (reach, error) {
	ref := c.Spec.SecretRef
	switch {
	case c.Spec.APIEndpoint == "":
		return reach{}, errors.New("its spec.apiEndpoint is empty: set it to the URL of its API server")
	case ref == nil:
		return reach{}, fmt.Errorf("its spec.secretRef is empty: name the Secret with the keys %s and %s",
			clusterv1alpha1.SecretKeyToken, clusterv1alpha1.SecretKeyCA)
	case secret == nil:
		return reach{}, fmt.Errorf("its spec.secretRef names Secret %s/%s, which does not exist: join the cluster again",
			ref.Namespace, ref.Name)
	}
	unusable := func(key, why string) (reach, error) {
		return reach{}, fmt.Errorf("key %s of Secret %s/%s %s", key, ref.Namespace, ref.Name, why)
	}
	r := reach{
		cluster: c.Name, id: c.Spec.ID, endpoint: c.Spec.APIEndpoint,
		token:    strings.TrimSpace(string(secret.Data[clusterv1alpha1.SecretKeyToken])),
		insecure: c.Spec.InsecureSkipTLSVerification, proxy: c.Spec.ProxyURL,
	}
	if r.token == "" {
		return unusable(clusterv1alpha1.SecretKeyToken, "is missing or empty: it has to be a ServiceAccount token of the cluster")
	}
	if strings.ContainsFunc(r.token, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return unusable(clusterv1alpha1.SecretKeyToken, "is no token: it has spaces or control characters in it")
	}
	if !r.insecure {
		r.ca = string(secret.Data[clusterv1alpha1.SecretKeyCA])
	}
	if r.ca != "" && !x509.NewCertPool().AppendCertsFromPEM([]byte(r.ca)) {
		return unusable(clusterv1alpha1.SecretKeyCA, "holds no certificate: it has to be the PEM of the cluster's certificate authority")
	}
	for _, name := range slices.Sorted(maps.Keys(c.Spec.ProxyHeader)) {
		if r.proxyHeader == nil {
			r.proxyHeader = http.Header{}
		}
		for value := range strings.SplitSeq(c.Spec.ProxyHeader[name], ",") {
			r.proxyHeader.Add(name, strings.TrimSpace(value))
		}
	}
	return r, nil
}

// userAgent is the hub's in requests to members.
const userAgent = "pelago-hub"

// link is the transport to a member. All clients made of config share its connections.
type link struct {
	config   *rest.Config
	identity *identity // nil: spec.id cannot be compared
	closeAll func()    // closes all connections
}

// watch repeats the identity check until ctx ends.
func (l *link) watch(ctx context.Context, every time.Duration) {
	if l.identity != nil {
		l.identity.watch(ctx, every)
	}
}

// open makes the link; it dials nothing. client-go never releases the transports that it makes itself, one for each token.
func (r reach) open() (*link, error) {
	dialer := connrotation.NewDialer((&net.Dialer{Timeout: connectTimeout, KeepAlive: 30 * time.Second}).DialContext)
	l := &link{
		config:   &rest.Config{Host: r.endpoint, BearerToken: r.token, UserAgent: userAgent, QPS: -1},
		closeAll: dialer.CloseAll,
	}
	transport, err := r.transport(dialer.DialContext)
	if err != nil {
		return nil, err
	}
	l.config.Transport = transport
	if r.known() {
		l.identity = &identity{reach: r, dial: dialer.DialContext, drop: l.closeAll}
		l.config.Transport = l.identity
	}
	return l, nil
}

// transport opens connections with dial. HTTP/2 pings detect a dead connection within 45 s.
func (r reach) transport(dial dial) (*http.Transport, error) {
	trust := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: r.insecure} // the user's choice, in the Cluster
	if r.ca != "" {
		trust.RootCAs = x509.NewCertPool()
		trust.RootCAs.AppendCertsFromPEM([]byte(r.ca)) // reachOf has validated it
	}
	if r.upgrades {
		trust.NextProtos = []string{"http/1.1"}
	}
	t := &http.Transport{
		DialContext:         dial,
		TLSHandshakeTimeout: connectTimeout,
		TLSClientConfig:     trust,
		MaxIdleConnsPerHost: 25,
		ProxyConnectHeader:  r.proxyHeader,
	}
	if r.proxy != "" {
		u, err := url.Parse(r.proxy)
		if err != nil {
			return nil, fmt.Errorf("use spec.proxyURL %q: %w", r.proxy, err)
		}
		t.Proxy = http.ProxyURL(u)
	}
	return utilnet.SetTransportDefaults(t), nil
}
