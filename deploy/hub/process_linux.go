package hub

import (
	"os/exec"
	"syscall"
)

// detach gives a program its own process group, so that it does not get the terminal's Ctrl-C: only
// this process does, and then stops the programs. They end with this process.
func detach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
