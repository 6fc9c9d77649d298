//go:build linux

package cable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// keyDir is the directory with this gateway's private keys, which keep their peers' configuration
// valid over a restart: one file per tunnel with the key in base64, the file `rotation` with the
// numbers of the tunnels whose keys are still to be changed, and `rotation-request` with the last
// request.
type keyDir string

func (d keyDir) file(tunnel int) string {
	return filepath.Join(string(d), fmt.Sprintf("tunnel%d.key", tunnel))
}

// load reads the key of a tunnel; the first time it makes one.
func (d keyDir) load(tunnel int) (wgtypes.Key, error) {
	text, err := os.ReadFile(d.file(tunnel))
	if errors.Is(err, fs.ErrNotExist) {
		return d.renew(tunnel)
	}
	if err != nil {
		return wgtypes.Key{}, fmt.Errorf("read the private key: %w", err)
	}
	key, err := wgtypes.ParseKey(strings.TrimSpace(string(text)))
	if err != nil {
		return wgtypes.Key{}, fmt.Errorf("read the private key in %s: %w: delete the file to get a new key", d.file(tunnel), err)
	}
	return key, nil
}

// renew generates a key and stores it in place of the old one.
func (d keyDir) renew(tunnel int) (wgtypes.Key, error) {
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		return wgtypes.Key{}, fmt.Errorf("make a private key: %w", err)
	}
	return key, d.write(d.file(tunnel), key.String())
}

// rotation reads the numbers of the tunnels whose keys are still to be changed, and the last
// request; empty: none yet.
func (d keyDir) rotation() (left []int, request string, err error) {
	text, err := d.read("rotation")
	if err != nil {
		return nil, "", err
	}
	request, err = d.read("rotation-request")
	return tunnelNumbers(strings.Fields(text)), strings.TrimSpace(request), err
}

// tunnelNumbers parses numbers of tunnels and drops invalid ones.
func tunnelNumbers(words []string) (numbers []int) {
	for _, word := range words {
		if i, err := strconv.Atoi(word); err == nil && i >= 0 && i <= MaxTunnels {
			numbers = append(numbers, i)
		}
	}
	return numbers
}

// read returns the content of a file, "" if none exists.
func (d keyDir) read(name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(string(d), name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read the state of the rotation of keys: %w", err)
	}
	return string(text), nil
}

func (d keyDir) setRotation(left []int) error {
	path := filepath.Join(string(d), "rotation")
	if len(left) == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("end the rotation of keys: %w", err)
		}
		return nil
	}
	return d.write(path, strings.Trim(fmt.Sprint(left), "[]"))
}

func (d keyDir) setRequest(request string) error {
	return d.write(filepath.Join(string(d), "rotation-request"), request)
}

func (d keyDir) write(path, content string) error {
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return replaceFile(path, content+"\n")
}

// replaceFile writes a file with mode 0600 atomically: readers, and the next boot after a crash,
// see the old or the new content.
func replaceFile(path, content string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", path, err)
		}
	}()
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails after the rename
	_, err = f.WriteString(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
