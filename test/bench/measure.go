package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os/exec"
	"strings"
	"time"

	"github.com/pelago-net/pelago/test/bench/load"
	"github.com/pelago-net/pelago/test/netns"
)

const (
	clientCPU = 0
	serverCPU = 1

	udpPayload = 36 // bytes: IP packets of 64 bytes
	udpFlows   = 16

	// maxLoss is the share of UDP packets that may be lost on the path (not at the receiving
	// socket). Beyond it the cost per packet would be that of an early drop, not of the path.
	maxLoss = 0.01

	portEcho, portSink, portDrain, portTest = 7001, 7002, 7003, 7009
)

// measurement is one kind of traffic over a standing path, for one slice of time.
type measurement struct {
	name string
	run  func(*path, time.Duration) (Values, error)
	of   func(name string) bool // of which cases
}

// measurements lists the kinds of traffic in the order in which a round runs them.
var measurements = []measurement{
	// A flood of datagrams overruns the queues of a wire in user space, and its sender does not pay
	// for them.
	{"udp", (*path).datagrams, func(name string) bool { return name != caseWireGuard }},
	{"request/response", (*path).requests, func(name string) bool { return name == caseGatewayPath || name == caseWireGuard }},
	{"connect/request/response", (*path).connects, func(string) bool { return true }},
	{"tcp stream", (*path).stream, func(name string) bool { return name == caseGatewayPath || name == caseWireGuard }},
}

// path is a standing topology with one variant set up in it and a worker at each end.
type path struct {
	Case
	Variant
	topology *Topology
	setup

	client       *worker // all clients
	echo, server *worker // TCP echo; Sink and Drain
}

// openPath makes the topology, sets the variant up and starts the workers. A path over which no
// traffic passes is an error.
func openPath(ctx context.Context, prefix string, kubeProxy bool, c Case, v Variant) (p *path, err error) {
	p = &path{Case: c, Variant: v}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	if p.topology, err = NewTopology(prefix, Shape{KubeProxy: kubeProxy, Gateways: c.Gateways}); err != nil {
		return p, err
	}
	if p.setup, err = v.Setup(p.topology, c.Scale); err != nil {
		return p, fmt.Errorf("set up: %w", err)
	}
	client, server := v.ends(p.topology)
	for _, w := range []struct {
		worker **worker
		ns     *netns.NS
		cpu    int
	}{{&p.client, client, clientCPU}, {&p.echo, server, serverCPU}, {&p.server, server, serverCPU}} {
		if *w.worker, err = startWorker(ctx, w.ns, w.cpu); err != nil {
			return p, err
		}
	}
	if err = p.echo.serve(load.Spec{Role: load.Echo, Addr: p.addr(portEcho)}); err != nil {
		return p, err
	}
	// Resolves the neighbours before anything is measured.
	if _, err = p.client.do(load.Spec{Role: load.RR, Addr: p.addr(portEcho), Duration: 10 * time.Millisecond}); err != nil {
		return p, fmt.Errorf("no traffic passes from %s to %s: %w", client.Name, v.Target, err)
	}
	return p, nil
}

// Close ends the workers and removes the variant and its topology.
func (p *path) Close() error {
	for _, w := range []*worker{p.client, p.echo, p.server} {
		if w != nil {
			w.stop()
		}
	}
	var errs []error
	if p.teardown != nil {
		errs = append(errs, p.teardown())
	}
	if p.topology != nil {
		errs = append(errs, p.topology.Close())
	}
	return errors.Join(errs...)
}

// slice runs one measurement. Connection tracking starts empty, so that no slice pays for the
// connections of another.
func (p *path) slice(m measurement, d time.Duration) (Values, error) {
	if err := p.topology.FlushConntrack(); err != nil {
		return nil, err
	}
	return m.run(p, d)
}

func (p *path) addr(port uint16) netip.AddrPort { return netip.AddrPortFrom(p.Target, port) }

func (p *path) requests(d time.Duration) (Values, error) {
	r, err := p.client.do(load.Spec{Role: load.RR, Addr: p.addr(portEcho), Duration: d})
	return Values{metricRRp50: r.P50, metricRRp99: r.P99}, err
}

func (p *path) connects(d time.Duration) (Values, error) {
	r, err := p.client.do(load.Spec{Role: load.CRR, Addr: p.addr(portEcho), Duration: d})
	return Values{metricCRR: float64(r.Count) / r.Seconds, metricCRRp50: r.P50}, err
}

func (p *path) datagrams(d time.Duration) (Values, error) {
	sent, got, err := p.send(d)
	return Values{metricUDP: float64(got.Count) / got.Seconds, metricCPU: float64(sent.CPUNanos) / float64(sent.Count)}, err
}

// send sends datagrams and counts them at the other end.
func (p *path) send(d time.Duration) (sent, got load.Result, err error) {
	flows, batch := udpFlows, 0
	if p.Live > 0 {
		flows, batch = p.Live, 1
	}
	sent, got, err = p.pair(load.Spec{Role: load.Generate, Addr: p.addr(portSink), Duration: d, Payload: udpPayload, Flows: flows, Batch: batch},
		load.Spec{Role: load.Sink, Addr: p.addr(portSink)})
	if err != nil {
		return sent, got, err
	}
	total := sent.Count + sent.Warmup
	if lost := 1 - float64(got.Count+got.Dropped)/float64(total); sent.Errors > 0 || lost > maxLoss {
		return sent, got, fmt.Errorf("of %d packets %.1f%% were lost on the path, %d sends failed: the figures would not be those of the path",
			total, 100*lost, sent.Errors)
	}
	return sent, got, nil
}

func (p *path) stream(d time.Duration) (Values, error) {
	_, got, err := p.pair(load.Spec{Role: load.Stream, Addr: p.addr(portDrain), Duration: d}, load.Spec{Role: load.Drain, Addr: p.addr(portDrain)})
	return Values{metricTCP: float64(got.Count) * 8 / got.Seconds / 1e9}, err
}

// pair runs a client against a server that ends with it.
func (p *path) pair(client, server load.Spec) (sent, got load.Result, err error) {
	if err := p.server.serve(server); err != nil {
		return sent, got, err
	}
	sent, err = p.client.do(client)
	if stopErr := p.server.line(); stopErr != nil {
		return sent, got, errors.Join(err, stopErr)
	}
	got, serverErr := p.server.result()
	return sent, got, errors.Join(err, serverErr)
}

// worker is a running load generator (see package load).
type worker struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr bytes.Buffer
	cancel func() bool
}

// startWorker starts a load generator in n; the end of ctx kills it.
func startWorker(ctx context.Context, n *netns.NS, cpu int) (*worker, error) {
	w := &worker{cmd: load.Cmd(cpu)}
	w.cmd.Stderr = &w.stderr
	in, inErr := w.cmd.StdinPipe()
	out, outErr := w.cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr); err != nil {
		return nil, fmt.Errorf("start a load generator in %s: %w", n.Name, err)
	}
	w.in, w.out = in, bufio.NewReader(out)
	if err := n.Start(w.cmd); err != nil {
		return nil, fmt.Errorf("start a load generator in %s: %w", n.Name, err)
	}
	// fails only if it has ended
	w.cancel = context.AfterFunc(ctx, func() { _ = w.cmd.Process.Kill() })
	return w, nil
}

// do runs a client to its end. One that measured nothing is an error.
func (w *worker) do(spec load.Spec) (load.Result, error) {
	if err := w.send(spec); err != nil {
		return load.Result{}, err
	}
	return w.result()
}

// serve starts a server and waits until it listens.
func (w *worker) serve(spec load.Spec) error {
	if err := w.send(spec); err != nil {
		return err
	}
	line, err := w.out.ReadString('\n')
	if strings.TrimSpace(line) != load.Ready {
		return fmt.Errorf("server %s answered %q instead of %q (%w): %s", spec.Role, line, load.Ready, err, &w.stderr)
	}
	return nil
}

func (w *worker) send(spec load.Spec) error {
	if err := json.NewEncoder(w.in).Encode(spec); err != nil {
		return fmt.Errorf("start %s: %w", spec.Role, err)
	}
	return nil
}

// line stops a server.
func (w *worker) line() error {
	_, err := w.in.Write([]byte{'\n'})
	return err
}

// result reads the answer to the last Spec.
func (w *worker) result() (load.Result, error) {
	var r load.Response
	line, err := w.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &r)
	}
	switch {
	case err != nil:
		return r.Result, fmt.Errorf("read the result of a load generator: %w: %s", err, strings.TrimSpace(w.stderr.String()))
	case r.Error != "":
		return r.Result, errors.New(r.Error)
	case r.Result.Count <= 0 || r.Result.Seconds <= 0:
		return r.Result, fmt.Errorf("a load generator counted %d in %gs", r.Result.Count, r.Result.Seconds)
	}
	return r.Result, nil
}

// stop kills the worker.
func (w *worker) stop() {
	w.cancel()
	_ = w.cmd.Process.Kill() // it may have ended
	_ = w.cmd.Wait()         // "killed"
}

// LogValue shows the values in the order of the tables, rounded.
func (v Values) LogValue() slog.Value {
	var attrs []slog.Attr
	for _, m := range metrics {
		if x, ok := v[m.name]; ok {
			attrs = append(attrs, slog.String(m.name, short(x)))
		}
	}
	return slog.GroupValue(attrs...)
}
