package machine

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// service is a program with its input.
type service struct {
	argv  []string
	env   []string // added to the environment of this process
	input string
}

// reaper starts processes and collects every child of pid 1: its own, whose
// exit it reports, and the orphans of containers.
type reaper struct {
	mu      sync.Mutex
	waiting map[int]chan unix.WaitStatus
	child   chan os.Signal
	logs    string // directory of the services' logs
}

func newReaper(logs string) *reaper {
	r := &reaper{waiting: map[int]chan unix.WaitStatus{}, child: make(chan os.Signal, 1), logs: logs}
	signal.Notify(r.child, unix.SIGCHLD)
	return r
}

// loop collects children for ever.
func (r *reaper) loop() {
	for range r.child {
		for {
			// Under the lock, so that a child is registered before it is collected.
			r.mu.Lock()
			var status unix.WaitStatus
			pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
			if done, ok := r.waiting[pid]; ok {
				done <- status
				delete(r.waiting, pid)
			}
			r.mu.Unlock()
			if pid <= 0 && !errors.Is(err, unix.EINTR) {
				break
			}
		}
	}
}

// start runs s with its output in the log of name.
func (r *reaper) start(name string, s service) (<-chan unix.WaitStatus, error) {
	log, err := os.OpenFile(filepath.Join(r.logs, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(s.argv[0], s.argv[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	if len(s.env) > 0 {
		cmd.Env = append(os.Environ(), s.env...)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if s.input != "" {
		input, err := inputFile(s.input)
		if err != nil {
			return nil, err
		}
		defer input.Close()
		cmd.Stdin = input
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	done := make(chan unix.WaitStatus, 1)
	r.waiting[cmd.Process.Pid] = done
	return done, cmd.Process.Release()
}

// inputFile returns an open, nameless file with text in it.
func inputFile(text string) (*os.File, error) {
	f, err := os.CreateTemp("", "input-")
	if err != nil {
		return nil, err
	}
	_, err = f.WriteString(text)
	if err == nil {
		_, err = f.Seek(0, 0)
	}
	return f, errors.Join(err, os.Remove(f.Name()))
}

// run starts s and waits until it has ended.
func (r *reaper) run(name string, s service) error {
	done, err := r.start(name, s)
	if err != nil {
		return fmt.Errorf("run %s: %w", strings.Join(s.argv, " "), err)
	}
	if status := <-done; !status.Exited() || status.ExitStatus() != 0 {
		return fmt.Errorf("run %s: %s (see %s.log)", strings.Join(s.argv, " "), describe(status), name)
	}
	return nil
}

// supervise runs s for ever.
func (r *reaper) supervise(name string, s service) {
	for {
		done, err := r.start(name, s)
		if err != nil {
			slog.Error("service does not start", "service", name, "error", err)
		} else {
			slog.Warn("service ended and is started again", "service", name, "end", describe(<-done))
		}
		time.Sleep(time.Second) // one that ends at once must not keep a processor busy
	}
}

func describe(status unix.WaitStatus) string {
	if status.Signaled() {
		return "killed by " + unix.SignalName(status.Signal())
	}
	return fmt.Sprintf("exit status %d", status.ExitStatus())
}
