package verify

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Answer is what a server replies.
type Answer struct {
	Cluster string `json:"cluster"`
	Pod     string `json:"pod"`
	// Source is the client's address as the server sees it.
	Source string `json:"source"`
	// Received is the number of bytes of an upload.
	Received int64 `json:"received,omitempty"`
	// Sequence is that of the datagram.
	Sequence int `json:"sequence,omitempty"`
}

// Kind is what a probe does.
type Kind string

// Kinds of probes.
const (
	Request    Kind = "request"    // one HTTP request on a new connection
	Datagram   Kind = "datagram"   // UDP datagrams of some sizes, one after the other
	Transfer   Kind = "transfer"   // Bytes down, then up, by HTTP
	Throughput Kind = "throughput" // as many bytes as pass in For, down, then up, by HTTP
	Latency    Kind = "latency"    // one HTTP request after the other on a connection, for For
	Hold       Kind = "hold"       // connections with a request every 100 ms until the input ends
)

// Probe is one thing that a client pod tries.
type Probe struct {
	Kind Kind `json:"kind"`
	// Address is HOST:PORT.
	Address string `json:"address"`
	Bytes   int64  `json:"bytes,omitempty"`
	// For is how long Throughput (each way) and Latency last.
	For time.Duration `json:"for,omitempty"`
	// Within is how long a failing probe is repeated: names and tables take seconds to arrive.
	Within time.Duration `json:"within"`
	// Cluster and Pod are what must answer; empty: any.
	Cluster string `json:"cluster,omitempty"`
	Pod     string `json:"pod,omitempty"`
}

// Reply is what a probe gave.
type Reply struct {
	Answer Answer `json:"answer"`
	// Remote is the address of the server that the client used.
	Remote string `json:"remote,omitempty"`
	// Sent and Lost count datagrams; Opened, Requests and Broken are of Hold.
	Sent     int `json:"sent,omitempty"`
	Lost     int `json:"lost,omitempty"`
	Opened   int `json:"opened,omitempty"`
	Requests int `json:"requests,omitempty"`
	Broken   int `json:"broken,omitempty"`
	// Down and Up are bits per second.
	Down float64 `json:"down,omitempty"`
	Up   float64 `json:"up,omitempty"`
	// P50, P99 and Slowest are of the requests of Latency, in nanoseconds.
	P50     time.Duration `json:"p50,omitempty"`
	P99     time.Duration `json:"p99,omitempty"`
	Slowest time.Duration `json:"slowest,omitempty"`
	Err     string        `json:"error,omitempty"`
}

const (
	requestTimeout  = 3 * time.Second
	datagramTimeout = time.Second
	transferTimeout = 60 * time.Second
	// retryInterval is the time between two attempts of a probe.
	retryInterval = 500 * time.Millisecond
	// holdInterval is the time between two requests on a connection, holdLimit ends a Hold whose
	// input stays open.
	holdInterval = 100 * time.Millisecond
	holdLimit    = 4 * time.Minute
	// holdConnections is the number of connections of a Hold.
	holdConnections = 10
)

// sizes are those of datagrams, in bytes: small, and one that fits an MTU of 1280.
var sizes = []int{64, 1200}

// datagramsOfSize is how many datagrams of each size are sent.
const datagramsOfSize = 20

// Serve answers HTTP requests and UDP datagrams at an address until the context ends.
func Serve(ctx context.Context, address string, self Answer) error {
	var lc net.ListenConfig
	tcp, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen on TCP %s: %w", address, err)
	}
	udp, err := lc.ListenPacket(ctx, "udp", tcp.Addr().String())
	if err != nil {
		return errors.Join(fmt.Errorf("listen on UDP %s: %w", address, err), tcp.Close())
	}
	return serve(ctx, tcp, udp, self)
}

func serve(ctx context.Context, tcp net.Listener, udp net.PacketConn, self Answer) error {
	server := &http.Server{Handler: handler(self), ReadHeaderTimeout: requestTimeout}
	done := make(chan error, 2)
	go func() { done <- server.Serve(tcp) }()
	go func() { done <- echo(udp, self) }()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
	}
	return errors.Join(err, server.Close(), udp.Close())
}

func handler(self Answer) http.Handler {
	reply := func(w http.ResponseWriter, r *http.Request, received int64) {
		a := self
		a.Source, a.Received = r.RemoteAddr, received
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(a) // the client that went away observes it
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) { reply(w, r, 0) })
	mux.HandleFunc("GET /bytes", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.ParseInt(r.FormValue("n"), 10, 64)
		if err != nil || n < 0 {
			http.Error(w, "n is no number of bytes", http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
		_, _ = io.CopyN(w, zeros{}, n) // the client counts the bytes
	})
	mux.HandleFunc("POST /bytes", func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		reply(w, r, n)
	})
	return mux
}

// zeros is an endless input.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// echo replies to each datagram with one of the same size: JSON, then spaces.
func echo(conn net.PacketConn, self Answer) error {
	buffer := make([]byte, 1<<16)
	for {
		n, from, err := conn.ReadFrom(buffer)
		if err != nil {
			return err
		}
		var asked Answer
		if json.Unmarshal(buffer[:n], &asked) != nil {
			continue // not of a probe
		}
		a := self
		a.Source, a.Sequence = from.String(), asked.Sequence
		packet, err := padded(a, n)
		if err != nil {
			return err
		}
		_, _ = conn.WriteTo(packet, from) // the client counts what is lost
	}
}

func padded(a Answer, size int) ([]byte, error) {
	packet, err := json.Marshal(a)
	for err == nil && len(packet) < size {
		packet = append(packet, ' ')
	}
	return packet, err
}

// Run tries probes and returns their replies in the same order. Transfers run one after the other,
// all others at once. Hold ends with the input.
func Run(ctx context.Context, probes []Probe, input io.Reader) []Reply {
	replies := make([]Reply, len(probes))
	held, end := context.WithTimeout(ctx, holdLimit)
	defer end()
	go func() {
		_, _ = io.Copy(io.Discard, input) // an input that cannot be read has ended too
		end()
	}()
	var wg sync.WaitGroup
	for i, p := range probes {
		switch p.Kind {
		case Transfer, Throughput, Latency:
			replies[i] = repeat(ctx, p)
		case Hold:
			wg.Go(func() { replies[i] = hold(held, p) })
		default:
			wg.Go(func() { replies[i] = repeat(ctx, p) })
		}
	}
	wg.Wait()
	return replies
}

// repeat tries a probe until it succeeds or its time is over, and returns the last reply.
func repeat(ctx context.Context, p Probe) Reply {
	ctx, cancel := context.WithTimeout(ctx, max(p.Within, retryInterval))
	defer cancel()
	for {
		r, err := p.try(context.WithoutCancel(ctx))
		if err == nil {
			err = p.expects(r.Answer)
		}
		if err == nil {
			return r
		}
		r.Err = err.Error()
		select {
		case <-ctx.Done():
			return r
		case <-time.After(retryInterval):
		}
	}
}

func (p Probe) expects(a Answer) error {
	if p.Cluster != "" && a.Cluster != p.Cluster || p.Pod != "" && a.Pod != p.Pod {
		return fmt.Errorf("pod %q of cluster %q answers, want %s", a.Pod, a.Cluster, p.Cluster+" "+p.Pod)
	}
	return nil
}

// try makes one attempt, which its own timeouts bound.
func (p Probe) try(ctx context.Context) (r Reply, err error) {
	switch p.Kind {
	case Request:
		r.Answer, r.Remote, err = get(ctx, newClient(requestTimeout), "http://"+p.Address+"/")
	case Datagram:
		return datagrams(ctx, p.Address)
	case Transfer:
		return transfer(ctx, p)
	case Throughput:
		return throughput(ctx, p)
	case Latency:
		return latency(ctx, p)
	default:
		err = fmt.Errorf("probe %q is not known: is the pod's image of another version?", p.Kind)
	}
	return r, err
}

// newClient has connections of its own.
func newClient(timeout time.Duration) *http.Client {
	return &http.Client{Timeout: timeout, Transport: &http.Transport{MaxConnsPerHost: 1}}
}

// get makes a request, and returns the address of the server that it used.
func get(ctx context.Context, c *http.Client, url string) (a Answer, remote string, err error) {
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		remote = info.Conn.RemoteAddr().String()
	}})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return a, "", err
	}
	resp, err := c.Do(req)
	if err != nil {
		return a, remote, err
	}
	return a, remote, decode(resp, &a)
}

func decode(resp *http.Response, a *Answer) error {
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the server answers %s", resp.Status)
	}
	if err := json.NewDecoder(resp.Body).Decode(a); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	_, err := io.Copy(io.Discard, resp.Body) // so that the connection can be used again
	return err
}

// datagrams sends datagrams of each size, one after the other; none that is answered is an error.
func datagrams(ctx context.Context, address string) (r Reply, err error) {
	var d net.Dialer
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	conn, err := d.DialContext(ctx, "udp", address)
	if err != nil {
		return r, err
	}
	defer conn.Close()
	r.Remote = conn.RemoteAddr().String()
	buffer := make([]byte, 1<<16)
	for _, size := range sizes {
		answered := 0
		for range datagramsOfSize {
			r.Sent++
			if r.Answer, err = exchange(conn, Answer{Sequence: r.Sent}, size, buffer); err == nil {
				answered++
				continue
			}
			r.Lost++
			if answered == 0 && r.Lost >= 3 { // repeated by the caller
				return r, fmt.Errorf("no datagram of %d bytes is answered: %w", size, err)
			}
		}
	}
	return r, nil
}

// exchange sends a datagram and awaits the reply with its sequence and size.
func exchange(conn net.Conn, a Answer, size int, buffer []byte) (Answer, error) {
	packet, err := padded(a, size)
	if err != nil {
		return Answer{}, err
	}
	if err := conn.SetDeadline(time.Now().Add(datagramTimeout)); err != nil {
		return Answer{}, err
	}
	if _, err := conn.Write(packet); err != nil {
		return Answer{}, err
	}
	for {
		n, err := conn.Read(buffer)
		if err != nil {
			return Answer{}, err
		}
		var got Answer
		if err := json.Unmarshal(buffer[:n], &got); err != nil {
			return Answer{}, fmt.Errorf("read the reply: %w", err)
		}
		if got.Sequence == a.Sequence && n >= size {
			return got, nil
		}
	}
}

// transfer reads and writes the bytes of a probe.
func transfer(ctx context.Context, p Probe) (r Reply, err error) {
	c := newClient(transferTimeout)
	defer c.CloseIdleConnections()
	begin := time.Now()
	url := "http://" + p.Address + "/bytes"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s?n=%d", url, p.Bytes), nil)
	if err != nil {
		return r, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return r, err
	}
	n, err := io.Copy(io.Discard, resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil || n != p.Bytes {
		return r, errors.Join(err, fmt.Errorf("%d of %d bytes came", n, p.Bytes))
	}
	r.Down = rate(p.Bytes, begin)
	begin = time.Now()
	if req, err = http.NewRequestWithContext(ctx, http.MethodPost, url, io.LimitReader(zeros{}, p.Bytes)); err != nil {
		return r, err
	}
	req.ContentLength = p.Bytes
	if resp, err = c.Do(req); err != nil {
		return r, err
	}
	if err = decode(resp, &r.Answer); err == nil && r.Answer.Received != p.Bytes {
		err = fmt.Errorf("%d of %d bytes arrived", r.Answer.Received, p.Bytes)
	}
	r.Up = rate(p.Bytes, begin)
	return r, err
}

func rate(bytes int64, since time.Time) float64 {
	return float64(bytes) * 8 / max(time.Since(since).Seconds(), 1e-9)
}

// throughput reads, then writes, for the time of a probe.
func throughput(ctx context.Context, p Probe) (r Reply, err error) {
	c := newClient(2*p.For + transferTimeout)
	defer c.CloseIdleConnections()
	url := "http://" + p.Address + "/bytes"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s?n=%d", url, int64(1)<<50), nil)
	if err != nil {
		return r, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return r, err
	}
	begin := time.Now()
	n, err := io.Copy(io.Discard, &until{resp.Body, begin.Add(p.For)})
	r.Down = rate(n, begin)
	_ = resp.Body.Close() // breaks the connection off, which is the purpose
	if err != nil {
		return r, err
	}
	begin = time.Now()
	if req, err = http.NewRequestWithContext(ctx, http.MethodPost, url, &until{zeros{}, begin.Add(p.For)}); err != nil {
		return r, err
	}
	if resp, err = c.Do(req); err != nil {
		return r, err
	}
	err = decode(resp, &r.Answer)
	r.Up = rate(r.Answer.Received, begin)
	return r, err
}

// until ends its input at a time.
type until struct {
	io.Reader
	end time.Time
}

func (u *until) Read(p []byte) (int, error) {
	if time.Now().After(u.end) {
		return 0, io.EOF
	}
	return u.Reader.Read(p)
}

// latency makes one request after the other on a connection for the time of a probe.
func latency(ctx context.Context, p Probe) (r Reply, err error) {
	c := newClient(requestTimeout)
	defer c.CloseIdleConnections()
	var took []time.Duration
	url := "http://" + p.Address + "/"
	if r.Answer, r.Remote, err = get(ctx, c, url); err != nil { // opens the connection
		return r, err
	}
	for end := time.Now().Add(p.For); time.Now().Before(end); {
		begin := time.Now()
		if _, _, err := get(ctx, c, url); err != nil {
			return r, err
		}
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	if n := len(took); n > 0 {
		r.Requests, r.P50, r.P99, r.Slowest = n, took[n/2], took[n*99/100], took[n-1]
	}
	return r, nil
}

// hold keeps connections busy until the context ends. A request that fails, or needs another
// connection, is a broken connection.
func hold(ctx context.Context, p Probe) (r Reply) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range holdConnections {
		wg.Go(func() {
			requests, first, broken := keep(ctx, p.Address)
			mu.Lock()
			defer mu.Unlock()
			if requests > 0 {
				r.Opened++
			}
			r.Requests += requests
			if broken != nil {
				r.Broken++
				r.Err = broken.Error()
			}
			if first.Cluster != "" {
				r.Answer = first
			}
		})
	}
	wg.Wait()
	return r
}

// keep uses one connection until the context ends or it breaks. It is no http.Client's: that closes a
// connection whose request counts as unwritten 50 ms after the answer, as on a node without processor
// time (net/http, maxWriteWaitBeforeConnReuse).
func keep(ctx context.Context, address string) (requests int, first Answer, err error) {
	conn, err := net.DialTimeout("tcp", address, 3*requestTimeout)
	if err != nil {
		return 0, first, err
	}
	defer conn.Close()
	for answers := bufio.NewReader(conn); ; {
		if err := again(conn, answers, address, &first); err != nil {
			return requests, first, fmt.Errorf("the connection broke: %w", err)
		}
		requests++
		select {
		case <-ctx.Done(): // only here: it would break a request
			return requests, first, nil
		case <-time.After(holdInterval):
		}
	}
}

// again makes one more request on a connection.
func again(conn net.Conn, answers *bufio.Reader, address string, a *Answer) error {
	if err := conn.SetDeadline(time.Now().Add(3 * requestTimeout)); err != nil {
		return err
	}
	req, err := http.NewRequest(http.MethodGet, "http://"+address+"/", nil)
	if err != nil {
		return err
	}
	if err := req.Write(conn); err != nil {
		return err
	}
	resp, err := http.ReadResponse(answers, req)
	if err != nil {
		return err
	}
	if err := decode(resp, a); err != nil {
		return err
	}
	if resp.Close {
		return errors.New("closed by the server")
	}
	return nil
}
