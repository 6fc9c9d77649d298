package lab

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/test/lab/machine"
)

// idVariable marks every process of a lab in its environment, with the lab's id.
const idVariable = "PELAGO_LAB_ID"

// process identifies one process for ever: pids come back, a pid with its start
// time and the machine's boot does not.
type process struct {
	Name  string `json:"name"`
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks since boot, /proc/PID/stat field 22
	Boot  string `json:"boot"`  // /proc/sys/kernel/random/boot_id
}

// procStat is what is used of /proc/PID/stat.
type procStat struct {
	state byte
	start uint64
}

// parseStat reads the line of /proc/PID/stat. The command name in parentheses
// may hold spaces and parentheses itself, so fields count from the last ")".
func parseStat(line string) (procStat, error) {
	end := strings.LastIndexByte(line, ')')
	fields := strings.Fields(line[end+1:])
	if end < 0 || len(fields) < 20 {
		return procStat{}, fmt.Errorf("parse process status %q: too short", line)
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return procStat{}, fmt.Errorf("parse the start time in process status %q: %w", line, err)
	}
	return procStat{state: fields[0][0], start: start}, nil
}

func readStat(pid int) (procStat, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return procStat{}, err
	}
	return parseStat(string(data))
}

func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data)), err
}

// identify describes a process that is alive now.
func identify(name string, pid int) (process, error) {
	stat, err := readStat(pid)
	if err != nil {
		return process{}, err
	}
	boot, err := bootID()
	return process{Name: name, PID: pid, Start: stat.start, Boot: boot}, err
}

// state returns the letter of the process's state ('S', 'T', …), 0 if this
// very process is gone or a zombie.
func (p process) state() byte {
	if boot, err := bootID(); err != nil || boot != p.Boot {
		return 0
	}
	stat, err := readStat(p.PID)
	if err != nil || stat.start != p.Start || stat.state == 'Z' || stat.state == 'X' {
		return 0
	}
	return stat.state
}

func (p process) alive() bool { return p.state() != 0 }

// signal sends sig to this very process; a process that is gone is no error.
// The handle is taken before the identity is checked, so that a recycled pid
// is never hit.
func (p process) signal(sig syscall.Signal) error {
	handle, err := os.FindProcess(p.PID)
	if err != nil {
		return nil
	}
	defer handle.Release()
	if !p.alive() {
		return nil
	}
	if err := handle.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %s to %s (pid %d): %w", unix.SignalName(sig), p.Name, p.PID, err)
	}
	return nil
}

// awaitExit waits until none of the processes is left.
func awaitExit(processes []process, limit time.Duration) error {
	deadline := time.Now().Add(limit)
	for _, p := range processes {
		for p.alive() {
			if time.Now().After(deadline) {
				return fmt.Errorf("end %s (pid %d): still alive after %s", p.Name, p.PID, limit)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	return nil
}

// program is a process to be started for the lab.
type program struct {
	name      string   // unique in the lab, such as "g1/etcd"
	namespace string   // network namespace
	argv      []string // argv[0] is a path
	log       string   // file for its output
	clone     uintptr  // further namespaces to make (CLONE_NEW…)
	// realtime: the program gives itself a real-time priority, for which a cgroup of v1 has no
	// runtime (CONFIG_RT_GROUP_SCHED), so it stays outside of the lab's cgroup.
	realtime bool
}

// processFile is where a started process is recorded.
func (l *Lab) processFile(name string) string {
	return filepath.Join(l.dir, "process", strings.ReplaceAll(name, "/", "_")+".json")
}

// recorded returns the process recorded under name; the zero value (never
// alive) if none exists.
func (l *Lab) recorded(name string) process {
	var p process
	data, err := os.ReadFile(l.processFile(name))
	if err != nil || json.Unmarshal(data, &p) != nil {
		return process{}
	}
	return p
}

// allRecorded returns every process that the lab recorded.
func (l *Lab) allRecorded() ([]process, error) {
	files, err := filepath.Glob(filepath.Join(l.dir, "process", "*.json"))
	if err != nil {
		return nil, err
	}
	var all []process
	for _, file := range files {
		var p process
		data, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(data, &p)
		}
		if err != nil {
			return nil, fmt.Errorf("read process record %s: %w", file, err)
		}
		all = append(all, p)
	}
	return all, nil
}

// ensureProcess starts prog unless it is running already.
func (l *Lab) ensureProcess(prog program) (process, error) {
	if p := l.recorded(prog.name); p.alive() {
		return p, nil
	}
	p, err := l.start(prog)
	if err != nil {
		return process{}, fmt.Errorf("start %s: %w", prog.name, err)
	}
	return p, nil
}

// start runs prog in its own session, detached from the caller, and records it.
func (l *Lab) start(prog program) (process, error) {
	if err := os.MkdirAll(filepath.Dir(prog.log), 0o755); err != nil {
		return process{}, err
	}
	log, err := os.OpenFile(prog.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return process{}, err
	}
	defer log.Close()
	cmd := exec.Command(prog.argv[0], prog.argv[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + nodePath, "HOME=/root", idVariable + "=" + l.record.ID}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: prog.clone}
	if err := inNamespace(prog.namespace, cmd.Start); err != nil {
		return process{}, err
	}
	// Reap it if it ends before we do; the reason is in its log.
	go func() { _ = cmd.Wait() }()
	p, err := identify(prog.name, cmd.Process.Pid)
	if err == nil && !prog.realtime {
		err = machine.JoinPrograms(l.cgroup(programs), cmd.Process.Pid)
	}
	if err == nil {
		err = writeJSON(l.processFile(prog.name), p)
	}
	if err != nil {
		return process{}, errors.Join(err, cmd.Process.Kill())
	}
	return p, nil
}

// strays finds processes that carry the lab's mark but were not recorded:
// those of an "up" that was killed between starting and recording one, and
// what "exec" started in a namespace.
func (l *Lab) strays() ([]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	mark := []byte(idVariable + "=" + l.record.ID)
	var found []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		p, err := identify("stray process", pid)
		if err != nil {
			continue // ended meanwhile
		}
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil {
			continue
		}
		for variable := range bytes.SplitSeq(environ, []byte{0}) {
			if bytes.Equal(variable, mark) {
				found = append(found, p)
			}
		}
	}
	return found, nil
}

// lastLines returns the end of a log for an error message.
func lastLines(file string, n int) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
