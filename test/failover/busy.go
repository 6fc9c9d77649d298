package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

const (
	busyCommand = "busy"
	// busyLimit bounds how long the processors are kept busy, whatever happens to this program.
	busyLimit = 30 * time.Second
)

// startBusy starts a process per processor that does nothing but run.
func startBusy() ([]*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	var all []*exec.Cmd
	for range runtime.NumCPU() {
		cmd := exec.Command(self, busyCommand, busyLimit.String())
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			endBusy(all)
			return nil, fmt.Errorf("keep a processor busy: %w", err)
		}
		all = append(all, cmd)
	}
	return all, nil
}

func endBusy(all []*exec.Cmd) {
	for _, cmd := range all {
		_ = cmd.Process.Kill() // one that has ended is what is wanted
		_ = cmd.Wait()         // "killed"
	}
}

// busy is such a process.
func busy(text string) error {
	limit, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("%s %q: %w", busyCommand, text, err)
	}
	runtime.GOMAXPROCS(1)
	for end := time.Now().Add(limit); time.Now().Before(end); {
	}
	return nil
}
