package cable

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	// look is how often the supervisor looks at the configuration.
	look = 300 * time.Millisecond
	// pause before a daemon that ended is started again.
	pause = time.Second
	// farewell is how long at most ESP in the daemon goes on at the end, while pelago-node, which ends at the same time, moves
	// the flows to other gateways. leave is how long a daemon may take leave of its peers then. The pod's grace period is longer
	// than both.
	farewell = 2500 * time.Millisecond
	leave    = 1500 * time.Millisecond
	// charonBinary is where Debian's package strongswan-charon has it, and charonPID where the daemon notes its process id.
	charonBinary = "/usr/lib/ipsec/charon"
	charonPID    = "/var/run/charon.pid"
)

// Supervisor runs the IKE daemon, in a container of its own beside pelago-node. It runs while the configuration that Ensure
// writes is in Dir, so on gateways only: elsewhere nothing runs and nothing listens.
type Supervisor struct {
	// Dir is IPsecOptions.Dir.
	Dir string
	// Farewell is how long at most the daemon outlives ctx, until pelago-node has left (IPsec.Left); 0: 2.5 s.
	Farewell time.Duration
	// Start starts the daemon with its environment; nil: Debian's charon.
	Start func(environment []string) (*exec.Cmd, error)
	Log   *slog.Logger
}

// running is a daemon that was started.
type running struct {
	command *exec.Cmd
	as      string // its configuration
	began   time.Time
	done    chan error
}

// Run returns when ctx has ended. With ESP in the kernel it then kills the daemon, which would take all keys away in leaving: so
// packets pass until the next daemon has agreed on new ones. ESP in the daemon ends with it, and the peers are told.
func (s Supervisor) Run(ctx context.Context) error {
	file := filepath.Join(s.Dir, confName)
	if s.Start == nil {
		s.Start = startCharon
	}
	if s.Farewell == 0 {
		s.Farewell = farewell
	}
	if _, err := os.Stat(s.Dir); err != nil {
		return fmt.Errorf("supervise the IKE daemon: %w: mount the directory that pelago-node writes its configuration into", err)
	}
	tick := time.NewTicker(look)
	defer tick.Stop()
	var r *running
	var earliest time.Time
	for {
		conf, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("read the configuration of the IKE daemon: %w", err)
		}
		want := string(conf)
		if r != nil && r.as != want {
			s.Log.Info("the IKE daemon is to stop: its configuration changed", "gateway", want != "")
			r.stop(syscall.SIGTERM)
			r = nil
		}
		if r == nil && want != "" && !time.Now().Before(earliest) {
			if r, err = s.start(file, want); err != nil {
				return err
			}
			s.Log.Info("the IKE daemon runs", "esp", espOf(want))
		}
		var done chan error
		if r != nil {
			done = r.done
			s.widen(r)
		}
		select {
		case <-ctx.Done():
			switch {
			case r == nil:
			case espOf(r.as) == ESPKernel:
				r.stop(syscall.SIGKILL)
			default:
				s.awaitLeft()
				r.stop(syscall.SIGTERM)
			}
			return nil
		case err := <-done:
			s.Log.Error("the IKE daemon ended and is started again", "error", err, "after", pause)
			r, earliest = nil, time.Now().Add(pause)
		case <-tick.C:
		}
	}
}

// awaitLeft waits until pelago-node has moved the flows away, if it ends at all.
func (s Supervisor) awaitLeft() {
	end, tick := time.After(s.Farewell), time.NewTicker(look/10)
	defer tick.Stop()
	for {
		if _, err := os.Stat(filepath.Join(s.Dir, leftName)); err == nil {
			return
		}
		select {
		case <-end:
			s.Log.Info("the IKE daemon ends without a word of pelago-node", "waited", s.Farewell)
			return
		case <-tick.C:
		}
	}
}

func (s Supervisor) start(file, conf string) (*running, error) {
	command, err := s.Start(append(os.Environ(), "STRONGSWAN_CONF="+file))
	if err != nil {
		return nil, fmt.Errorf("start the IKE daemon: %w: is strongswan-charon in the image?", err)
	}
	r := &running{command: command, as: conf, began: time.Now(), done: make(chan error, 1)}
	go func() { r.done <- command.Wait() }()
	return r, nil
}

// widen gives a daemon that does ESP itself time to be scheduled. It opens its sockets some time after its start.
func (s Supervisor) widen(r *running) {
	if espOf(r.as) != ESPUserspace || time.Since(r.began) > boot {
		return
	}
	if _, err := widen(r.command.Process.Pid, udpQueue); err != nil {
		s.Log.Warn("packets may be lost on a busy node", "error", err)
	}
}

func (r *running) stop(with syscall.Signal) {
	_ = r.command.Process.Signal(with) // it may have ended
	select {
	case <-r.done:
	case <-time.After(leave): // strongSwan 5.9.8 hangs when a vici connection is closed at this very moment
		_ = r.command.Process.Kill() // it may end this moment
		<-r.done
	}
}

func startCharon(environment []string) (*exec.Cmd, error) {
	// One that was killed leaves its process id, which in a container soon is somebody else's.
	if err := os.Remove(charonPID); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	command := exec.Command(charonBinary)
	command.Env, command.Stdout, command.Stderr = environment, os.Stdout, os.Stderr
	return command, command.Start()
}

// espOf says what does ESP by a configuration of the daemon.
func espOf(conf string) string {
	if strings.HasPrefix(conf, userspaceNote) {
		return ESPUserspace
	}
	return ESPKernel
}
