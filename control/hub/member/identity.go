package member

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pelago-net/pelago/control/execute/collect"
	"golang.org/x/sync/singleflight"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// verifyTimeout bounds one identity check.
	verifyTimeout = 5 * time.Second
	// maxAttempts bounds the attempts of a request that finds no connection. With HTTP/1.1 another
	// request may take the new one.
	maxAttempts = 20
	// maxBody bounds the size of a namespace, in bytes.
	maxBody = 1 << 20
)

// uid matches a spec.id that is the UID of a namespace. Karmada's is the value of the
// ClusterProperty of a cluster that had one: it cannot be compared.
var uid = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// identity is a transport that sends requests only to the cluster of spec.id. Each connection is
// opened by a request for the UID of the namespace kube-system, and other requests use only
// connections whose UID was right. So a request that is in flight while another cluster takes over
// the address does not reach that one.
type identity struct {
	config Config
	dial   dial
	drop   func() // closes all connections

	verifying singleflight.Group
	mu        sync.Mutex
	verified  []*verifiedConn
	other     *collect.OtherCluster // the result of the last check; nil: the member
}

type dial = func(ctx context.Context, network, address string) (net.Conn, error)

// errUnverified is the error of a request that would have to open a connection.
var errUnverified = errors.New("no verified connection")

// known reports whether the member has an id that can be compared.
func (r Config) known() bool { return uid.MatchString(r.id) }

// RoundTrip implements http.RoundTripper.
func (i *identity) RoundTrip(q *http.Request) (*http.Response, error) {
	for range maxAttempts {
		conns, other := i.state()
		if other != nil {
			closeBody(q)
			return nil, other
		}
		for _, c := range conns {
			response, err := c.transport.RoundTrip(q)
			if !errors.Is(err, errUnverified) {
				return response, err
			}
			if q, err = again(q); err != nil {
				return nil, err
			}
		}
		var status *statusError
		if err := i.verify(q.Context()); errors.As(err, &status) {
			closeBody(q)
			return status.response(q), nil
		} else if err != nil {
			closeBody(q)
			return nil, err
		}
	}
	closeBody(q)
	return nil, fmt.Errorf("reach cluster %s: %w", i.config.Cluster, errUnverified)
}

// again is the next attempt of a request that was not sent, whose body the transport has closed.
func again(q *http.Request) (*http.Request, error) {
	if q.Body == nil || q.Body == http.NoBody {
		return q, nil
	}
	if q.GetBody == nil {
		return nil, fmt.Errorf("repeat a request whose body cannot be read again: %w", errUnverified)
	}
	next := q.Clone(q.Context())
	var err error
	next.Body, err = q.GetBody()
	return next, err
}

func closeBody(q *http.Request) {
	if q.Body != nil {
		_ = q.Body.Close() // as a RoundTripper must; the request has failed
	}
}

// state returns the verified connections, or the error that another cluster was found.
func (i *identity) state() ([]*verifiedConn, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.other != nil {
		return nil, i.other
	}
	return slices.Clone(i.verified), nil
}

// watch repeats the check at an interval until ctx ends: behind a proxy the cluster may change
// while connections stay open.
func (i *identity) watch(ctx context.Context, every time.Duration) {
	// its error is that of ctx
	_ = wait.PollUntilContextCancel(ctx, every, false, func(ctx context.Context) (done bool, _ error) {
		conns, other := i.state()
		if other != nil {
			// while it fails, the other cluster remains the result of the last check
			_ = i.verify(ctx)
			return false, nil
		}
		for _, c := range conns {
			ctx, cancel := context.WithTimeout(ctx, verifyTimeout)
			// an error changes nothing: the collector reports a failing member
			if have, err := i.read(ctx, c); err == nil {
				_ = i.found(have) // all requests return it
			}
			cancel()
		}
		return false, nil
	})
}

// verify opens a connection and checks which cluster answers. Concurrent calls share one check.
func (i *identity) verify(ctx context.Context) error {
	result := i.verifying.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.Background(), verifyTimeout)
		defer cancel()
		c := &verifiedConn{identity: i}
		var err error
		if c.transport, err = i.config.transport(c.open); err != nil {
			return nil, err
		}
		have, err := i.read(ctx, c)
		if err == nil {
			err = i.found(have)
		}
		conn := c.seal(err == nil)
		if err != nil && conn != nil {
			_ = conn.Close() // it is not used
		}
		return nil, err
	})
	select {
	case <-ctx.Done():
		return ctx.Err()
	case r := <-result:
		return r.Err
	}
}

// found records the UID that was read, and returns an error if it is not that of the member.
func (i *identity) found(have string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.other = nil; have == i.config.id {
		return nil
	}
	i.other = &collect.OtherCluster{Cluster: i.config.Cluster, Want: i.config.id, Have: have}
	go i.drop() // watches, too, reach the other cluster
	return i.other
}

// read gets the UID of the namespace kube-system.
func (i *identity) read(ctx context.Context, c *verifiedConn) (string, error) {
	url := strings.TrimSuffix(i.config.Endpoint, "/") + "/api/v1/namespaces/" + metav1.NamespaceSystem
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	q.Header.Set("Authorization", "Bearer "+i.config.Token)
	q.Header.Set("Accept", "application/json")
	q.Header.Set("User-Agent", UserAgent)
	response, err := c.transport.RoundTrip(q)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxBody))
	if err != nil {
		return "", err
	}
	switch {
	case response.StatusCode == http.StatusNotFound:
		// for the caller it would mean that its own object does not exist
		return "", fmt.Errorf("cluster %s has no namespace %s: see what answers at spec.apiEndpoint",
			i.config.Cluster, metav1.NamespaceSystem)
	case response.StatusCode != http.StatusOK:
		return "", &statusError{response, body}
	}
	var namespace metav1.PartialObjectMetadata
	if err := json.Unmarshal(body, &namespace); err != nil {
		return "", fmt.Errorf("read namespace %s of cluster %s: %w", metav1.NamespaceSystem, i.config.Cluster, err)
	}
	return string(namespace.UID), nil
}

// verifiedConn is one connection, with a transport that opens no other.
type verifiedConn struct {
	identity  *identity
	transport http.RoundTripper

	// Both are guarded by identity.mu, with the list of verified connections.
	conn   net.Conn // nil: not opened yet, or closed
	sealed bool     // the check has ended: no connection is opened any more
}

// open dials for the transport. A connection that the check replaces by another one is closed.
func (c *verifiedConn) open(ctx context.Context, network, address string) (net.Conn, error) {
	c.identity.mu.Lock()
	sealed := c.sealed
	c.identity.mu.Unlock()
	if sealed {
		return nil, errUnverified
	}
	conn, err := c.identity.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	next := &connection{Conn: conn, of: c}
	unused, ok := c.replace(next)
	if unused != nil {
		_ = unused.Close() // no request has it
	}
	if !ok {
		return nil, errUnverified
	}
	return next, nil
}

// replace sets the connection and returns the former one. ok is false, and unused is next, if the
// check has ended during the dial.
func (c *verifiedConn) replace(next net.Conn) (unused net.Conn, ok bool) {
	c.identity.mu.Lock()
	defer c.identity.mu.Unlock()
	if c.sealed {
		return next, false
	}
	unused, c.conn = c.conn, next
	return unused, true
}

// seal ends the check and returns the connection. If that is still open and was verified, requests
// may use it from now on.
func (c *verifiedConn) seal(verified bool) net.Conn {
	c.identity.mu.Lock()
	defer c.identity.mu.Unlock()
	c.sealed = true
	if verified && c.conn != nil { // else the next request opens another one
		c.identity.verified = append(c.identity.verified, c)
	}
	return c.conn
}

// connection removes itself from the verified ones when it is closed.
type connection struct {
	net.Conn
	of *verifiedConn
}

func (c *connection) Close() error {
	i := c.of.identity
	i.mu.Lock()
	if c.of.conn == c {
		c.of.conn = nil
		i.verified = slices.DeleteFunc(i.verified, func(v *verifiedConn) bool { return v == c.of })
	}
	i.mu.Unlock()
	return c.Conn.Close()
}

// statusError is a response that does not identify the cluster: to a bad token, or of a server that
// is starting or overloaded. It becomes the response to the request that caused the check.
type statusError struct {
	of   *http.Response // its body has been read
	body []byte
}

func (e *statusError) Error() string { return "the cluster answers " + e.of.Status }

func (e *statusError) response(to *http.Request) *http.Response {
	r := *e.of
	r.Header, r.Request = e.of.Header.Clone(), to
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(e.body)), int64(len(e.body))
	return &r
}
