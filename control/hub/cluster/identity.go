package cluster

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

	"github.com/pelago-net/pelago/control/execute"
	"golang.org/x/sync/singleflight"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// askTimeout bounds one look at who answers.
	askTimeout = 5 * time.Second
	// sendings bounds how often a request is sent that finds no connection. With HTTP/1.1 others may take the new one.
	sendings = 20
	// largestAnswer is enough for a namespace.
	largestAnswer = 1 << 20
)

// uid is what spec.id looks like if it is that of a namespace. Where Karmada found a ClusterProperty it took its value instead,
// with which nothing can be compared.
var uid = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// identity lets requests go only to the cluster that spec.id names. A connection is opened to ask for the UID of the namespace
// kube-system; if the answer is right others may use it, and only such connections. So a request that is under way while another
// cluster takes over the address does not reach that either.
type identity struct {
	reach reach
	dial  dial
	drop  func() // closes what is open

	asking singleflight.Group
	mu     sync.Mutex
	ways   []*way
	other  *execute.OtherCluster // what was found last; nil: the member
}

type dial = func(ctx context.Context, network, address string) (net.Conn, error)

// errUnasked: a request would have to open a connection.
var errUnasked = errors.New("it is not known which cluster answers")

// known says whether the member has an id that can be compared.
func (r reach) known() bool { return uid.MatchString(r.id) }

// RoundTrip implements http.RoundTripper.
func (i *identity) RoundTrip(q *http.Request) (*http.Response, error) {
	for range sendings {
		ways, other := i.open()
		if other != nil {
			closeBody(q)
			return nil, other
		}
		for _, w := range ways {
			answer, err := w.transport.RoundTrip(q)
			if !errors.Is(err, errUnasked) {
				return answer, err
			}
			if q, err = again(q); err != nil {
				return nil, err
			}
		}
		var said *pushRefusal
		if err := i.ask(q.Context()); errors.As(err, &said) {
			closeBody(q)
			return said.answer(q), nil
		} else if err != nil {
			closeBody(q)
			return nil, err
		}
	}
	closeBody(q)
	return nil, fmt.Errorf("reach cluster %s: %w", i.reach.cluster, errUnasked)
}

// again is a request that was not sent, to be sent once more: its body is closed now.
func again(q *http.Request) (*http.Request, error) {
	if q.Body == nil || q.Body == http.NoBody {
		return q, nil
	}
	if q.GetBody == nil {
		return nil, fmt.Errorf("send a body again: %w", errUnasked)
	}
	next := q.Clone(q.Context())
	var err error
	next.Body, err = q.GetBody()
	return next, err
}

func closeBody(q *http.Request) {
	if q.Body != nil {
		_ = q.Body.Close() // as a RoundTripper must; nobody reads it any more
	}
}

// open returns the ways to the member, or the error that another cluster was found.
func (i *identity) open() ([]*way, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.other != nil {
		return nil, i.other
	}
	return slices.Clone(i.ways), nil
}

// watch asks again and again until ctx ends: behind a proxy the cluster may change while connections stay. What is found is told
// by all requests.
func (i *identity) watch(ctx context.Context, every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		ways, other := i.open()
		if other != nil {
			_ = i.ask(ctx) // as long as it fails the other one is what was found last
			continue
		}
		for _, w := range ways {
			ctx, cancel := context.WithTimeout(ctx, askTimeout)
			if have, err := i.read(ctx, w); err == nil { // else it is what it was: the collector tells of a member that is ill
				i.found(have)
			}
			cancel()
		}
	}
}

// ask opens a connection and finds out which cluster answers; those who want to know it at the same time get one answer.
func (i *identity) ask(ctx context.Context) error {
	asked := i.asking.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
		defer cancel()
		w, err := i.newWay()
		if err != nil {
			return nil, err
		}
		have, err := i.read(ctx, w)
		if err == nil {
			err = i.found(have)
		}
		if err != nil {
			w.close()
			return nil, err
		}
		i.mu.Lock() // so that the end of the connection finds the way, if it comes now
		defer i.mu.Unlock()
		if w.usable() { // else it is asked again
			i.ways = append(i.ways, w)
		}
		return nil, nil
	})
	select {
	case <-ctx.Done():
		return ctx.Err()
	case answer := <-asked:
		return answer.Err
	}
}

// found notes the UID that was read, and returns an error if it is not that of the member.
func (i *identity) found(have string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.other = nil; have == i.reach.id {
		return nil
	}
	i.other = &execute.OtherCluster{Cluster: i.reach.cluster, Want: i.reach.id, Have: have}
	go i.drop() // watches, too, are another cluster's
	return i.other
}

// read gets the UID of the namespace kube-system.
func (i *identity) read(ctx context.Context, w *way) (string, error) {
	url := strings.TrimSuffix(i.reach.endpoint, "/") + "/api/v1/namespaces/" + metav1.NamespaceSystem
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	q.Header.Set("Authorization", "Bearer "+i.reach.token)
	q.Header.Set("Accept", "application/json")
	q.Header.Set("User-Agent", userAgent)
	answer, err := w.transport.RoundTrip(q)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, largestAnswer))
	if err != nil {
		return "", err
	}
	switch {
	case answer.StatusCode == http.StatusNotFound: // which would mean something else to who asked for something else
		return "", fmt.Errorf("cluster %s has no namespace %s: see what answers at spec.apiEndpoint",
			i.reach.cluster, metav1.NamespaceSystem)
	case answer.StatusCode != http.StatusOK:
		return "", &pushRefusal{answer.StatusCode, answer.Status, answer.Header, body}
	}
	var namespace metav1.PartialObjectMetadata
	if err := json.Unmarshal(body, &namespace); err != nil {
		return "", fmt.Errorf("read namespace %s of cluster %s: %w", metav1.NamespaceSystem, i.reach.cluster, err)
	}
	return string(namespace.UID), nil
}

// way is one connection, with a transport that opens no other.
type way struct {
	transport http.RoundTripper
	dial      dial
	gone      func() // the connection is closed

	mu   sync.Mutex
	conn net.Conn // nil: not opened yet, or closed
	over bool     // it was asked who answers: nothing is opened any more
}

func (i *identity) newWay() (*way, error) {
	w := &way{dial: i.dial}
	w.gone = func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.ways = slices.DeleteFunc(i.ways, func(o *way) bool { return o == w })
	}
	var err error
	w.transport, err = i.reach.transport(w.open)
	return w, err
}

// open opens the connection. One that the request gave up for another is closed.
func (w *way) open(ctx context.Context, network, address string) (net.Conn, error) {
	if w.isOver() {
		return nil, errUnasked
	}
	c, err := w.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	former := w.conn
	if w.over {
		former = c
	} else {
		w.conn = &connection{Conn: c, way: w}
		c = w.conn
	}
	over := w.over
	w.mu.Unlock()
	if former != nil {
		_ = former.Close() // nobody uses it
	}
	if over {
		return nil, errUnasked
	}
	return c, nil
}

func (w *way) isOver() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.over
}

// usable ends the time in which a connection may be opened. It returns false if that is closed already.
func (w *way) usable() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	return w.conn != nil
}

// close ends it, too.
func (w *way) close() {
	w.mu.Lock()
	w.over = true
	c := w.conn
	w.mu.Unlock()
	if c != nil {
		_ = c.Close() // nobody uses it
	}
}

// connection tells its way when it is closed.
type connection struct {
	net.Conn
	way *way
}

func (c *connection) Close() error {
	c.way.mu.Lock()
	if c.way.conn == c {
		c.way.conn = nil
	}
	c.way.mu.Unlock()
	c.way.gone()
	return c.Conn.Close()
}

// refusal is an answer that does not tell which cluster it is: a bad token, a server that is starting or overloaded. It is the
// answer to the request, too.
type pushRefusal struct {
	code   int
	status string
	header http.Header
	body   []byte
}

func (r *pushRefusal) Error() string { return "the cluster answers " + r.status }

func (r *pushRefusal) answer(to *http.Request) *http.Response {
	return &http.Response{StatusCode: r.code, Status: r.status, Header: r.header.Clone(),
		Body: io.NopCloser(bytes.NewReader(r.body)), ContentLength: int64(len(r.body)), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: to}
}
