package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// cpuControllers are the control groups whose children may get idle priority as a whole: of cgroup
// v1, of v2 (Linux 5.15).
var cpuControllers = []string{"/sys/fs/cgroup/cpu", "/sys/fs/cgroup"}

// runIdle gives a process, and those that it starts from then on, only CPU time that nothing else
// needs. SCHED_IDLE on the processes is not enough: it applies only within a control group or
// session (autogroup, sched(7)), and as a session of their own they would get a quarter of a lab's
// share.
func runIdle(pid int) error {
	for _, root := range cpuControllers {
		group := filepath.Join(root, "pelago-background")
		if err := os.Mkdir(group, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			continue
		}
		if os.WriteFile(filepath.Join(group, "cpu.idle"), []byte("1"), 0) != nil {
			continue // not the hierarchy of the controller, or an older kernel
		}
		if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			return fmt.Errorf("give process %d idle priority: %w", pid, err)
		}
		return nil
	}
	return errors.New("no control group has cpu.idle: mount the cpu controller of cgroups, or use Linux 5.15 or later")
}

// removeIdle removes the control group of runIdle, when no process is left in it.
func removeIdle() {
	for _, root := range cpuControllers {
		// it is not there, or something that a test left runs in it
		_ = os.Remove(filepath.Join(root, "pelago-background"))
	}
}
