// Package member holds the connections of the hub to its push members: Config is the endpoint and
// credential that a Cluster and its Secret name, Link a transport that sends requests only to the
// cluster whose id is spec.id.
//
// control/hub/cluster uses it for Works and status, control/hub/access for requests of users. It
// reads no objects, and never sends a request on a connection whose cluster was not verified.
package member

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

// connectTimeout bounds dialling and the TLS handshake, each, so that a member that hangs does not
// hold goroutines for long. Requests have their own timeouts.
const connectTimeout = 5 * time.Second

// Config is the endpoint and credential of a member. If it is unchanged, connections stay.
type Config struct {
	Cluster     string // its name, for messages
	id          string // spec.id
	Endpoint    string
	Token       string
	ca          string // PEM; empty: the roots of the system
	insecure    bool
	proxy       string // URL; empty: of the environment
	proxyHeader http.Header
	Upgrades    bool // HTTP/1.1 only, which requests that switch protocols need
}

// ConfigOf is the Config of a Cluster with its Secret; nil if that does not exist. The error names
// the object and key to correct.
func ConfigOf(c *clusterv1alpha1.Cluster, secret *corev1.Secret) (Config, error) {
	r, err := read(c, secret)
	if err != nil {
		return Config{}, fmt.Errorf("cluster %s cannot be asked: %w", c.Name, err)
	}
	return r, nil
}

func read(c *clusterv1alpha1.Cluster, secret *corev1.Secret) (Config, error) {
	ref := c.Spec.SecretRef
	switch {
	case c.Spec.APIEndpoint == "":
		return Config{}, errors.New("its spec.apiEndpoint is empty: set it to the URL of its API server")
	case ref == nil:
		return Config{}, fmt.Errorf("its spec.secretRef is empty: name the Secret with the keys %s and %s",
			clusterv1alpha1.SecretKeyToken, clusterv1alpha1.SecretKeyCA)
	case secret == nil:
		return Config{}, fmt.Errorf("its spec.secretRef names Secret %s/%s, which does not exist: join the cluster again",
			ref.Namespace, ref.Name)
	}
	unusable := func(key, why string) (Config, error) {
		return Config{}, fmt.Errorf("key %s of Secret %s/%s %s", key, ref.Namespace, ref.Name, why)
	}
	r := Config{
		Cluster: c.Name, id: c.Spec.ID, Endpoint: c.Spec.APIEndpoint,
		Token:    strings.TrimSpace(string(secret.Data[clusterv1alpha1.SecretKeyToken])),
		insecure: c.Spec.InsecureSkipTLSVerification, proxy: c.Spec.ProxyURL,
	}
	if r.Token == "" {
		return unusable(clusterv1alpha1.SecretKeyToken, "is missing or empty: it has to be a ServiceAccount token of the cluster")
	}
	if strings.ContainsFunc(r.Token, func(c rune) bool { return c <= ' ' || c > '~' }) {
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

// UserAgent is the hub's in requests to members.
const UserAgent = "pelago-hub"

// Link is the transport to a member. All clients made of Config share its connections.
type Link struct {
	Config   *rest.Config
	identity *identity // nil: spec.id cannot be compared
	closeAll func()
}

// Watch repeats the identity check until ctx ends.
func (l *Link) Watch(ctx context.Context, every time.Duration) {
	if l.identity != nil {
		l.identity.watch(ctx, every)
	}
}

// Close closes all connections.
func (l *Link) Close() { l.closeAll() }

// Open makes the link; it dials nothing. client-go never releases the transports that it makes
// itself, one for each token.
func (r Config) Open() (*Link, error) {
	dialer := connrotation.NewDialer((&net.Dialer{Timeout: connectTimeout, KeepAlive: 30 * time.Second}).DialContext)
	l := &Link{
		Config:   &rest.Config{Host: r.Endpoint, BearerToken: r.Token, UserAgent: UserAgent, QPS: -1},
		closeAll: dialer.CloseAll,
	}
	transport, err := r.transport(dialer.DialContext)
	if err != nil {
		return nil, err
	}
	l.Config.Transport = transport
	if r.known() {
		l.identity = &identity{config: r, dial: dialer.DialContext, drop: l.closeAll}
		l.Config.Transport = l.identity
	}
	return l, nil
}

// transport opens connections with dial. HTTP/2 pings detect a dead connection within 45 s.
func (r Config) transport(dial dial) (*http.Transport, error) {
	// the user's choice, in the Cluster
	trust := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: r.insecure}
	if r.ca != "" {
		trust.RootCAs = x509.NewCertPool()
		trust.RootCAs.AppendCertsFromPEM([]byte(r.ca)) // ConfigOf has validated it
	}
	if r.Upgrades {
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
