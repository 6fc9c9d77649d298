package hub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

const (
	// restartDelay is the time after which a program that has ended is started again.
	restartDelay = time.Second
	// endTime is how long a program may take to end before it is killed.
	endTime = 20 * time.Second
)

// Supervisor runs programs, and starts them again when they end.
type Supervisor struct {
	// Dir takes their logs, NAME.log.
	Dir   string
	group sync.WaitGroup
}

// Wait waits until all programs have ended.
func (s *Supervisor) Wait() { s.group.Wait() }

// Run starts a program, until ctx ends.
func (s *Supervisor) Run(ctx context.Context, p Process) {
	s.group.Go(func() {
		for ctx.Err() == nil {
			if err := s.once(ctx, p); err != nil && ctx.Err() == nil {
				s.note(p, err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(restartDelay):
			}
		}
	})
}

// once runs the program until it or ctx ends, with its output in NAME.log.
func (s *Supervisor) once(ctx context.Context, p Process) error {
	log, err := os.OpenFile(filepath.Join(s.Dir, p.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, p.Args[0], p.Args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = endTime
	detach(cmd)
	return cmd.Run()
}

func (s *Supervisor) note(p Process, err error) {
	f, errOpen := os.OpenFile(filepath.Join(s.Dir, p.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if errOpen != nil {
		return
	}
	fmt.Fprintf(f, "pelago: %s ended (%v) and is started again\n", p.Name, err)
	_ = f.Close() // the log is complete; there is no caller to return this to
}

// WriteChanged replaces a file, mode 0600, unless it has the content. Programs that read it see the
// former or the new one.
func WriteChanged(file string, content []byte) error {
	if have, err := os.ReadFile(file); err == nil && bytes.Equal(have, content) {
		return nil
	}
	if err := errors.Join(os.WriteFile(file+".new", content, 0o600), os.Rename(file+".new", file)); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}
