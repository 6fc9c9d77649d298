package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// stateRoot holds machine.json (the machine's limits as they were before the
// first lab) and one directory per lab:
//
//	lab.json             options, plan and id
//	kubeconfig           all contexts
//	process/NAME.json    every process that the lab started
//	cluster/NAME/        pki, kubeconfigs, etcd's data, logs of the control plane
//	node/NAME/           what a node keeps when it is switched off: etc, lib, log
const stateRoot = "/var/lib/pelago-lab"

// ErrNotFound: there is no lab of that name.
var ErrNotFound = errors.New("no such lab")

// record is lab.json.
type record struct {
	// ID marks the lab's processes in their environment (PELAGO_LAB_ID).
	ID      string  `json:"id"`
	Options Options `json:"options"`
	Plan    Plan    `json:"plan"`
	// Kubernetes is the directory of the component binaries, Containerd that
	// of the container runtime's, NodeInit the node's first process, Images the
	// directory of the images which every node imports when it starts.
	Kubernetes string `json:"kubernetes"`
	Containerd string `json:"containerd"`
	NodeInit   string `json:"nodeInit"`
	Images     string `json:"images"`
	// Network is the directory of the CNI's programs; empty: Debian's plugins are enough.
	Network string `json:"network,omitempty"`
}

// Names lists the labs on this machine, sorted.
func Names() ([]string, error) {
	entries, err := os.ReadDir(stateRoot)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list labs: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && namePattern.MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// readRecord loads lab.json; the error wraps ErrNotFound if it is not there.
func readRecord(name string) (record, error) {
	var r record
	data, err := os.ReadFile(filepath.Join(stateRoot, name, "lab.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return r, fmt.Errorf("open lab %q: %w (pelago-lab up makes one, pelago-lab status lists them)", name, ErrNotFound)
	}
	if errors.Is(err, fs.ErrPermission) {
		return r, fmt.Errorf("open lab %q: %w (run as root)", name, err)
	}
	if err != nil {
		return r, fmt.Errorf("open lab %q: %w", name, err)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("read the record of lab %q: %w (pelago-lab down --name %s removes it)", name, err, name)
	}
	return r, nil
}

// writeJSON replaces file by the JSON form of v at once.
func writeJSON(file string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(file, append(data, '\n'), 0o600)
}

// writeFile replaces file at once and makes its directory.
func writeFile(file string, data []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), ".new-")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(data)
	if err = errors.Join(err, tmp.Chmod(mode), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), file)
}

// lockLimit is how long one change of a lab waits for another.
const lockLimit = 30 * time.Second

// lockState keeps other changes of the same lab out until unlock. The lab's
// state directory is made if create is set, else its absence is ErrNotFound.
func lockState(ctx context.Context, name string, create bool) (unlock func(), err error) {
	dir := filepath.Join(stateRoot, name)
	deadline := time.Now().Add(lockLimit)
	for {
		if create {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return nil, fmt.Errorf("make the state directory of lab %s: %w", name, err)
			}
		}
		unlock, err := tryLock(dir)
		switch {
		case err == nil:
			return unlock, nil
		case errors.Is(err, fs.ErrNotExist) && create:
			continue // removed by a "down" in this moment
		case errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("open lab %q: %w (pelago-lab status lists them)", name, ErrNotFound)
		case !errors.Is(err, unix.EWOULDBLOCK):
			return nil, fmt.Errorf("lock lab %s: %w", name, err)
		case time.Now().After(deadline):
			return nil, fmt.Errorf("lock lab %s: another pelago-lab has been changing it for %s; try again when it is done", name, lockLimit)
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return nil, fmt.Errorf("lock lab %s: %w", name, err)
		}
	}
}

// waitLock locks a directory that others lock for moments only.
func waitLock(dir string) (unlock func(), err error) {
	for {
		unlock, err := tryLock(dir)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return unlock, err
		}
		time.Sleep(5 * time.Millisecond) // the lock ends with its holder, at the latest
	}
}

// tryLock locks a directory, and then checks that the directory still exists:
// the lock of a removed directory does not exclude other processes.
func tryLock(dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	var locked, present fs.FileInfo
	if err == nil {
		locked, err = f.Stat()
	}
	if err == nil {
		present, err = os.Stat(dir)
	}
	if err == nil && !os.SameFile(locked, present) {
		err = fs.ErrNotExist
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}
