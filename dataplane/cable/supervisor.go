//go:build linux

package cable

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// pollInterval is how often the configuration file is read.
	pollInterval = 300 * time.Millisecond
	// restartDelay before a daemon that ended is started again.
	restartDelay = time.Second
	// drainTimeout bounds how long ESP in the daemon continues at termination, while pelago-node,
	// which ends at the same time, moves the flows to other gateways. stopTimeout bounds how long
	// the daemon then takes to notify its peers. The pod's grace period is longer than both.
	drainTimeout = 10500 * time.Millisecond
	stopTimeout  = 1500 * time.Millisecond
	// watchInterval is how often the daemon is queried for its state. One that leaves maxUnanswered
	// requests in a row unanswered hangs.
	watchInterval = 10 * time.Second
	maxUnanswered = 3
	// charonBinary and charonPID are the paths of the binary and the PID file in Debian's package
	// strongswan-charon.
	charonBinary = "/usr/lib/ipsec/charon"
	charonPID    = "/var/run/charon.pid"
)

// Supervisor runs the IKE daemon, in its own container in the pod of pelago-node, while the
// configuration that Ensure writes is in Dir: only on gateways. Other nodes run no daemon and open
// no port.
type Supervisor struct {
	// Dir is IPsecOptions.Dir.
	Dir string
	// DrainTimeout bounds how long the daemon outlives ctx, until pelago-node no longer uses it
	// (IPsec.Left); 0: 10.5 s.
	DrainTimeout time.Duration
	// WatchInterval is how often the daemon is queried, and how long it may take to answer. It is
	// killed and started again if it leaves three requests in a row unanswered. 0: 10 s.
	WatchInterval time.Duration
	// Start starts the daemon with its environment; nil: Debian's charon.
	Start func(environment []string) (*exec.Cmd, error)
	Log   *slog.Logger
}

// ikeProcess is a running IKE daemon.
type ikeProcess struct {
	command *exec.Cmd
	conf    string
	started time.Time
	done    chan error
	// ended is closed once the process has ended.
	ended chan struct{}
}

// Run returns when ctx is done. With ESP in the kernel it then kills the daemon, which otherwise
// would delete all SAs: packets pass until the next daemon has negotiated new ones. ESP in the
// daemon ends with it, so it is terminated gracefully and notifies its peers.
func (s Supervisor) Run(ctx context.Context) error {
	file := filepath.Join(s.Dir, confName)
	if s.Start == nil {
		s.Start = startCharon
	}
	s.DrainTimeout = cmp.Or(s.DrainTimeout, drainTimeout)
	s.WatchInterval = cmp.Or(s.WatchInterval, watchInterval)
	if _, err := os.Stat(s.Dir); err != nil {
		return fmt.Errorf("supervise the IKE daemon: %w: mount the directory that pelago-node writes its configuration into", err)
	}
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	var d *ikeProcess
	var earliest time.Time
	for {
		conf, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("read the configuration of the IKE daemon: %w", err)
		}
		want := string(conf)
		if d != nil && d.conf != want {
			s.Log.Info("the IKE daemon is to stop: its configuration changed", "gateway", want != "")
			d.stop(syscall.SIGTERM)
			d = nil
		}
		if d == nil && want != "" && !time.Now().Before(earliest) {
			if d, err = s.start(file, want); err != nil {
				return err
			}
			s.Log.Info("the IKE daemon runs", "esp", espOf(want))
		}
		var done chan error
		if d != nil {
			done = d.done
			s.enlargeBuffers(d)
		}
		select {
		case <-ctx.Done():
			switch {
			case d == nil:
			case espOf(d.conf) == ESPKernel:
				d.stop(syscall.SIGKILL)
			default:
				s.awaitDrained()
				d.stop(syscall.SIGTERM)
			}
			return nil
		case err := <-done:
			s.Log.Error("the IKE daemon ended and is started again", "error", err, "after", restartDelay)
			d, earliest = nil, time.Now().Add(restartDelay)
		case <-tick.C:
		}
	}
}

// awaitDrained waits until pelago-node, if it ends as well, has moved the flows to other gateways.
func (s Supervisor) awaitDrained() {
	end, tick := time.After(s.DrainTimeout), time.NewTicker(pollInterval/10)
	defer tick.Stop()
	for {
		if _, err := os.Stat(filepath.Join(s.Dir, leftName)); err == nil {
			return
		}
		select {
		case <-end:
			s.Log.Info("the IKE daemon ends although pelago-node may still use it", "waited", s.DrainTimeout)
			return
		case <-tick.C:
		}
	}
}

func (s Supervisor) start(file, conf string) (*ikeProcess, error) {
	command, err := s.Start(append(os.Environ(), "STRONGSWAN_CONF="+file))
	if err != nil {
		return nil, fmt.Errorf("start the IKE daemon: %w: is strongswan-charon in the image?", err)
	}
	d := &ikeProcess{command: command, conf: conf, started: time.Now(), done: make(chan error, 1), ended: make(chan struct{})}
	go func() {
		d.done <- command.Wait()
		close(d.ended)
	}()
	go s.watch(d)
	return d, nil
}

// watch kills a daemon that hangs: it would neither rekey nor answer its peers, and each reconcile
// of pelago-node would wait for it. Requests are counted, not time, so that a machine that was
// suspended is not mistaken for a hung daemon.
func (s Supervisor) watch(d *ikeProcess) {
	tick := time.NewTicker(s.WatchInterval)
	defer tick.Stop()
	for unanswered := 0; ; {
		select {
		case <-d.ended:
			return
		case <-tick.C:
		}
		err := askCharon(filepath.Join(s.Dir, socketName), s.WatchInterval)
		if err == nil {
			unanswered = 0
			continue
		}
		if unanswered++; unanswered == maxUnanswered {
			s.Log.Error("the IKE daemon hangs and is killed", "unanswered requests", unanswered, "error", err)
			_ = d.command.Process.Kill() // it may have ended
			return
		}
	}
}

// enlargeBuffers prevents drops while a daemon that does ESP itself is not scheduled. It opens its
// sockets some time after its start.
func (s Supervisor) enlargeBuffers(d *ikeProcess) {
	if espOf(d.conf) != ESPUserspace || time.Since(d.started) > bootTimeout {
		return
	}
	if err := setReceiveBuffers(d.command.Process.Pid, receiveBuffer); err != nil {
		s.Log.Warn("packets may be lost on a busy node", "error", err)
	}
}

func (d *ikeProcess) stop(with syscall.Signal) {
	_ = d.command.Process.Signal(with) // it may have ended
	select {
	case <-d.done:
	case <-time.After(stopTimeout):
		// strongSwan 5.9.8 hangs if a vici connection is closed at the same time
		_ = d.command.Process.Kill() // it may have ended
		<-d.done
	}
}

func startCharon(environment []string) (*exec.Cmd, error) {
	// A killed daemon leaves its PID file, and the PID is soon reused in a container.
	if err := os.Remove(charonPID); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	command := exec.Command(charonBinary)
	command.Env, command.Stdout, command.Stderr = environment, os.Stdout, os.Stderr
	return command, command.Start()
}

// espOf is where ESP is done with that configuration.
func espOf(conf string) string {
	if strings.HasPrefix(conf, userspaceNote) {
		return ESPUserspace
	}
	return ESPKernel
}

// receiveBuffer is that of the IKE daemon's UDP sockets if it does ESP itself, bytes: some 4,000
// packets while the daemon is not scheduled. The kernel's default of 200 KiB is full within 50 ms
// at 5,000 packets/s, and the daemon has no option for it.
const receiveBuffer = 4 << 20

// setReceiveBuffers sets the receive buffers of the UDP sockets of a process, in bytes. The process
// must be a child of this one, or this one needs CAP_SYS_PTRACE (pidfd_getfd(2), Linux 5.6).
func setReceiveBuffers(pid, bytes int) error {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(process)
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("list the files of process %d: %w", pid, err)
	}
	var errs []error
	for _, e := range entries {
		number, err := strconv.Atoi(e.Name())
		if err == nil {
			err = setReceiveBuffer(process, number, bytes)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("enlarge the receive buffer of file %s of process %d: %w", e.Name(), pid, err))
		}
	}
	return errors.Join(errs...)
}

func setReceiveBuffer(process, number, bytes int) error {
	fd, err := unix.PidfdGetfd(process, number, 0)
	if errors.Is(err, unix.EBADF) { // closed since
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if errors.Is(err, unix.ENOTSOCK) || err == nil && protocol != unix.IPPROTO_UDP {
		return nil
	}
	if err != nil {
		return err
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bytes)
}
