package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/test/lab/machine"
)

// endLimit bounds how long killed processes may take to disappear.
const endLimit = 20 * time.Second

// Down removes the lab of that name with everything that it made, however far
// its bring-up came. The error wraps ErrNotFound if there is nothing of it.
//
// It continues after a failure and reports all of them; a second Down then
// finishes what the first could not.
func Down(ctx context.Context, name string, progress func(string)) error {
	if err := ValidateName(name); err != nil {
		return err
	}
	if err := requireRoot(); err != nil {
		return err
	}
	unlock, err := lockState(ctx, name, false)
	if err != nil {
		return err
	}
	defer unlock()
	l := &Lab{dir: filepath.Join(stateRoot, name), progress: progress}
	// A record that cannot be read must not keep the rest from being removed.
	if l.record, err = readRecord(name); err != nil {
		l.record.Plan.Name = name
	}
	return l.down(ctx)
}

// Down removes the lab with everything that it made.
func (l *Lab) Down(ctx context.Context) error { return Down(ctx, l.Name(), l.progress) }

func (l *Lab) down(ctx context.Context) error {
	if err := l.endProcesses(ctx); err != nil {
		return err // nothing else can be removed from under live processes
	}
	l.report("processes are ended")
	var errs []error
	for _, name := range l.ownNamespaces() {
		errs = append(errs, deleteNamespace(name))
	}
	errs = append(errs, deleteLink(hostDevice(l.Name())))
	l.report("network is removed")
	errs = append(errs,
		machine.RemoveCgroup(filepath.Join("/", cgroupParent, l.Name()), endLimit),
		removeState(l.dir), restoreMachineLimits())
	_ = os.Remove(stateRoot) // fails, as it should, while another lab exists
	_ = os.Remove(netnsDir)  // likewise
	if entries, _ := os.ReadDir(stateRoot); len(entries) == 0 {
		errs = append(errs, machine.RemoveCgroup("/"+cgroupParent, time.Second))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("bring down lab %s: %w", l.Name(), err)
	}
	l.report("files are removed")
	return nil
}

// endProcesses kills what the lab recorded, then what carries its mark.
// SIGKILL at once: no data of a lab outlives it. A node's first process takes
// everything in its pid namespace with it.
func (l *Lab) endProcesses(ctx context.Context) error {
	recorded, err := l.allRecorded()
	if err != nil {
		return fmt.Errorf("bring down lab %s: %w", l.Name(), err)
	}
	if err := kill(recorded); err != nil {
		return fmt.Errorf("bring down lab %s: %w", l.Name(), err)
	}
	if l.record.ID == "" || ctx.Err() != nil {
		return ctx.Err()
	}
	strays, err := l.strays()
	if err == nil {
		err = kill(strays)
	}
	if err != nil {
		return fmt.Errorf("bring down lab %s: %w", l.Name(), err)
	}
	return nil
}

// kill ends all processes and waits until they are gone.
func kill(processes []process) error {
	var errs []error
	for _, p := range processes {
		errs = append(errs, p.signal(syscall.SIGKILL))
	}
	return errors.Join(append(errs, awaitExit(processes, endLimit))...)
}

// ownNamespaces lists the lab's network namespaces: those of its plan and, in
// case that is lost, those that are named like a lab's.
func (l *Lab) ownNamespaces() []string {
	pattern := l.namespacePattern()
	var names []string
	if l.record.ID != "" {
		names = l.record.Plan.namespaces()
	}
	entries, _ := os.ReadDir(netnsDir) // not there: no namespaces
	for _, e := range entries {
		if pattern.MatchString(e.Name()) && !slices.Contains(names, e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names
}

// namespacePattern matches the names that Plan gives to namespaces of the lab.
func (l *Lab) namespacePattern() *regexp.Regexp {
	return regexp.MustCompile("^" + l.Name() + "-(" + routerName + "|" + hubName + `(-switch)?|g[0-9]+(-switch|-n[0-9]+)?)$`)
}

// deleteLink removes a device of the host; one that is not there is no error.
func deleteLink(name string) error {
	link, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err == nil {
		err = netlink.LinkDel(link)
	}
	// Freed with the router's namespace in the same moment.
	if err != nil && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("remove device %s: %w", name, err)
	}
	return nil
}

// removeState removes the state directory. Mounts below it (a node makes none
// that the host sees) are unmounted first: what they show is not the lab's.
func removeState(dir string) error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("look for mounts below %s: %w", dir, err)
	}
	for _, point := range mountsBelow(string(mounts), dir) {
		if err := unix.Unmount(point, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", point, err)
		}
	}
	if err := os.RemoveAll(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}

// mountsBelow returns the mount points in or at dir, the innermost first.
func mountsBelow(mountinfo, dir string) []string {
	var points []string
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		if len(fields) > 4 && (fields[4] == dir || strings.HasPrefix(fields[4], dir+"/")) {
			points = append(points, fields[4])
		}
	}
	slices.Reverse(points)
	return points
}
