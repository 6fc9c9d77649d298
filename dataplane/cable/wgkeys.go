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

// keyDir is the directory with this gateway's private keys, so that a restart needs no news at the peers: one file per
// tunnel with the key in base64, the file `rotation` with the numbers of the tunnels whose keys are still to be changed, and
// `rotation-request` with the last request for that.
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

// renew makes a new key and stores it in place of the old.
func (d keyDir) renew(tunnel int) (wgtypes.Key, error) {
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		return wgtypes.Key{}, fmt.Errorf("make a private key: %w", err)
	}
	return key, d.write(d.file(tunnel), key.String())
}

// rotation reads which tunnels' keys are still to be changed.
func (d keyDir) rotation() ([]int, error) {
	text, err := os.ReadFile(filepath.Join(string(d), "rotation"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read how far the rotation of keys is: %w", err)
	}
	var left []int
	for _, word := range strings.Fields(string(text)) {
		if i, err := strconv.Atoi(word); err == nil && i >= 0 && i <= MaxTunnels {
			left = append(left, i)
		}
	}
	return left, nil
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

// request reads the last request for a rotation; empty: there was none.
func (d keyDir) request() (string, error) {
	text, err := os.ReadFile(filepath.Join(string(d), "rotation-request"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read which rotation of keys was asked for last: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

func (d keyDir) setRequest(request string) error {
	return d.write(filepath.Join(string(d), "rotation-request"), request)
}

// write replaces a file in one step: after a crash there is the old content or the new.
func (d keyDir) write(path, content string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", path, err)
		}
	}()
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(string(d), ".new-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone already once it has its name
	_, err = f.WriteString(content + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
