// Package replay records the requests that clients make to several API servers, and makes the same
// requests again to other servers: the same verbs, paths, bodies and content types, as many in
// flight as wanted. It is the yardstick of the hub's throughput: a client that knows everything
// beforehand and has nothing to compute.
//
// What cannot be the same is mapped: UIDs and resourceVersions from the recorded responses are
// replaced by those that the replay's servers return for the same request. This determines the
// order: a request waits for the requests that produced the UIDs and resourceVersions that it names
// (plan.go).
package replay

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/serializer"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/pelago-net/pelago/test/hubset"
)

// Request is one that was recorded.
type Request struct {
	Phase     string // of the recording, as Recorder.Phase set it
	Server    string
	Method    string
	URL       string // path and query
	Type      string // of the body
	Accept    string
	UserAgent string
	Body      []byte
	Watch     bool
	// GoesOn reports of a watch that it follows one that the server had ended: a Player opens ended
	// watches again by itself.
	GoesOn bool

	// places in the order of all beginnings and ends; ended is 0 as long as there is no answer
	began, ended int
	Status       int
	reply        reply
	cut          bool // a watch that the server ended: its time was up, or it was read too slowly
}

// reply is what an answer says of its object; empty for lists and errors.
type reply struct {
	UID     string
	Version string `json:"resourceVersion"`
	Name    string
}

// Recorder is a way to API servers on which every request is written down.
type Recorder struct {
	mu       sync.Mutex
	order    int
	phase    string
	requests []*Request
	ways     []*hubset.Way
}

// Phase names what is recorded from now on.
func (r *Recorder) Phase(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.phase = name
}

// Through is access to a server by way of the recorder, with the rights of to.
func (r *Recorder) Through(name string, to *rest.Config) (*rest.Config, error) {
	way, err := hubset.NewWay(to, func(next http.RoundTripper) http.RoundTripper {
		return &tap{recorder: r, server: name, next: next}
	})
	if err != nil {
		return nil, fmt.Errorf("record what goes to %s: %w", name, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ways = append(r.ways, way)
	return way.Config, nil
}

// Close ends the ways.
func (r *Recorder) Close() {
	r.mu.Lock()
	ways := r.ways
	r.ways = nil
	r.mu.Unlock()
	for _, way := range ways {
		way.Close()
	}
}

// Requests are those recorded so far that have been answered, in the order of their beginnings;
// watches count as answered.
func (r *Recorder) Requests() []Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []Request
	// the places at which watches were ended, by what they watched, ascending by their beginnings
	cut := map[string][]int{}
	for _, q := range r.requests {
		if q.ended == 0 && !q.Watch {
			continue
		}
		all = append(all, *q)
		if !q.Watch {
			continue
		}
		key := watchKey(q)
		if i := slices.IndexFunc(cut[key], func(ended int) bool { return ended < q.began }); i >= 0 {
			all[len(all)-1].GoesOn = true
			cut[key] = slices.Delete(cut[key], i, i+1)
		}
		if q.cut {
			cut[key] = append(cut[key], q.ended)
		}
	}
	return all
}

// watchKey is what is watched by whom, wherever it begins and however long it may last.
func watchKey(q *Request) string {
	path, text, _ := strings.Cut(q.URL, "?")
	query, err := url.ParseQuery(text)
	if err != nil {
		return q.URL // a server refuses it
	}
	query.Del("resourceVersion")
	query.Del("timeoutSeconds")
	return strings.Join([]string{q.Server, path, query.Encode(), q.Accept, q.UserAgent}, " ")
}

// Open are the watches that are open now.
func (r *Recorder) Open() []Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	var open []Request
	for _, q := range r.requests {
		if q.Watch && q.ended == 0 {
			open = append(open, *q)
		}
	}
	return open
}

// tap writes down what goes to one server.
type tap struct {
	recorder *Recorder
	server   string
	next     http.RoundTripper
}

// RoundTrip passes a request on.
func (t *tap) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	// Answers are read here, and all that is sent by the replay is JSON as well.
	req.Header.Set("Accept", strings.ReplaceAll(req.Header.Get("Accept"), "application/vnd.kubernetes.protobuf", "application/json"))
	q := &Request{Server: t.server, Method: req.Method, URL: req.URL.RequestURI(), Type: req.Header.Get("Content-Type"),
		Accept: req.Header.Get("Accept"), UserAgent: req.UserAgent(), Watch: isWatch(req.URL)}
	if req.Body != nil {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		req.Body = io.NopCloser(bytes.NewReader(body))
		if q.Body, err = asJSON(body); err != nil {
			return nil, err
		}
		if len(body) > 0 && !bytes.Equal(body, q.Body) {
			q.Type = "application/json"
		}
	}
	t.recorder.begin(q)
	response, err := t.next.RoundTrip(req)
	if err != nil {
		if q.Watch { // given up before it was answered
			t.recorder.endWatch(q, 0, false)
		}
		return nil, err
	}
	if q.Watch {
		response.Body = &stream{ReadCloser: response.Body, closed: func(cut bool) { t.recorder.endWatch(q, response.StatusCode, cut) }}
		return response, nil
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if err := response.Body.Close(); err != nil {
		return nil, err
	}
	response.Body = io.NopCloser(bytes.NewReader(body))
	t.recorder.end(q, response.StatusCode, replyOf(body))
	return response, nil
}

// stream is the body of a watch, which tells when it ends, and whether it was the server that ended
// it.
type stream struct {
	io.ReadCloser
	closed func(cut bool)
	once   sync.Once
}

// Read implements io.Reader.
func (s *stream) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		s.once.Do(func() { s.closed(true) })
	}
	return n, err
}

// Close ends the watch.
func (s *stream) Close() error {
	s.once.Do(func() { s.closed(false) })
	return s.ReadCloser.Close()
}

func (r *Recorder) begin(q *Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.order++
	q.began, q.Phase = r.order, r.phase
	r.requests = append(r.requests, q)
}

func (r *Recorder) end(q *Request, status int, answer reply) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.order++
	q.ended, q.Status, q.reply = r.order, status, answer
}

func (r *Recorder) endWatch(q *Request, status int, cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.order++
	q.ended, q.Status, q.cut = r.order, status, cut
}

func isWatch(u *url.URL) bool {
	w := u.Query().Get("watch")
	return w == "true" || w == "1"
}

// replyOf reads what the answer of a single object says of it.
func replyOf(body []byte) reply {
	var o struct{ Metadata reply }
	if json.Unmarshal(body, &o) != nil || o.Metadata.UID == "" {
		return reply{} // a list, a Status, no JSON
	}
	return o.Metadata
}

// listVersion is the resourceVersion of a list, "" of anything else.
func listVersion(body []byte) string {
	var l struct {
		Metadata reply
		Items    *json.RawMessage
	}
	if json.Unmarshal(body, &l) != nil || l.Items == nil {
		return "" // discovery, health, an error
	}
	return l.Metadata.Version
}

var codecs = serializer.NewCodecFactory(clientgoscheme.Scheme)

// asJSON is a body as JSON: typed clients send Kubernetes' own kinds as protobuf.
func asJSON(body []byte) ([]byte, error) {
	if !bytes.HasPrefix(body, []byte("k8s\x00")) {
		return body, nil
	}
	o, gvk, err := codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("read a recorded body: %w", err)
	}
	o.GetObjectKind().SetGroupVersionKind(*gvk)
	text, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("write a recorded body: %w", err)
	}
	return text, nil
}
