package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// loaded is what became of a load. Times are nanoseconds since 1970, so that who broke something
// can tell what came of it.
type loaded struct {
	Flows       []flowResult     `json:"flows"`
	Connections connectionResult `json:"connections"`
	Dials       dialResult       `json:"dials"`
	// Stalls are the times of 5 ms or more in which this program itself sent nothing: the machine
	// was busy.
	Stalls []span `json:"stalls"`
}

// flowResult is one flow of datagrams.
type flowResult struct {
	Target   string `json:"target"`
	Sent     int    `json:"sent"`
	Answered int    `json:"answered"`
	// Losses are runs of datagrams without an answer, in the order of sending.
	Losses   []loss  `json:"losses"`
	MaxRTTMs float64 `json:"maxRTTMs"`
}

// loss is a run of datagrams without an answer: the first was sent at From, the next one with an
// answer at Until; Open: there was none any more.
type loss struct {
	From  int64 `json:"from"`
	Until int64 `json:"until"`
	Count int   `json:"count"`
	Open  bool  `json:"open"`
}

type span struct {
	From  int64 `json:"from"`
	Until int64 `json:"until"`
}

// connectionResult is what became of the connections that were held open.
type connectionResult struct {
	Opened    int       `json:"opened"`
	Echoes    int       `json:"echoes"`
	Broken    []failure `json:"broken"`
	SlowestMs float64   `json:"slowestMs"` // echo
}

// dialResult is what became of the connections that were made, used once and closed.
type dialResult struct {
	Done      int       `json:"done"`
	Failed    []failure `json:"failed"`
	SlowestMs float64   `json:"slowestMs"` // from the SYN to the echo
}

// failure is a connection that was reset, or whose echo did not come in time.
type failure struct {
	At     int64  `json:"at"`
	Target string `json:"target"`
	Error  string `json:"error"`
}

// loadPlan is what a load consists of. The targets, echo servers of UDP and TCP, take turns.
type loadPlan struct {
	targets     []string
	flows       int
	interval    time.Duration // between two datagrams of a flow
	connections int
	every       time.Duration // between two lines of a connection
	dials       int           // per second; 0: none
	patience    time.Duration // for an echo
	awake       awake
}

// awake counts the time in which this program was scheduled. On a busy machine it may not run for
// seconds; answers that it could not read in that time do not count as missing.
type awake struct{ ticks *atomic.Int64 }

const awakeTick = 50 * time.Millisecond

// start counts until ctx ends. A ticker makes up for none of the ticks that it missed.
func (a awake) start(ctx context.Context) {
	next := time.NewTicker(awakeTick)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
			a.ticks.Add(1)
		}
	}
}

func (a awake) now() time.Duration { return time.Duration(a.ticks.Load()) * awakeTick }

func load(args []string) error {
	flags := flag.NewFlagSet("whereami load", flag.ExitOnError)
	var p loadPlan
	flags.IntVar(&p.flows, "flows", 6, "flows of datagrams")
	rate := flags.Int("rate", 1000, "datagrams per second of each flow")
	flags.IntVar(&p.connections, "connections", 200, "connections that stay open")
	flags.DurationVar(&p.every, "every", 100*time.Millisecond, "time between two lines of a connection")
	flags.IntVar(&p.dials, "dials", 50, "connections per second that are made, used once and closed")
	flags.DurationVar(&p.patience, "patience", 5*time.Second, "how long an echo may take before its connection counts as broken")
	duration := flags.Duration("duration", 0, "how long; 0: until standard input ends")
	_ = flags.Parse(args) // ends the process on an error
	p.targets = flags.Args()
	if len(p.targets) == 0 || p.flows < 1 || *rate < 1 || *rate > 10000 || p.connections < 0 || p.every <= 0 || p.dials < 0 || p.dials > 1000 {
		return errors.New("usage: whereami load [-flows 6] [-rate 1000] [-connections 200] [-every 100ms] [-dials 50] [-patience 5s] [-duration 10s] ADDRESS:PORT…")
	}
	p.interval = time.Second / time.Duration(*rate)
	p.awake = awake{new(atomic.Int64)}
	ctx, cancel := lasting(*duration)
	defer cancel()
	result, err := p.run(ctx)
	if err != nil {
		return err
	}
	return printJSON(result)
}

// run makes the load until ctx ends. When every flow and connection has had its first answer it
// reports it on standard error.
func (p loadPlan) run(ctx context.Context) (loaded, error) {
	var out loaded
	flows := make([]*flow, p.flows)
	for i := range flows {
		f, err := openFlow(p.targets[i%len(p.targets)])
		if err != nil {
			return out, err
		}
		defer f.conn.Close()
		flows[i] = f
	}
	counting, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	go p.awake.start(counting)
	var works, all sync.WaitGroup
	works.Add(p.flows + p.connections)
	for _, f := range flows {
		f.first = sync.OnceFunc(works.Done)
		all.Go(f.receive)
	}
	all.Go(func() { out.Stalls = p.send(ctx, flows) })
	held := connections{plan: p}
	for i := range p.connections {
		all.Go(func() { held.hold(ctx, p.targets[i%len(p.targets)], sync.OnceFunc(works.Done)) })
		time.Sleep(time.Millisecond) // spreads the lines over time, and spares the server's queue
	}
	dialed := dials{plan: p}
	all.Go(func() { dialed.run(ctx) })
	go func() {
		works.Wait()
		fmt.Fprintln(os.Stderr, "every flow and connection has had its first answer, or failed")
	}()
	all.Wait()
	for _, f := range flows {
		out.Flows = append(out.Flows, f.result())
	}
	out.Connections, out.Dials = held.result, dialed.result
	return out, nil
}

// flow is one flow of numbered datagrams.
type flow struct {
	target string
	conn   net.Conn
	first  func() // is called with the first answer, or when there will be none

	sent []int64 // send time of each datagram; the sender's, until it has ended

	answered []uint64 // numbers, in the order of their arrival; the receiver's
	rtt      time.Duration
}

func openFlow(target string) (*flow, error) {
	conn, err := net.Dial("udp", target)
	if err != nil {
		return nil, fmt.Errorf("open a socket towards %s: %w", target, err)
	}
	enlarge(conn.(*net.UDPConn))
	return &flow{target: target, conn: conn}, nil
}

// stalled is from when on a late sender is worth a note.
const stalled = 5 * time.Millisecond

// send sends a datagram of each flow in every interval. What it misses while it is not scheduled is
// not made up for: those datagrams would all show the same.
func (p loadPlan) send(ctx context.Context, flows []*flow) (stalls []span) {
	payload := make([]byte, 64)
	last := time.Now()
	for next := last; ctx.Err() == nil; {
		time.Sleep(time.Until(next)) // the rate
		now := time.Now()
		if now.Sub(last) >= p.interval+stalled {
			stalls = append(stalls, span{last.UnixNano(), now.UnixNano()})
		}
		last = now
		for _, f := range flows {
			at := time.Now().UnixNano()
			binary.BigEndian.PutUint64(payload, uint64(len(f.sent)))
			binary.BigEndian.PutUint64(payload[8:], uint64(at))
			f.sent = append(f.sent, at)
			// the refusal of an earlier one shows here too; what is not sent counts as lost
			_, _ = f.conn.Write(payload)
		}
		next = next.Add(p.interval * (time.Since(next)/p.interval + 1))
	}
	for _, f := range flows {
		// fails only on a closed socket, which ends the reader too
		_ = f.conn.SetReadDeadline(time.Now().Add(lastAnswers))
	}
	return stalls
}

func (f *flow) receive() {
	defer f.first()
	buffer := make([]byte, 65536)
	for {
		n, err := f.conn.Read(buffer)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		if err != nil || n < 16 {
			continue // "connection refused" for one datagram; the next may do better
		}
		f.answered = append(f.answered, binary.BigEndian.Uint64(buffer))
		f.rtt = max(f.rtt, time.Duration(time.Now().UnixNano()-int64(binary.BigEndian.Uint64(buffer[8:]))))
		if len(f.answered) == 1 {
			f.first()
		}
	}
}

func (f *flow) result() flowResult {
	got := make([]bool, len(f.sent))
	out := flowResult{Target: f.target, Sent: len(f.sent), Losses: []loss{}, MaxRTTMs: milliseconds(f.rtt)}
	for _, n := range f.answered {
		if n < uint64(len(got)) && !got[n] {
			got[n] = true
			out.Answered++
		}
	}
	out.Losses = append(out.Losses, losses(f.sent, got)...)
	return out
}

// losses are the runs of datagrams without an answer.
func losses(sent []int64, answered []bool) (out []loss) {
	for i := 0; i < len(sent); i++ {
		if answered[i] {
			continue
		}
		l := loss{From: sent[i]}
		for ; i < len(sent) && !answered[i]; i++ {
			l.Count++
		}
		if l.Open = i == len(sent); l.Open {
			l.Until = sent[i-1]
		} else {
			l.Until = sent[i]
		}
		out = append(out, l)
	}
	return out
}

// connections stay open; on each a line goes there and back every so often.
type connections struct {
	plan   loadPlan
	mu     sync.Mutex
	result connectionResult
}

func (c *connections) hold(ctx context.Context, target string, begun func()) {
	defer begun()
	conn, err := c.plan.dial(target)
	if err != nil {
		c.note(target, 0, 0, err)
		return
	}
	defer conn.Close()
	answers := bufio.NewReader(conn)
	next := time.NewTicker(c.plan.every)
	defer next.Stop()
	echoes, slowest := 0, time.Duration(0)
	for number := uint64(0); ; number++ {
		took, err := c.plan.exchangeLine(conn, answers, number)
		if err != nil {
			c.note(target, echoes, slowest, err)
			return
		}
		echoes++
		slowest = max(slowest, took)
		if number == 0 {
			c.opened()
			begun()
		}
		select {
		case <-ctx.Done():
			c.note(target, echoes, slowest, nil)
			return
		case <-next.C:
		}
	}
}

func (c *connections) opened() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.result.Opened++
}

func (c *connections) note(target string, echoes int, slowest time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.result.Echoes += echoes
	c.result.SlowestMs = max(c.result.SlowestMs, milliseconds(slowest))
	if err != nil {
		c.result.Broken = append(c.result.Broken, failure{At: time.Now().UnixNano(), Target: target, Error: err.Error()})
	}
}

// dial opens a connection. A timeout while this program was not scheduled does not count: the
// connection may have been open for long.
func (p loadPlan) dial(target string) (net.Conn, error) {
	for begin := p.awake.now(); ; {
		conn, err := net.DialTimeout("tcp", target, p.patience)
		if timeout := net.Error(nil); !errors.As(err, &timeout) || !timeout.Timeout() || p.awake.now()-begin >= p.patience*9/10 {
			return conn, err
		}
	}
}

// glance is how long an echo is waited for at a time.
const glance = 250 * time.Millisecond

// exchangeLine sends a line and waits for its echo.
func (p loadPlan) exchangeLine(conn net.Conn, answers *bufio.Reader, number uint64) (time.Duration, error) {
	begin, awake := time.Now(), p.awake.now()
	line, echo := fmt.Sprintf("line %d\n", number), ""
	if _, err := conn.Write([]byte(line)); err != nil { // the socket has room for it
		return 0, err
	}
	for {
		if err := conn.SetReadDeadline(time.Now().Add(glance)); err != nil {
			return 0, err
		}
		part, err := answers.ReadString('\n')
		echo += part
		switch {
		case err == nil && echo == line:
			return time.Since(begin), nil
		case err == nil:
			return 0, fmt.Errorf("%q comes back for %q", echo, line)
		case !errors.Is(err, os.ErrDeadlineExceeded) || p.awake.now()-awake >= p.patience:
			return 0, err
		}
	}
}

// dials are connections that are made at a steady rate, used once and closed.
type dials struct {
	plan   loadPlan
	number atomic.Uint64
	mu     sync.Mutex
	result dialResult
}

func (d *dials) run(ctx context.Context) {
	if d.plan.dials == 0 {
		return
	}
	next := time.NewTicker(time.Second / time.Duration(d.plan.dials))
	defer next.Stop()
	var all sync.WaitGroup
	defer all.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
			number := d.number.Add(1)
			all.Go(func() { d.once(number) })
		}
	}
}

func (d *dials) once(number uint64) {
	target := d.plan.targets[number%uint64(len(d.plan.targets))]
	begin := time.Now()
	err := func() error {
		conn, err := d.plan.dial(target)
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = d.plan.exchangeLine(conn, bufio.NewReader(conn), number)
		return err
	}()
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.result.Failed = append(d.result.Failed, failure{At: begin.UnixNano(), Target: target, Error: err.Error()})
		return
	}
	d.result.Done++
	d.result.SlowestMs = max(d.result.SlowestMs, milliseconds(time.Since(begin)))
}
