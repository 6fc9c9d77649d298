package apiserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// process is a running program; its output goes to a file.
type process struct {
	name string
	log  string
	pid  int
	done chan struct{} // closed once the process has ended
}

// spawn starts a program of the server; its output is appended to the log of that name. The process
// ends with ours: the kernel sends the parent-death signal when the *thread* that started it ends,
// so a goroutine keeps that thread.
func (s *server) spawn(name string, args ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(s.dir.path, name+".log"), done: make(chan struct{})}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = out, out, s.dir.path
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		defer out.Close()
		err := cmd.Start()
		if err == nil {
			p.pid = cmd.Process.Pid
		}
		started <- err
		if err == nil {
			_ = cmd.Wait() // the exit status does not matter: processes end by being killed
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	s.processes = append(s.processes, p)
	return p, nil
}

// kill ends the process without grace (nothing of it is kept) and waits for its end.
func (p *process) kill() {
	select {
	case <-p.done:
	default:
		_ = syscall.Kill(p.pid, syscall.SIGKILL) // it may have ended since
		<-p.done
	}
}

// await polls ready until it returns nil, the process ends or ctx does.
func (p *process) await(ctx context.Context, ready func(context.Context) error) error {
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s exited while starting; the end of its log:\n%s", p.name, p.tail())
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w; the end of its log:\n%s", p.name, errors.Join(ctx.Err(), err), p.tail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// tail is the end of the log, at most 2 KiB.
func (p *process) tail() []byte {
	log, err := os.ReadFile(p.log)
	if err != nil {
		return []byte(err.Error())
	}
	return bytes.TrimSpace(log[max(0, len(log)-2048):])
}

// freePort returns a TCP port of the loopback address without a listener.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
