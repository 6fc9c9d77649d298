package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// machineLimits are settings of the whole machine that several nodes exhaust
// at their defaults: a node takes about eight inotify instances of root's 128.
var machineLimits = map[string]int{"fs/inotify/max_user_instances": 8192}

// limits raises settings below dir (/proc/sys) and remembers in file what they were.
type limits struct{ dir, file string }

// thisMachine returns the limits of this machine. All labs share them, under the
// lock of the state root.
func thisMachine() limits {
	return limits{dir: "/proc/sys", file: filepath.Join(stateRoot, "machine.json")}
}

func (l limits) read(key string) (int, error) {
	data, err := os.ReadFile(filepath.Join(l.dir, key))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}

func (l limits) write(key string, value int) error {
	return os.WriteFile(filepath.Join(l.dir, key), []byte(strconv.Itoa(value)), 0o644)
}

// former returns what raise changed; nothing if it changed nothing.
func (l limits) former() (map[string]int, error) {
	former := map[string]int{}
	data, err := os.ReadFile(l.file)
	if errors.Is(err, fs.ErrNotExist) {
		return former, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &former)
	}
	return former, err
}

// raise lifts what is below want. The former values are on disk before anything
// changes.
func (l limits) raise(want map[string]int) error {
	former, err := l.former()
	if err != nil {
		return fmt.Errorf("raise the machine's limits: %w", err)
	}
	for key, value := range want {
		have, err := l.read(key)
		if err != nil {
			return fmt.Errorf("raise the machine's limits: %w", err)
		}
		if have >= value {
			continue
		}
		if _, known := former[key]; !known {
			former[key] = have
		}
		if err := writeJSON(l.file, former); err != nil {
			return fmt.Errorf("raise the machine's limits: %w", err)
		}
		if err := l.write(key, value); err != nil {
			return fmt.Errorf("raise the machine's limit %s from %d to %d: %w", key, have, value, err)
		}
	}
	return nil
}

// restore sets everything back that raise changed.
func (l limits) restore() error {
	former, err := l.former()
	if err != nil {
		return fmt.Errorf("restore the machine's limits: %w", err)
	}
	for key, value := range former {
		if err := l.write(key, value); err != nil {
			return fmt.Errorf("restore the machine's limit %s to %d: %w", key, value, err)
		}
	}
	if err := os.Remove(l.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("restore the machine's limits: %w", err)
	}
	return nil
}

// raiseMachineLimits is called by every lab that comes up.
func raiseMachineLimits() error {
	unlock, err := waitLock(stateRoot)
	if err != nil {
		return fmt.Errorf("raise the machine's limits: %w", err)
	}
	defer unlock()
	return thisMachine().raise(machineLimits)
}

// restoreMachineLimits is called by every lab that went down; the last one
// restores them.
func restoreMachineLimits() error {
	unlock, err := waitLock(stateRoot)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // another lab that went down has done it
	}
	if err != nil {
		return fmt.Errorf("restore the machine's limits: %w", err)
	}
	defer unlock()
	// A lab that is coming up has its directory before it raises limits.
	names, err := Names()
	if err != nil || len(names) > 0 {
		return err
	}
	return thisMachine().restore()
}
