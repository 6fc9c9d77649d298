// Command guest is the first process in the VM of package test/vm: it mounts what tests need, loads
// modules, runs test binaries one after the other with their output on the second serial port, and
// turns the machine off.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/test/vm/job"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "guest: this is the init of the VM that `go run ./test/vm` boots; run that instead")
		os.Exit(2)
	}
	out := io.Writer(os.Stderr) // the kernel's console, until there is another
	if err := mounts(); err != nil {
		say(out, job.Event{Kind: job.Fail, Name: "mount", Text: err.Error()})
	} else if console, err := openConsole(); err != nil {
		say(out, job.Event{Kind: job.Fail, Name: "console", Text: err.Error()})
	} else {
		out = console
		if err := run(out); err != nil {
			say(out, job.Event{Kind: job.Fail, Name: "guest", Text: err.Error()})
		}
	}
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		say(out, job.Event{Kind: job.Fail, Name: "power off", Text: err.Error()})
	}
	select {} // the kernel panics if its first process ends
}

func say(out io.Writer, e job.Event) { fmt.Fprintln(out, e) }

func run(out io.Writer) error {
	var plan job.Plan
	raw, err := os.ReadFile(job.File)
	if err == nil {
		err = json.Unmarshal(raw, &plan)
	}
	if err != nil {
		return fmt.Errorf("read what to do: %w", err)
	}
	if err := environment(); err != nil {
		return err
	}
	if err := load(plan.Modules); err != nil {
		return err
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fmt.Errorf("ask for the kernel's release: %w", err)
	}
	say(out, job.Event{Kind: job.Up, Name: unix.ByteSliceToString(u.Release[:])})
	for _, j := range plan.Jobs {
		say(out, job.Event{Kind: job.Begin, Name: j.Name})
		begin := time.Now()
		status := do(out, j)
		say(out, job.Event{Kind: job.End, Name: j.Name, Status: status, Took: time.Since(begin)})
	}
	return nil
}

// do runs one test binary and returns its exit status.
func do(out io.Writer, j job.Job) int {
	command := exec.Command(j.Command[0], j.Command[1:]...)
	command.Dir, command.Stdout, command.Stderr = j.Dir, out, out
	// A daemon that a test left behind holds the output open; it is not waited for.
	command.WaitDelay = time.Second
	err := command.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return exit.ExitCode()
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		fmt.Fprintf(out, "run %s: %v\n", j.Command[0], err)
		return 127
	}
	return 0
}

// mounts mounts the file systems that a booted machine has. The root is the initramfs itself.
func mounts() error {
	var errs []error
	for _, m := range []struct{ kind, on, options string }{
		{"proc", "/proc", ""},
		{"sysfs", "/sys", ""},
		{"devtmpfs", "/dev", ""},
		{"devpts", "/dev/pts", ""},
		{"tmpfs", "/dev/shm", ""},
		{"tmpfs", "/tmp", "mode=1777"},
		{"tmpfs", "/run", "mode=755"},
		{"cgroup2", "/sys/fs/cgroup", ""},
		{"bpf", "/sys/fs/bpf", ""},
		{"debugfs", "/sys/kernel/debug", ""},
		{"tracefs", "/sys/kernel/tracing", ""},
	} {
		err := os.MkdirAll(m.on, 0o755)
		if err == nil {
			err = unix.Mount(m.kind, m.on, m.kind, 0, m.options)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("mount %s on %s: %w", m.kind, m.on, err))
		}
	}
	for name, target := range map[string]string{
		"/dev/fd": "/proc/self/fd", "/dev/stdin": "fd/0", "/dev/stdout": "fd/1", "/dev/stderr": "fd/2",
	} {
		if err := os.Symlink(target, name); err != nil && !errors.Is(err, os.ErrExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// openConsole opens the serial port without translation of line ends.
func openConsole() (*os.File, error) {
	f, err := os.OpenFile(job.Console, os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fmt.Errorf("open the serial port: %w", err)
	}
	settings, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err == nil {
		settings.Oflag &^= unix.OPOST
		settings.Cflag = settings.Cflag&^unix.CBAUD | unix.B115200
		err = unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, settings)
	}
	if err != nil {
		return nil, fmt.Errorf("set up the serial port %s: %w", job.Console, err)
	}
	return f, nil
}

func environment() error {
	for k, v := range map[string]string{"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "TMPDIR": "/tmp"} {
		if err := os.Setenv(k, v); err != nil {
			return fmt.Errorf("set %s: %w", k, err)
		}
	}
	if err := unix.Sethostname([]byte("vm")); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("bring up lo: %w: %s", err, out)
	}
	return nil
}

// load loads the modules without which the tests would test something else, or nothing.
func load(modules []string) error {
	var errs []error
	for _, m := range modules {
		if out, err := exec.Command("modprobe", m).CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("load module %s: %w: %s", m, err, strings.TrimSpace(string(out))))
		}
	}
	return errors.Join(errs...)
}
