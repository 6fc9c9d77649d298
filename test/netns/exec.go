package netns

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	vnetns "github.com/vishvananda/netns"
)

// Do runs f on a thread that is inside the namespace. Sockets opened in f stay in the namespace
// afterwards; goroutines started in f do not run there. f must not unlock the thread.
func (n *NS) Do(f func() error) error {
	return excursion(func() error {
		if err := vnetns.Set(n.fd); err != nil {
			return fmt.Errorf("enter namespace %s: %w", n.Name, err)
		}
		return f()
	})
}

// excursion runs f, which may change the network namespace of its thread, and returns to the
// namespace of before. A thread that cannot return stays locked to its goroutine, so that no other
// goroutine ever runs in the wrong namespace.
func excursion(f func() error) (err error) {
	runtime.LockOSThread()
	home, err := vnetns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open the current namespace: %w", err)
	}
	defer home.Close()
	defer func() {
		if back := vnetns.Set(home); back != nil {
			err = errors.Join(err, fmt.Errorf("return to the namespace of before: %w", back))
			return
		}
		runtime.UnlockOSThread()
	}()
	return f()
}

// Start starts cmd inside the namespace (a process inherits the network namespace of the thread
// that forks it); the caller waits for it. /sys is the caller's: a program that reads
// /sys/class/net sees other devices.
func (n *NS) Start(cmd *exec.Cmd) error {
	return n.Do(cmd.Start)
}

// Run runs a command inside the namespace to its end and returns its standard output. Its error
// names the command and carries what it wrote to standard error.
func (n *NS) Run(name string, args ...string) ([]byte, error) {
	return n.RunInput("", name, args...)
}

// RunInput is Run with a text for the command's standard input.
func (n *NS) RunInput(input, name string, args ...string) ([]byte, error) {
	cmd := exec.Command(name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	err := n.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return stdout.Bytes(), fmt.Errorf("run %q in %s: %w: %s", strings.Join(cmd.Args, " "), n.Name, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.Bytes(), nil
}

// Sysctl sets a kernel parameter inside the namespace. The key is a path below /proc/sys with
// slashes, because device names may contain dots: "net/ipv4/ip_forward".
func (n *NS) Sysctl(key, value string) error {
	err := n.Do(func() error {
		return os.WriteFile(filepath.Join("/proc/sys", key), []byte(value), 0)
	})
	if err != nil {
		return fmt.Errorf("set %s=%s in %s: %w", key, value, n.Name, err)
	}
	return nil
}
