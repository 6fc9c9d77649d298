package main

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/cilium/ebpf"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/bpffs"
	"github.com/pelago-net/pelago/test/netns"
	"github.com/pelago-net/pelago/test/resultfile"
)

const (
	variant = "pelago-node"
	// startLimit bounds the time until /readyz; quiet is the settling time before the first
	// measurement.
	startLimit, quiet = 5 * time.Minute, 20 * time.Second
	// canaryInterval is that of the changes whose way into the kernel is measured.
	canaryInterval = 250 * time.Millisecond
	canaryLimit    = 30 * time.Second
	health         = "127.0.0.1:8089"
)

// stage is an API server with a cluster's objects, and a namespace as the node.
type stage struct {
	o        options
	c        cluster
	server   *apiserver.Server
	client   client.Client
	ns       *netns.NS
	pins     string
	closers  []func() error
	daemon   *exec.Cmd
	services *ebpf.Map
	// canaryGone: the endpoint that canary changes is not ready.
	canaryGone bool
}

func measure(ctx context.Context, o options, c cluster) (rows []resultfile.Row, err error) {
	s := &stage{o: o, c: c}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	row := func(metric, unit string, values ...float64) {
		slices.Sort(values)
		r := resultfile.Row{Case: fmt.Sprintf("%d-nodes", c.nodes), Variant: variant, Metric: metric, Unit: unit, N: len(values)}
		if len(values) > 0 {
			r.Median, r.Min, r.Max = values[len(values)/2], values[0], values[len(values)-1]
		}
		rows = append(rows, r)
		slog.Info("measured", "nodes", c.nodes, "metric", metric, "unit", unit, "value", fmt.Sprintf("%.3f", r.Median), "most", fmt.Sprintf("%.3f", r.Max))
	}
	began := time.Now()
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	row("start_s", "s", time.Since(began).Seconds())
	cpu, err := s.cpu()
	if err != nil {
		return nil, err
	}
	row("start_cpu_s", "s", cpu.Seconds())
	if err := pause(ctx, min(quiet, o.period)); err != nil {
		return nil, err
	}
	for _, rate := range append([]float64{0}, o.rates...) {
		cores, latencies, err := s.under(ctx, rate)
		if err != nil {
			return nil, err
		}
		name := fmt.Sprintf("%g_per_s", rate)
		row("cores_"+name, "cores", cores)
		rss, err := s.memory()
		if err != nil {
			return nil, err
		}
		row("rss_"+name, "MiB", rss)
		if rate > 0 {
			row("change_to_map_"+name, "ms", latencies...)
			row("change_to_map_p99_"+name, "ms", latencies[len(latencies)*99/100])
		}
	}
	return rows, nil
}

func (s *stage) open(ctx context.Context) (err error) {
	if s.server, err = apiserver.Open(apiserver.CRDs()); err != nil {
		return err
	}
	s.closers = append(s.closers, s.server.Close)
	if s.client, err = newClient(s.server.Config()); err != nil {
		return err
	}
	began := time.Now()
	if err := s.c.create(ctx, s.client, s.o.gateway); err != nil {
		return err
	}
	slog.Info("objects created", "took", time.Since(began).Round(time.Second))
	return s.place()
}

// place makes the namespace, in which the API server is reached at the address that it has outside.
func (s *stage) place() (err error) {
	if _, err := netns.RemoveStale("bench-node"); err != nil {
		return err
	}
	if s.ns, err = netns.Create("bench-node"); err != nil {
		return err
	}
	s.closers = append(s.closers, s.ns.Close)
	own := netns.End{NS: s.ns, Name: "eth0", Addrs: []netip.Prefix{netip.PrefixFrom(at(nodeRange, 10), 12)}}
	if err := netns.Veth(own, netns.End{NS: s.ns, Name: "wire"}); err != nil {
		return err
	}
	u, err := url.Parse(s.server.Config().Host)
	if err != nil {
		return fmt.Errorf("read the API server's address: %w", err)
	}
	var listener net.Listener
	if err := s.ns.Do(func() (err error) { listener, err = net.Listen("tcp", u.Host); return err }); err != nil {
		return fmt.Errorf("listen for the node daemon: %w", err)
	}
	s.closers = append(s.closers, listener.Close)
	go relay(listener, u.Host)
	dir := filepath.Join(s.o.dir, strconv.Itoa(s.c.nodes))
	s.pins = filepath.Join(dir, "bpf")
	for _, sub := range []string{"bpf", "state", "token", "psk", "ike"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return err
		}
	}
	unmount, err := bpffs.At(s.pins)
	if err != nil {
		return err
	}
	s.closers = append(s.closers, unmount)
	kubeconfig, err := apiserver.Kubeconfig(s.server.Config())
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(dir, "kubeconfig"), kubeconfig, 0o600),
		os.WriteFile(filepath.Join(dir, "token", config.KeyTokenCurrent), []byte("0000a1"), 0o600),
		os.WriteFile(filepath.Join(dir, "psk", config.KeyPSK), []byte(strings.Repeat("k", 48)), 0o600))
}

// relay carries connections from the namespace to the API server.
func relay(from net.Listener, to string) {
	for {
		in, err := from.Accept()
		if err != nil {
			return // closed
		}
		go func() {
			defer in.Close()
			out, err := net.Dial("tcp", to)
			if err != nil {
				return // the daemon sees its connection end, and tries again
			}
			defer out.Close()
			done := make(chan struct{}, 2)
			for a, b := range map[net.Conn]net.Conn{in: out, out: in} {
				go func() {
					_, _ = io.Copy(a, b) // ends with either connection; the client reconnects
					done <- struct{}{}
				}()
			}
			<-done
		}()
	}
}

// start runs the daemon until it is ready.
func (s *stage) start(ctx context.Context) error {
	dir := filepath.Join(s.o.dir, strconv.Itoa(s.c.nodes))
	path := func(name string) string { return filepath.Join(dir, name) }
	log, err := os.Create(path("pelago-node.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	s.daemon = exec.Command(filepath.Join(s.o.bin, "pelago-node"), "run", "--node-name", self, "--pin-path", filepath.Join(s.pins, "pelago"),
		"--overlay-token-dir", path("token"), "--psk-dir", path("psk"), "--state-dir", path("state"), "--ike-dir", path("ike"),
		"--verdict-socket", path("verdict.sock"), "--health-addr", health)
	s.daemon.Env = append(os.Environ(), "KUBECONFIG="+path("kubeconfig"))
	s.daemon.Stdout, s.daemon.Stderr = log, log
	if err := s.ns.Start(s.daemon); err != nil {
		return fmt.Errorf("start pelago-node: %w (make build)", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.daemon.Wait() }()
	s.closers = append(s.closers, func() error {
		_ = s.daemon.Process.Signal(syscall.SIGTERM) // it may have ended
		return <-ended
	})
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (c net.Conn, err error) {
		err = s.ns.Do(func() error { c, err = net.Dial(network, address); return err })
		return c, err
	}}}
	limit := time.Now().Add(startLimit)
	for {
		if response, err := client.Get("http://" + health + "/readyz"); err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				break
			}
		}
		select {
		case err := <-ended:
			ended <- err
			return fmt.Errorf("pelago-node has ended: %w (see %s)", err, log.Name())
		default:
		}
		if time.Now().After(limit) {
			return fmt.Errorf("pelago-node is not ready after %s (see %s)", startLimit, log.Name())
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	s.services, err = ebpf.LoadPinnedMap(filepath.Join(s.pins, "pelago", "services"), &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return fmt.Errorf("open the map of services: %w", err)
	}
	s.closers = append(s.closers, s.services.Close)
	return nil
}

// under returns the processor time per second of the daemon, in cores, and the latencies of changes
// to the map, sorted, in ms, at rate endpoint changes per second.
func (s *stage) under(ctx context.Context, rate float64) (cores float64, latencies []float64, err error) {
	before, err := s.cpu()
	if err != nil {
		return 0, nil, err
	}
	began := time.Now()
	running, stop := context.WithTimeout(ctx, s.o.period)
	defer stop()
	var group sync.WaitGroup
	var failed error
	if rate > 0 {
		group.Go(func() { failed = s.churn(running, rate) })
		group.Go(func() { latencies, err = s.canary(running) })
	}
	<-running.Done()
	after, cpuErr := s.cpu()
	cores = (after - before).Seconds() / time.Since(began).Seconds()
	group.Wait()
	if err := errors.Join(err, failed, cpuErr, ctx.Err()); err != nil {
		return 0, nil, err
	}
	slices.Sort(latencies)
	return cores, latencies, nil
}

// churn changes rate endpoints a second, each of another service, until ctx ends.
func (s *stage) churn(ctx context.Context, rate float64) error {
	work := make(chan int)
	var group sync.WaitGroup
	var mu sync.Mutex
	var failed error
	others := s.c.services - 1
	for range writers {
		group.Go(func() {
			for n := range work {
				if err := s.toggle(ctx, 1+n%others, rand.IntN(endpointsPerService), n/others%2 == 1); err != nil && ctx.Err() == nil {
					mu.Lock()
					failed = cmp.Or(failed, err)
					mu.Unlock()
				}
			}
		})
	}
	began, sent := time.Now(), 0
	for ctx.Err() == nil {
		for ; float64(sent) < time.Since(began).Seconds()*rate; sent++ {
			select {
			case work <- sent:
			case <-ctx.Done():
			}
		}
		_ = pause(ctx, time.Millisecond) // its end ends the loop
	}
	close(work)
	group.Wait()
	if reached := float64(sent) / s.o.period.Seconds(); reached < 0.95*rate {
		failed = cmp.Or(failed, fmt.Errorf("the API server took %.0f of %.0f changes a second", reached, rate))
	}
	return failed
}

// toggle makes an endpoint of a service ready or not.
func (s *stage) toggle(ctx context.Context, service, endpoint int, ready bool) error {
	patch := fmt.Sprintf(`[{"op":"replace","path":"/endpoints/%d/conditions/ready","value":%t}]`, endpoint, ready)
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: serviceName(service)}}
	if err := s.client.Patch(ctx, slice, client.RawPatch(types.JSONPatchType, []byte(patch))); err != nil {
		return fmt.Errorf("change an endpoint of %s: %w", slice.Name, err)
	}
	return nil
}

// canary changes the first endpoint of the service with backends on the node, again and again, and
// returns how long each took into the kernel, in ms.
func (s *stage) canary(ctx context.Context) (ms []float64, err error) {
	for ctx.Err() == nil {
		s.canaryGone = !s.canaryGone
		before, err := s.backends()
		if err != nil {
			return nil, err
		}
		began := time.Now()
		if err := s.toggle(ctx, 0, 0, !s.canaryGone); err != nil {
			if ctx.Err() != nil {
				break
			}
			return nil, err
		}
		for {
			now, err := s.backends()
			if err != nil {
				return nil, err
			}
			if now != before {
				break
			}
			if time.Since(began) > canaryLimit {
				return nil, fmt.Errorf("a change is not in the kernel after %s", canaryLimit)
			}
			time.Sleep(2 * time.Millisecond)
		}
		ms = append(ms, float64(time.Since(began).Microseconds())/1000)
		_ = pause(ctx, canaryInterval) // its end ends the loop
	}
	if len(ms) == 0 {
		return nil, errors.New("no change has come into the kernel")
	}
	return ms, nil
}

// backends is the number that the map `services` has for the first service.
func (s *stage) backends() (uint32, error) {
	key := at(globalRange, ingressIP(0)).As4()
	raw := append(key[:], 0, 80, syscall.IPPROTO_TCP, 0)
	value, err := s.services.LookupBytes(raw)
	if err != nil || len(value) < 4 {
		return 0, fmt.Errorf("read the map of services: %w", err)
	}
	return binary.NativeEndian.Uint32(value), nil
}

// cpu is the processor time of the daemon (proc_pid_stat(5)).
func (s *stage) cpu() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.daemon.Process.Pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+2:]))
	const userHZ = 100
	var ticks int64
	for _, f := range fields[11:13] { // utime, stime
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read the processor time of pelago-node: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / userHZ, nil
}

// memory is the resident memory of the daemon that no file backs, in MiB.
func (s *stage) memory() (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.daemon.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			if err != nil {
				return 0, fmt.Errorf("read the memory of pelago-node: %w", err)
			}
			return kib / 1024, nil
		}
	}
	return 0, errors.New("the kernel does not tell the memory of pelago-node")
}

func (s *stage) close() error {
	var errs []error
	for _, c := range slices.Backward(s.closers) {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// printTable shows the medians, a row per metric and a column per size.
func printTable(out io.Writer, rows []resultfile.Row) error {
	var cases, metrics []string
	values := map[[2]string]resultfile.Row{}
	for _, r := range rows {
		if !slices.Contains(cases, r.Case) {
			cases = append(cases, r.Case)
		}
		if !slices.Contains(metrics, r.Metric) {
			metrics = append(metrics, r.Metric)
		}
		values[[2]string{r.Case, r.Metric}] = r
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "METRIC\tUNIT\t%s\t\n", strings.ToUpper(strings.Join(cases, "\t")))
	for _, m := range metrics {
		fmt.Fprintf(w, "%s\t%s", m, values[[2]string{cases[0], m}].Unit)
		for _, c := range cases {
			fmt.Fprintf(w, "\t%.3g", values[[2]string{c, m}].Median)
		}
		fmt.Fprintln(w, "\t")
	}
	return w.Flush()
}
