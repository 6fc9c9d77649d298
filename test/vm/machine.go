package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const qemu = "/usr/bin/qemu-system-x86_64"

// machine is the VM. It has two serial ports and nothing else: the kernel's console and what the
// tests write.
type machine struct {
	kernel, initramfs string
	console           string // a file for what the kernel says
	cpus, memory      int    // MiB
	accelerator       string
}

func (m machine) args() []string {
	return []string{
		"-n", "10", qemu, "-nodefaults", "-no-user-config", "-machine", "q35", "-accel", m.accelerator, "-cpu", "max",
		"-smp", strconv.Itoa(m.cpus), "-m", strconv.Itoa(m.memory), "-kernel", m.kernel, "-initrd", m.initramfs,
		// A panic ends the machine, and so this program, at once.
		"-append", "console=ttyS0 quiet panic=-1", "-no-reboot",
		"-serial", "file:" + m.console, "-chardev", "stdio,id=tests,signal=off", "-serial", "chardev:tests", "-display", "none", "-monitor", "none",
	}
}

// run boots the machine and hands every line that the guest writes to line, until it turns itself
// off.
func (m machine) run(ctx context.Context, line func(string)) error {
	if !exists(qemu) {
		return missing(qemu, "qemu-system-x86")
	}
	command := exec.CommandContext(ctx, "nice", m.args()...)
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	command.WaitDelay = 5 * time.Second
	var said strings.Builder
	command.Stderr = &said
	out, err := command.StdoutPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return fmt.Errorf("start the VM: %w", err)
	}
	read := lines(out, line)
	err = errors.Join(read, command.Wait())
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("the VM did not come to its end: %w\n%s", cause, m.last())
	}
	if err != nil {
		return fmt.Errorf("run the VM: %w: %s\n%s", err, said.String(), m.last())
	}
	return nil
}

func lines(r io.Reader, line func(string)) error {
	in := bufio.NewReader(r)
	for {
		text, err := in.ReadString('\n')
		if text != "" {
			line(strings.TrimRight(text, "\r\n"))
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// last is the end of what the kernel said.
func (m machine) last() string {
	raw, err := os.ReadFile(m.console)
	if err != nil || len(raw) == 0 {
		return "the kernel said nothing"
	}
	all := strings.Split(strings.TrimSpace(string(raw)), "\n")
	return "the kernel's last words (all in " + m.console + "):\n" + strings.Join(all[max(0, len(all)-30):], "\n")
}
