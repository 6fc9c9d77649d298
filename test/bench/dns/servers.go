package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/control/agent/clusterdns"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/lab/binaries"
)

const (
	localZone      = "cluster.local"
	clustersetZone = "clusterset.local"
	// serverCPU runs all name servers, the sender and the API server have the others.
	serverCPU = 1
	// startTimeout bounds the time until a server answers every name.
	startTimeout = 3 * time.Minute
)

// pelagoAddress is where CoreDNS forwards to, by the block that the agent writes: port 53.
var pelagoAddress = netip.MustParseAddrPort("127.0.77.53:53")

// variant is a server, or a chain of servers, and a zone of names that it answers.
type variant struct {
	name string
	zone string
	// servers spend the processor time of a query; the first one is asked.
	servers []string
}

var variants = []variant{
	{"pelago", clustersetZone, []string{"pelago"}},
	{"coredns", localZone, []string{"coredns"}},
	{"coredns-cache", localZone, []string{"front"}},
	{"whole-way", clustersetZone, []string{"front", "pelago"}},
	{"whole-way-cache", clustersetZone, []string{"caching-front", "pelago"}}, // join --dns-cache 1s
}

// setup is an API server with services, and the name servers that serve them.
type setup struct {
	api       *apiserver.Server
	dir       string
	services  services
	processes map[string]*process
}

// process is a running name server.
type process struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer
	addr   netip.AddrPort
}

// log is the end of what the server has written.
func (p *process) log() string {
	text := p.stderr.String()
	return text[max(0, len(text)-2000):]
}

func openSetup(ctx context.Context, n int) (s *setup, err error) {
	if runtime.NumCPU() <= serverCPU {
		return nil, fmt.Errorf("%d processors: servers and sender need one each", runtime.NumCPU())
	}
	s = &setup{processes: map[string]*process{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.dir, err = os.MkdirTemp("", "bench-dns-"); err != nil {
		return s, err
	}
	if err := leaveServerCPU(); err != nil {
		return s, err
	}
	progress := func(line string) { slog.Info(line) }
	server, err := binaries.CoreDNS(ctx, progress)
	if err != nil {
		return s, err
	}
	pelago := filepath.Join(s.dir, "pelago-dns")
	if err := binaries.Program(ctx, "./cmd/pelago-dns", pelago); err != nil {
		return s, err
	}
	if s.api, err = apiserver.Open(apiserver.CRDs("serviceimports.multicluster.x-k8s.io")); err != nil {
		return s, err
	}
	text, err := apiserver.Kubeconfig(s.api.Config())
	if err != nil {
		return s, err
	}
	kubeconfig := filepath.Join(s.dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, text, 0o600); err != nil {
		return s, err
	}
	if s.services, err = create(ctx, s.api.Config(), n); err != nil {
		return s, err
	}
	slog.Info("created", "services", len(s.services))

	if err := s.start("pelago", pelagoAddress, pelago, "--kubeconfig="+kubeconfig, "--cluster-id=g1", "--listen="+pelagoAddress.String(),
		"--metrics=127.0.0.1:0", "--verdict-socket="+filepath.Join(s.dir, "none")); err != nil {
		return s, err
	}
	for name, c := range map[string]struct {
		cache   string
		forward bool
		keep    time.Duration
	}{"coredns": {}, "front": {"    cache 30\n", true, 0}, "caching-front": {"    cache 30\n", true, time.Second}} {
		addr, err := freePort()
		if err != nil {
			return s, err
		}
		// kubeadm's, but for the pages and the forwarding to the Internet.
		corefile := fmt.Sprintf(".:%d {\n    errors\n    kubernetes cluster.local in-addr.arpa ip6.arpa {\n        kubeconfig %s\n"+
			"        pods insecure\n        ttl 30\n    }\n    prometheus 127.0.0.1:0\n%s    loadbalance\n}\n", addr.Port(), kubeconfig, c.cache)
		if c.forward {
			f := clusterdns.Forward{Zones: []string{clustersetZone}, To: pelagoAddress.Addr(), Cache: c.keep}
			if corefile, err = f.Patch(corefile); err != nil {
				return s, err
			}
		}
		file := filepath.Join(s.dir, name+".Corefile")
		if err := os.WriteFile(file, []byte(corefile), 0o600); err != nil {
			return s, err
		}
		if err := s.start(name, addr, server, "-conf", file); err != nil {
			return s, err
		}
	}
	for _, v := range variants {
		if err := s.await(ctx, v); err != nil {
			return s, err
		}
	}
	return s, nil
}

// leaveServerCPU moves all threads of this process to the other processors. New ones inherit that.
func leaveServerCPU() error {
	var others unix.CPUSet
	for i := range runtime.NumCPU() {
		if i != serverCPU {
			others.Set(i)
		}
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, t := range threads {
		tid, err := strconv.Atoi(t.Name())
		if err == nil {
			err = unix.SchedSetaffinity(tid, &others)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("set the processors of thread %s: %w", t.Name(), err)
		}
	}
	return nil
}

// freePort is a port of the loopback that is free for TCP, and so likely for UDP.
func freePort() (netip.AddrPort, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return netip.AddrPort{}, err
	}
	return l.Addr().(*net.TCPAddr).AddrPort(), l.Close()
}

// start runs a server on serverCPU, so that the Go runtime gives it one thread at a time. It dies
// with this process.
func (s *setup) start(name string, addr netip.AddrPort, program string, args ...string) error {
	p := &process{cmd: exec.Command(program, args...), addr: addr}
	p.cmd.Stdout, p.cmd.Stderr = &p.stderr, &p.stderr
	p.cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	started := make(chan error)
	go func() {
		// Not unlocked: a child inherits the thread's processors, and dies with this
		// thread, which waits for it.
		runtime.LockOSThread()
		var one unix.CPUSet
		one.Set(serverCPU)
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			started <- fmt.Errorf("start %s: set its processor: %w", name, err)
			return
		}
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // killed by close
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	s.processes[name] = p
	return nil
}

// await waits until a variant answers every name right.
func (s *setup) await(ctx context.Context, v variant) error {
	deadline := time.Now().Add(startTimeout)
	for _, c := range cases {
		questions := s.questions(c, v.zone)
		for i := range questions {
			for {
				_, err := latency(ctx, s.address(v), questions[i:i+1], 0)
				if err == nil {
					break
				}
				if time.Now().After(deadline) || ctx.Err() != nil {
					return fmt.Errorf("wait for %s: %w\n%s", v.name, err, s.processes[v.servers[0]].log())
				}
				time.Sleep(100 * time.Millisecond)
			}
		}
	}
	return nil
}

func (s *setup) address(v variant) netip.AddrPort { return s.processes[v.servers[0]].addr }

// processorTime is what the servers of a variant have used, in user and kernel mode
// (clock_getcpuclockid(3)).
func (s *setup) processorTime(v variant) (sum time.Duration, err error) {
	for _, name := range v.servers {
		var t unix.Timespec
		if err := unix.ClockGettime(int32(^s.processes[name].cmd.Process.Pid<<3|2), &t); err != nil {
			return 0, fmt.Errorf("read the processor time of %s: %w\n%s", name, err, s.processes[name].log())
		}
		sum += time.Duration(t.Nano())
	}
	return sum, nil
}

// residentMemory is that of a variant's servers together, in bytes.
func (s *setup) residentMemory(v variant) (sum float64, err error) {
	for _, name := range v.servers {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.processes[name].cmd.Process.Pid))
		if err != nil {
			return 0, err
		}
		_, rest, _ := strings.Cut(string(text), "VmRSS:")
		fields := strings.Fields(rest)
		if len(fields) == 0 {
			return 0, fmt.Errorf("read the memory of %s: it has ended\n%s", name, s.processes[name].log())
		}
		kib, err := strconv.ParseFloat(fields[0], 64)
		if err != nil {
			return 0, fmt.Errorf("read the memory of %s: %w", name, err)
		}
		sum += kib * 1024
	}
	return sum, nil
}

func (s *setup) close() error {
	var errs []error
	for _, p := range s.processes {
		errs = append(errs, p.cmd.Process.Kill())
	}
	if s.api != nil {
		errs = append(errs, s.api.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}
