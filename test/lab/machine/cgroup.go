package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cgroupMount is where Linux distributions mount control groups.
const cgroupMount = "/sys/fs/cgroup"

// cgroupHierarchies returns the directories of all hierarchies with
// controllers: one on cgroup v2, one per controller on v1.
func cgroupHierarchies(mount string) (dirs []string, v2 bool, err error) {
	if _, err := os.Stat(filepath.Join(mount, "cgroup.controllers")); err == nil {
		return []string{mount}, true, nil
	}
	entries, err := os.ReadDir(mount)
	if err != nil {
		return nil, false, err
	}
	for _, e := range entries {
		dir := filepath.Join(mount, e.Name())
		if !e.IsDir() { // cpu -> cpu,cpuacct and the like
			continue
		}
		if _, err := os.Stat(filepath.Join(dir, "cgroup.controllers")); err == nil {
			continue // a v2 hierarchy next to the v1 ones
		}
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err == nil {
			dirs = append(dirs, dir)
		}
	}
	if len(dirs) == 0 {
		return nil, false, fmt.Errorf("no control group hierarchy is mounted below %s", mount)
	}
	return dirs, false, nil
}

// MakeCgroup makes the cgroup name (such as "/pelago-lab/pelago/g1-n1") in
// every hierarchy, ready for the kubelet to make children in it.
func MakeCgroup(name string) error {
	dirs, v2, err := cgroupHierarchies(cgroupMount)
	if err != nil {
		return fmt.Errorf("make cgroup %s: %w", name, err)
	}
	for _, hierarchy := range dirs {
		dir := hierarchy
		for part := range strings.SplitSeq(strings.Trim(name, "/"), "/") {
			if v2 {
				if err := delegate(dir); err != nil {
					return fmt.Errorf("make cgroup %s: %w", name, err)
				}
			}
			parent := dir
			dir = filepath.Join(dir, part)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("make cgroup %s: %w", name, err)
			}
			err := inheritCPUs(parent, dir)
			if err == nil && parent == hierarchy {
				_, err = weigh(dir, labWeight)
			}
			if err != nil {
				return fmt.Errorf("make cgroup %s: %w", name, err)
			}
		}
	}
	// Beside v1, runc makes the cgroups of pods in the v2 hierarchy, too. A CNI that attaches its
	// programs there may start before the first pod.
	if !v2 && unifiedHierarchy(cgroupMount) != cgroupMount {
		if err := os.MkdirAll(unifiedCgroup(name), 0o755); err != nil {
			return fmt.Errorf("make cgroup %s: %w", name, err)
		}
	}
	return nil
}

// PodCgroup is the directory of the v2 cgroup of a process; empty: it is in the root, as where
// there is no such hierarchy. The text is that of /proc/PID/cgroup (cgroups(7)).
func PodCgroup(text string) string {
	for line := range strings.Lines(text) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::/"); ok && path != "" {
			return unifiedCgroup(path)
		}
	}
	return ""
}

// unifiedCgroup is the directory of a cgroup in the v2 hierarchy, also one beside those of v1.
func unifiedCgroup(name string) string {
	return filepath.Join(unifiedHierarchy(cgroupMount), name)
}

func unifiedHierarchy(mount string) string {
	beside := filepath.Join(mount, "unified")
	if _, err := os.Stat(filepath.Join(beside, "cgroup.controllers")); err == nil {
		return beside
	}
	return mount
}

// delegate lets the children of a v2 cgroup use every controller it has.
func delegate(dir string) error {
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for controller := range strings.FieldsSeq(string(data)) {
		// One that cannot be enabled here (such as cpu with real-time tasks) is
		// the kubelet's to complain about if it needs it.
		_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0)
	}
	return nil
}

// CPU time is shared by weight. Without groups of their own the pods of all nodes would together
// weigh as much as one kubelet, since a control group weighs as much as one session outside
// (autogroup, sched(7)). On a busy machine probes would then fail, or API servers would stop
// answering. These are multiples of the default weight.
const (
	labWeight      = 4 // a lab against the test or the shell next to it
	programsWeight = 8 // API servers, kubelets and the like against the pods of one node
)

// JoinPrograms moves a process of a lab that is no pod, and those that it starts from then on, into
// cgroup name, next to the nodes'.
func JoinPrograms(name string, pid int) error {
	if err := MakeCgroup(name); err != nil {
		return err
	}
	dirs, _, err := cgroupHierarchies(cgroupMount)
	if err != nil {
		return err
	}
	for _, hierarchy := range dirs {
		dir := filepath.Join(hierarchy, name)
		weighed, err := weigh(dir, programsWeight)
		if err == nil && weighed {
			err = os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) { // it has ended
			return fmt.Errorf("move process %d to cgroup %s: %w", pid, name, err)
		}
	}
	return nil
}

// weigh gives a control group a multiple of the default weight. It reports whether dir belongs to
// the CPU controller.
func weigh(dir string, times int) (bool, error) {
	// of v1 and v2
	for name, normal := range map[string]int{"cpu.shares": 1024, "cpu.weight": 100} {
		file := filepath.Join(dir, name)
		if _, err := os.Stat(file); err == nil {
			return true, os.WriteFile(file, []byte(strconv.Itoa(times*normal)), 0)
		}
	}
	return false, nil
}

// inheritCPUs copies the CPU and memory nodes, which a v1 cpuset starts without.
func inheritCPUs(parent, dir string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		target := filepath.Join(dir, file)
		have, err := os.ReadFile(target)
		if err != nil || strings.TrimSpace(string(have)) != "" {
			continue // another hierarchy, or set already
		}
		value, err := os.ReadFile(filepath.Join(parent, file))
		if err != nil {
			return err
		}
		if err := os.WriteFile(target, value, 0); err != nil {
			return err
		}
	}
	return nil
}

// RemoveCgroup removes the cgroup name and all below it from every hierarchy,
// waiting up to limit for the processes in it to be gone.
func RemoveCgroup(name string, limit time.Duration) error {
	return removeCgroup(cgroupMount, name, limit)
}

func removeCgroup(mount, name string, limit time.Duration) error {
	entries, err := os.ReadDir(mount)
	if err != nil {
		return fmt.Errorf("remove cgroup %s: %w", name, err)
	}
	// Every directory is tried, also the v2 hierarchy next to v1 ones.
	roots := []string{mount}
	for _, e := range entries {
		if e.IsDir() {
			roots = append(roots, filepath.Join(mount, e.Name()))
		}
	}
	var errs []error
	for _, root := range roots {
		dir := filepath.Join(root, name)
		deadline := time.Now().Add(limit)
		for {
			err := removeTree(dir)
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				errs = append(errs, fmt.Errorf("remove cgroup %s: %w", dir, err))
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	return errors.Join(errs...)
}

// removeTree removes a cgroup directory, the deepest first. The files in it go
// with the directories.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
