package replay

import (
	"bufio"
	"bytes"
	"cmp"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// refusedPause is how long a watch waits that a server has refused; clients are notified to wait as
// long.
const refusedPause = time.Second

// Player makes recorded requests again.
type Player struct {
	// Servers are administrators' accesses, by the names of the recording.
	Servers map[string]*rest.Config
	// InFlight is how many requests are made at a time.
	InFlight int

	clients map[string]*http.Client
	// begins the user agent of the program that has accesses of its own
	agent   string
	own     map[string]*http.Client // by server
	mu      sync.Mutex
	uids    map[string]string // of the recording → of the replay
	version map[string]string // key@version of the recording → of the replay
	newest  map[string]string // key → version of the replay
	listed  map[string]string // collection → version of its newest list
	// reopened are the watches that servers ended while a replay was running.
	reopened int
}

// Outcome is what a replay came to.
type Outcome struct {
	Took time.Duration
	// Requests were made, watches not counted.
	Requests int
	// Reopened watches were ended by a server, and opened again.
	Reopened int
	// Differing are those that succeeded then and failed now, or the other way round; First
	// describes the first.
	Differing int
	First     string
	// Unknown preconditions named a version that no recorded request returned; the object's newest
	// version was used instead.
	Unknown int
}

// NewPlayer connects to the servers. known maps UIDs that servers had before the recording began
// (namespaces) to those of now.
func NewPlayer(servers map[string]*rest.Config, inFlight int, known map[string]string) (*Player, error) {
	p := &Player{Servers: servers, InFlight: inFlight, uids: map[string]string{}, version: map[string]string{}, newest: map[string]string{},
		listed: map[string]string{}}
	var err error
	if p.clients, err = clientsOf(servers); err != nil {
		return nil, err
	}
	for old, now := range known {
		p.uids[old] = now
	}
	return p, nil
}

// As sends the requests of a program, recognized by the beginning of its user agent, with its own
// credentials instead of the administrators', so that the servers authorize and queue them as they
// did during the recording.
func (p *Player) As(agent string, accesses map[string]*rest.Config) (err error) {
	p.agent = agent
	p.own, err = clientsOf(accesses)
	return err
}

func clientsOf(servers map[string]*rest.Config) (map[string]*http.Client, error) {
	clients := map[string]*http.Client{}
	for name, config := range servers {
		transport, err := rest.TransportFor(config)
		if err != nil {
			return nil, fmt.Errorf("replay to %s: %w", name, err)
		}
		clients[name] = &http.Client{Transport: transport}
	}
	return clients, nil
}

// Prepare reads the UIDs and versions of objects that were there before the recording and are
// changed in it.
func (p *Player) Prepare(ctx context.Context, requests []Request) error {
	for name := range p.Servers { // connections are there when the time begins, as the hub's are
		for _, agent := range []string{"", p.agent} {
			if _, _, err := p.send(ctx, &Request{Server: name, Method: http.MethodGet, URL: "/readyz", UserAgent: agent}, nil); err != nil {
				return fmt.Errorf("prepare the replay: %w", err)
			}
		}
	}
	made := map[string]bool{}
	for i := range requests {
		q := &requests[i]
		key := keyOf(q)
		if key == "" || q.Watch || made[key] {
			continue
		}
		if q.Method == http.MethodPost || q.Status == http.StatusCreated {
			made[key] = true
			continue
		}
		if q.Method == http.MethodGet || len(preconditions(q.Body)) == 0 {
			continue
		}
		made[key] = true
		path, _, _ := strings.Cut(q.URL, "?")
		get := &Request{Server: q.Server, Method: http.MethodGet, URL: strings.TrimSuffix(path, "/status"), Accept: "application/json"}
		_, answer, err := p.send(ctx, get, nil)
		if err != nil {
			return fmt.Errorf("prepare the replay: %w", err)
		}
		p.newest[key] = answer.Version
		if q.reply.UID != "" {
			p.uids[q.reply.UID] = answer.UID
		}
	}
	return nil
}

// Play makes the requests. Watches are opened as well, and read until all else is done; those that
// a server ends are opened again.
func (p *Player) Play(ctx context.Context, requests []Request) (Outcome, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := newRun(plan(requests))
	var watches, workers sync.WaitGroup
	start := time.Now()
	for range p.InFlight {
		workers.Go(func() {
			for {
				i, ok := r.next()
				if !ok {
					return
				}
				switch s := r.steps[i]; {
				case !s.Watch:
					r.note(p.do(ctx, s))
				case !s.GoesOn:
					watches.Go(func() { p.watch(ctx, s.Request) })
				}
				r.done(i)
			}
		})
	}
	workers.Wait()
	r.outcome.Took = time.Since(start)
	cancel()
	watches.Wait()
	p.mu.Lock()
	r.outcome.Reopened = p.reopened
	p.mu.Unlock()
	return r.outcome, r.err
}

// Watch opens watches, as they were open when a recording began, and returns how to close them.
func (p *Player) Watch(ctx context.Context, watches []Request) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for i := range watches {
		all.Go(func() { p.watch(ctx, &watches[i]) })
	}
	return func() {
		cancel()
		all.Wait()
	}
}

// result is how one step ended.
type result struct {
	request *Request
	status  int
	unknown int
	text    string
	err     error
}

// do makes one request, with what is known now in place of what was then.
func (p *Player) do(ctx context.Context, s step) result {
	r := result{request: s.Request}
	body, err := p.rewrite(s, &r.unknown)
	if err != nil {
		r.err = fmt.Errorf("replay %s %s: %w", s.Method, s.URL, err)
		return r
	}
	status, answer, err := p.send(ctx, s.Request, body)
	r.status, r.err = status, err
	if err == nil && status >= 300 {
		r.text = answer.text
	}
	p.learn(s, answer)
	return r
}

func (p *Player) rewrite(s step, unknown *int) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	body := uids.ReplaceAllFunc(s.Body, func(old []byte) []byte {
		if now, ok := p.uids[string(old)]; ok {
			return []byte(now)
		}
		return old
	})
	return rewriteVersions(body, func(old string) (string, bool) {
		if now, ok := p.version[s.key+"@"+old]; ok {
			return now, true
		}
		*unknown++
		now, ok := p.newest[s.key]
		return now, ok
	})
}

func (p *Player) learn(s step, now answer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.list != "" {
		p.listed[collectionOf(s.Request)] = now.list
	}
	if now.UID == "" || s.reply.UID == "" {
		return
	}
	p.uids[s.reply.UID] = now.UID
	p.version[s.key+"@"+s.reply.Version] = now.Version
	p.newest[s.key] = now.Version
}

// answer is a reply, the beginning of its text, and the version of a list.
type answer struct {
	reply
	text, list string
}

func (p *Player) send(ctx context.Context, q *Request, body []byte) (int, answer, error) {
	response, err := p.open(ctx, q, body)
	if err != nil {
		return 0, answer{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, answer{}, fmt.Errorf("replay %s %s: %w", q.Method, q.URL, err)
	}
	a := answer{reply: replyOf(text), text: string(text[:min(len(text), 500)])}
	if q.Method == http.MethodGet && a.UID == "" && response.StatusCode == http.StatusOK {
		a.list = listVersion(text)
	}
	return response.StatusCode, a, nil
}

func (p *Player) open(ctx context.Context, q *Request, body []byte) (*http.Response, error) {
	config, ok := p.Servers[q.Server]
	if !ok {
		return nil, fmt.Errorf("replay %s %s: there is no server %s", q.Method, q.URL, q.Server)
	}
	req, err := http.NewRequestWithContext(ctx, q.Method, config.Host+q.URL, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("replay %s %s: %w", q.Method, q.URL, err)
	}
	for name, value := range map[string]string{"Content-Type": q.Type, "Accept": q.Accept, "User-Agent": "replay"} {
		if value != "" {
			req.Header.Set(name, value)
		}
	}
	c := p.clients[q.Server]
	if own, ok := p.own[q.Server]; ok && strings.HasPrefix(q.UserAgent, p.agent) {
		c = own
	}
	response, err := c.Do(req)
	if err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	return response, nil
}

// watch opens a watch that continues from the list before it, and reads what comes. One that the
// server ends, as servers do if it is not read fast enough, is opened again where it ended, as the
// hub's clients do.
func (p *Player) watch(ctx context.Context, q *Request) {
	p.mu.Lock()
	from := p.listed[collectionOf(q)]
	p.mu.Unlock()
	for {
		now := *q
		now.URL = fromVersion(q.URL, from)
		response, err := p.open(ctx, &now, nil)
		if err != nil {
			return // the replay has ended
		}
		from = cmp.Or(lastVersion(response.Body), from) // ends with the watch, or with the replay
		_ = response.Body.Close()
		if response.StatusCode != http.StatusOK {
			select {
			case <-ctx.Done():
			case <-time.After(refusedPause):
			}
		}
		if ctx.Err() != nil {
			return
		}
		p.mu.Lock()
		p.reopened++
		p.mu.Unlock()
	}
}

// lastVersion reads the events of a watch to their end and returns the resourceVersion of the last
// that has one: the first in its line, as metadata come before all else that may name one.
func lastVersion(events io.Reader) (version string) {
	const field = `"resourceVersion":"`
	lines := bufio.NewReaderSize(events, 64<<10)
	for head := true; ; { // of a line that is longer than the buffer, the head is inspected
		line, err := lines.ReadSlice('\n')
		if _, rest, ok := bytes.Cut(line, []byte(field)); ok && head {
			if number, _, ok := bytes.Cut(rest, []byte(`"`)); ok {
				version = string(number)
			}
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return version
		}
		head = err == nil
	}
}

// fromVersion is the URL of a watch that continues from a version; without one it begins with what
// is there.
func fromVersion(text, version string) string {
	u, err := url.Parse(text)
	if err != nil {
		return text
	}
	query := u.Query()
	query.Del("resourceVersion")
	if version != "" {
		query.Set("resourceVersion", version)
	}
	u.RawQuery = query.Encode()
	return u.RequestURI()
}

// run hands out the steps of a plan, the first that can be made first.
type run struct {
	steps   []step
	mu      sync.Mutex
	some    *sync.Cond
	waiting []int   // for how many a step waits
	waiters [][]int // who waits for a step
	ready   queue
	left    int
	outcome Outcome
	err     error
}

func newRun(steps []step) *run {
	r := &run{steps: steps, waiting: make([]int, len(steps)), waiters: make([][]int, len(steps)), left: len(steps)}
	r.some = sync.NewCond(&r.mu)
	for i, s := range steps {
		r.waiting[i] = len(s.after)
		for _, before := range s.after {
			r.waiters[before] = append(r.waiters[before], i)
		}
		if len(s.after) == 0 {
			heap.Push(&r.ready, i)
		}
	}
	return r
}

// next is a step that can be made; false if there are no more.
func (r *run) next() (int, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.ready) == 0 && r.left > 0 && r.err == nil {
		r.some.Wait()
	}
	if len(r.ready) == 0 || r.err != nil {
		return 0, false
	}
	r.left--
	if r.left == 0 {
		r.some.Broadcast()
	}
	return heap.Pop(&r.ready).(int), true
}

func (r *run) done(i int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.waiters[i] {
		if r.waiting[w]--; r.waiting[w] == 0 {
			heap.Push(&r.ready, w)
			r.some.Signal()
		}
	}
}

// note counts how a step ended.
func (r *run) note(result result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outcome.Requests++
	r.outcome.Unknown += result.unknown
	if result.err != nil {
		if r.err == nil {
			r.err = result.err
		}
		r.some.Broadcast()
		return
	}
	if (result.status < 300) != (result.request.Status < 300) {
		if r.outcome.Differing++; r.outcome.First == "" {
			r.outcome.First = fmt.Sprintf("%s %s to %s: %d, then %d: %s", result.request.Method, result.request.URL, result.request.Server,
				result.request.Status, result.status, result.text)
		}
	}
}

// queue is a heap of steps by their order.
type queue []int

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i] < q[j] }
func (q queue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)        { *q = append(*q, x.(int)) }
func (q *queue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}
