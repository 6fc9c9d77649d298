package apiserver

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const directoryPrefix = "pelago-apiserver-"

// directory holds the files of one server. A lock file shows whether its owner is alive, so that
// the next start removes what a killed test process left.
type directory struct {
	path string
	lock *os.File
}

func newDirectory() (*directory, error) {
	removeStale()
	path, err := os.MkdirTemp("", directoryPrefix)
	if err != nil {
		return nil, fmt.Errorf("make a directory for the server's files: %w", err)
	}
	f, err := lockDirectory(path)
	if err != nil {
		return nil, err
	}
	return &directory{path: path, lock: f}, nil
}

// remove deletes the directory and lets go of the lock.
func (d *directory) remove() error {
	defer d.lock.Close()
	if err := os.RemoveAll(d.path); err != nil {
		return fmt.Errorf("remove the server's files: %w", err)
	}
	return nil
}

func lockDirectory(path string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(path, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of %s: %w", path, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// removeStale removes directories whose owner is gone. A young one may not have its lock yet; it is
// left alone.
func removeStale() {
	// the pattern is well-formed
	paths, _ := filepath.Glob(filepath.Join(os.TempDir(), directoryPrefix+"*"))
	for _, path := range paths {
		if info, err := os.Stat(path); err != nil || time.Since(info.ModTime()) < time.Minute {
			continue
		}
		if f, err := lockDirectory(path); err == nil {
			_ = os.RemoveAll(path) // the next start tries again
			f.Close()
		}
	}
}
