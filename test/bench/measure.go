package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

	// maxLoss is the share of UDP packets that may vanish on the way (not at the receiving socket). Beyond it the cost
	// per packet would be that of dropping early, not of the path.
	maxLoss = 0.01

	// minShare is the share of its processor that the sender should get on a quiet machine.
	minShare = 0.9

	portEcho, portSink, portDrain = 7001, 7002, 7003
)

// Values holds what one repetition of one variant measured: metric name → value in the metric's unit.
type Values map[string]float64

// LogValue shows the values in the order of the tables, as short as people want them.
func (v Values) LogValue() slog.Value {
	var attrs []slog.Attr
	for _, m := range metrics {
		if x, ok := v[m.name]; ok {
			attrs = append(attrs, slog.String(m.name, short(x)))
		}
	}
	return slog.GroupValue(attrs...)
}

// measure runs all measurements over the path from client to server, one after the other. A measurement that fails is
// missing from the values and named in the error.
func measure(ctx context.Context, t *Topology, v Variant, d time.Duration) (Values, error) {
	client, server := v.ends(t)
	p := path{t: t, client: client, server: server, target: v.Target, duration: d}
	if err := p.warmUp(ctx); err != nil {
		return nil, err
	}
	values := Values{}
	var errs []error
	for _, m := range []struct {
		name string
		run  func(context.Context, Values) error
	}{
		{"request/response", p.requests}, {"connect/request/response", p.connects}, {"udp", p.datagrams}, {"tcp stream", p.stream},
	} {
		err := errors.Join(t.FlushConntrack(), m.run(ctx, values))
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("measure %s: %w", m.name, err))
		}
	}
	return values, errors.Join(errs...)
}

// path is the way under measurement.
type path struct {
	t              *Topology
	client, server *netns.NS
	target         netip.Addr
	duration       time.Duration
}

// warmUp has the neighbours resolved before anything is measured, and finds a path that carries nothing.
func (p path) warmUp(ctx context.Context) error {
	p.duration = 10 * time.Millisecond
	if _, err := p.echo(ctx, load.RR); err != nil {
		return fmt.Errorf("no traffic passes from %s to %s: %w", p.client.Name, p.target, err)
	}
	return nil
}

func (p path) requests(ctx context.Context, out Values) error {
	r, err := p.echo(ctx, load.RR)
	if err != nil {
		return err
	}
	out[metricRRp50], out[metricRRp99] = r.P50, r.P99
	return nil
}

func (p path) connects(ctx context.Context, out Values) error {
	r, err := p.echo(ctx, load.CRR)
	if err != nil {
		return err
	}
	out[metricCRR], out[metricCRRp50] = float64(r.Count)/r.Seconds, r.P50
	return nil
}

// echo runs a client role against an echo server.
func (p path) echo(ctx context.Context, role load.Role) (load.Result, error) {
	server, err := p.serve(ctx, load.Echo, portEcho)
	if err != nil {
		return load.Result{}, err
	}
	r, err := p.play(ctx, role, portEcho)
	server.stop()
	return r, err
}

func (p path) datagrams(ctx context.Context, out Values) error {
	sent, got, err := p.pair(ctx, load.Generate, load.Sink, portSink)
	if err != nil {
		return err
	}
	if lost := 1 - float64(got.Count+got.Dropped)/float64(sent.Count); sent.Errors > 0 || lost > maxLoss {
		return fmt.Errorf("of %d packets %.1f%% were lost on the way, %d sends failed: the figures would not be those of the path",
			sent.Count, 100*lost, sent.Errors)
	}
	if share := float64(sent.CPUNanos) / sent.Seconds / 1e9; share < minShare {
		slog.Warn("the machine was busy: "+metricUDP+" is too low, "+metricCPU+" holds", "share of its processor that the sender got", share)
	}
	out[metricUDP], out[metricCPU] = float64(got.Count)/got.Seconds, float64(sent.CPUNanos)/float64(sent.Count)
	return nil
}

func (p path) stream(ctx context.Context, out Values) error {
	_, got, err := p.pair(ctx, load.Stream, load.Drain, portDrain)
	if err != nil {
		return err
	}
	out[metricTCP] = float64(got.Count) * 8 / got.Seconds / 1e9
	return nil
}

// pair runs a client role against a server role that ends with the traffic; both must have seen some.
func (p path) pair(ctx context.Context, client, server load.Role, port uint16) (sent, got load.Result, err error) {
	s, err := p.serve(ctx, server, port)
	if err != nil {
		return sent, got, err
	}
	if sent, err = p.play(ctx, client, port); err != nil {
		s.stop()
		return sent, got, err
	}
	if got, err = s.result(); err == nil && (got.Count <= 0 || got.Seconds <= 0) {
		err = fmt.Errorf("the server received %d in %gs", got.Count, got.Seconds)
	}
	return sent, got, err
}

// play runs a client to its end.
func (p path) play(ctx context.Context, role load.Role, port uint16) (load.Result, error) {
	c, err := start(ctx, p.client, load.Spec{
		Role: role, Addr: netip.AddrPortFrom(p.target, port), Duration: p.duration, CPU: clientCPU, Payload: udpPayload, Flows: udpFlows,
	})
	if err != nil {
		return load.Result{}, err
	}
	r, err := c.result()
	if err == nil && (r.Count <= 0 || r.Seconds <= 0) {
		err = fmt.Errorf("the client counted %d in %gs", r.Count, r.Seconds)
	}
	return r, err
}

// serve starts a server and waits until it listens.
func (p path) serve(ctx context.Context, role load.Role, port uint16) (*process, error) {
	s, err := start(ctx, p.server, load.Spec{Role: role, Addr: netip.AddrPortFrom(p.target, port), CPU: serverCPU})
	if err != nil {
		return nil, err
	}
	if line, err := s.out.ReadString('\n'); strings.TrimSpace(line) != load.Ready {
		s.stop()
		return nil, fmt.Errorf("server %s said %q instead of %q (%w): %s", role, line, load.Ready, err, &s.stderr)
	}
	return s, nil
}

// process is a running load generator.
type process struct {
	cmd    *exec.Cmd
	out    *bufio.Reader
	stderr bytes.Buffer
	cancel func() bool
}

// start starts a load generator in n; the end of ctx kills it.
func start(ctx context.Context, n *netns.NS, spec load.Spec) (*process, error) {
	cmd, err := load.Cmd(spec)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: cmd}
	cmd.Stderr = &p.stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s in %s: %w", spec.Role, n.Name, err)
	}
	p.out = bufio.NewReader(stdout)
	if err := n.Start(cmd); err != nil {
		return nil, fmt.Errorf("start %s in %s: %w", spec.Role, n.Name, err)
	}
	p.cancel = context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() }) // fails only if it has ended
	return p, nil
}

// result waits for the end and reads what the process measured.
func (p *process) result() (load.Result, error) {
	defer p.cancel()
	var r load.Result
	decodeErr := json.NewDecoder(p.out).Decode(&r)
	if err := p.cmd.Wait(); err != nil {
		return r, fmt.Errorf("load generator: %w: %s", err, strings.TrimSpace(p.stderr.String()))
	}
	if decodeErr != nil {
		return r, fmt.Errorf("read the load generator's result: %w", decodeErr)
	}
	return r, nil
}

// stop ends a process whose result nobody wants.
func (p *process) stop() {
	defer p.cancel()
	_ = p.cmd.Process.Kill() // it may have ended
	_ = p.cmd.Wait()         // "killed"
}
