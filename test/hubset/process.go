package hubset

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Process is a program of the product as a child of this process.
type Process struct {
	// Name is that of its log file, <name>.log in the set's directory.
	Name string
	// PID is its process id.
	PID int
	// Done is closed when it has ended.
	Done    <-chan struct{}
	log     string
	metrics string // URL
}

// hubKubeconfig is the access of pelago-hub, as Init has written it.
func (s *Set) hubKubeconfig() string { return filepath.Join(s.options.Dir, "pelago-hub.kubeconfig") }

// HubConfig is the access of pelago-hub to the hub's API server, which Init has made.
func (s *Set) HubConfig() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", s.hubKubeconfig())
	if err != nil {
		return nil, fmt.Errorf("read the access of pelago-hub: %w", err)
	}
	return config, nil
}

// StartHub starts pelago-hub. The name tells replicas apart: two at a time must have two names. A
// later one of the same name writes behind the former's log, and takes its lease over.
func (s *Set) StartHub(name string) (*Process, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	flags := append([]string{"--kubeconfig=" + s.hubKubeconfig(), "--identity=" + name, "--metrics-address=" + address,
		"--health-address=0"}, s.options.HubFlags...)
	p, err := s.Start(name, filepath.Join(s.options.Binaries, "pelago-hub"), flags...)
	if err != nil {
		return nil, err
	}
	p.metrics = "http://" + address + "/metrics"
	return p, nil
}

// Start starts a program; its output goes to NAME.log in the set's directory.
func (s *Set) Start(name, program string, args ...string) (*Process, error) {
	p, err := spawn(filepath.Join(s.options.Dir, name+".log"), program, args...)
	if err != nil {
		return nil, err
	}
	p.Name = name
	s.mu.Lock()
	defer s.mu.Unlock()
	s.processes = append(s.processes, p)
	return p, nil
}

// spawn starts a program whose output goes behind what is in the log. It dies with this process:
// the kernel sends the signal when the thread that made it ends, hence the goroutine that keeps its
// thread until then.
func spawn(log, program string, args ...string) (*Process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, done := make(chan error, 1), make(chan struct{})
	p := &Process{Done: done, log: log}
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(done)
		defer out.Close()
		err := cmd.Start()
		if err == nil {
			p.PID = cmd.Process.Pid
		}
		started <- err
		if err == nil {
			_ = cmd.Wait() // who cares how it ended looks at its log
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w (make build)", program, err)
	}
	return p, nil
}

// Kill ends the process by SIGKILL, also a paused one, and waits for its end.
func (p *Process) Kill() {
	if p.signal(syscall.SIGKILL) {
		<-p.Done
	}
}

// stopLimit is how long a process may take to end when it is asked to.
const stopLimit = 30 * time.Second

// Stop asks the process to end (SIGTERM) and waits for it, at most 30 s.
func (p *Process) Stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	p.signal(syscall.SIGTERM)
	select {
	case <-p.Done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop %s: %w", p.Name, ctx.Err())
	}
}

// Pause stops the process where it is (SIGSTOP); Continue lets it go on (SIGCONT).
func (p *Process) Pause() { p.signal(syscall.SIGSTOP) }

// Continue ends a pause.
func (p *Process) Continue() { p.signal(syscall.SIGCONT) }

// signal reports whether the process was there to get it.
func (p *Process) signal(s syscall.Signal) bool {
	select {
	case <-p.Done:
		return false
	default:
		_ = syscall.Kill(p.PID, s) // it may have ended since
		return true
	}
}

// Alive reports whether the process runs.
func (p *Process) Alive() bool {
	select {
	case <-p.Done:
		return false
	default:
		return true
	}
}

// Tail is the end of the process's log, at most 4 KiB.
func (p *Process) Tail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(text[max(0, len(text)-4096):]))
}

// RSS is the memory of the process now and at its largest, in bytes.
func (p *Process) RSS() (now, largest int64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID))
	if err != nil {
		return 0, 0, fmt.Errorf("read the memory of %s: %w", p.Name, err)
	}
	for line := range strings.Lines(string(text)) {
		field, rest, _ := strings.Cut(line, ":")
		if field != "VmRSS" && field != "VmHWM" {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("read the memory of %s: %w", p.Name, err)
		}
		if field == "VmRSS" {
			now = kib << 10
		} else {
			largest = kib << 10
		}
	}
	return now, largest, nil
}

// Metrics is the page of the process's metrics.
func (p *Process) Metrics(ctx context.Context) (map[string]float64, error) {
	series, err := Metrics(ctx, http.DefaultClient, p.metrics)
	if err != nil {
		return nil, fmt.Errorf("read the metrics of %s: %w", p.Name, err)
	}
	return series, nil
}

// Metrics is a page of metrics: series with labels, as they are written there, and values.
func Metrics(ctx context.Context, c *http.Client, url string) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, errors.New(response.Status)
	}
	return parseMetrics(string(text))
}

func parseMetrics(text string) (map[string]float64, error) {
	series := map[string]float64{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		i := strings.LastIndexByte(line, ' ')
		if i < 0 {
			return nil, fmt.Errorf("parse the metrics: line %q", line)
		}
		value, err := strconv.ParseFloat(line[i+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("parse the metrics: line %q: %w", line, err)
		}
		series[line[:i]] = value
	}
	return series, nil
}

// Queues are the depths of the work queues of a page of metrics, by name.
func Queues(metrics map[string]float64) map[string]float64 {
	depths := map[string]float64{}
	for series, value := range metrics {
		labels, ok := strings.CutPrefix(series, "workqueue_depth{")
		if !ok {
			continue
		}
		_, name, _ := strings.Cut(labels, `name="`)
		name, _, _ = strings.Cut(name, `"`)
		depths[name] += value
	}
	return depths
}

// freeAddress is a TCP address of the loopback interface on which nobody listens now.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}
