package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// netnsDir is where iproute2 looks for named network namespaces.
const netnsDir = "/run/netns"

// onThread runs f on a thread of its own that is thrown away afterwards, so
// that f may move it into other namespaces.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the runtime ends the thread with the goroutine.
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}

// inNamespace runs f on a thread inside a named network namespace; processes
// that f starts are born there.
func inNamespace(name string, f func() error) error {
	return onThread(func() error {
		ns, err := netns.GetFromName(name)
		if err != nil {
			return fmt.Errorf("open network namespace %s: %w", name, err)
		}
		defer ns.Close()
		if err := netns.Set(ns); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", name, err)
		}
		return f()
	})
}

// ensureNamespace makes a named network namespace with its loopback up, and the
// sysctls (paths below /proc/sys/net) set.
func ensureNamespace(name string, sysctls map[string]string) error {
	if !isNamespace(name) {
		// A file that is no namespace is left over from an interrupted attempt.
		if err := os.Remove(filepath.Join(netnsDir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("make network namespace %s: %w", name, err)
		}
		err := onThread(func() error {
			ns, err := netns.NewNamed(name)
			if err != nil {
				return fmt.Errorf("make network namespace %s: %w", name, err)
			}
			return ns.Close()
		})
		if err != nil {
			return err
		}
	}
	return inNamespace(name, func() error {
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err != nil {
			return fmt.Errorf("bring up the loopback of %s: %w", name, err)
		}
		for key, value := range sysctls {
			if err := os.WriteFile(filepath.Join("/proc/sys/net", key), []byte(value), 0); err != nil {
				return fmt.Errorf("set net/%s=%s in %s: %w", key, value, name, err)
			}
		}
		return nil
	})
}

// isNamespace reports whether the named file is a mounted network namespace.
func isNamespace(name string) bool {
	var st unix.Statfs_t
	return unix.Statfs(filepath.Join(netnsDir, name), &st) == nil && st.Type == unix.NSFS_MAGIC
}

// deleteNamespace removes a named namespace; one that is not there is no error.
// The kernel frees it, with its links, when the last process in it is gone.
func deleteNamespace(name string) error {
	file := filepath.Join(netnsDir, name)
	if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if isNamespace(name) {
		if err := unix.Unmount(file, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount network namespace %s: %w", name, err)
		}
	}
	if err := os.Remove(file); err != nil {
		return fmt.Errorf("remove network namespace %s: %w", name, err)
	}
	return nil
}
