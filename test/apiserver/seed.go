package apiserver

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/pelago-net/pelago/test/lab/binaries"
)

// seedAge is how long seeds of other definitions are kept: long enough for work on two branches.
const seedAge = 7 * 24 * time.Hour

// seedFormat changes with what makeSeed does to the data.
const seedFormat = 2

// seed puts the data of an etcd in place in which an API server of the same options has served
// once: its own objects and the CRDs exist. That data is made once per machine and copied from the
// cache.
func (s *server) seed(ctx context.Context) error {
	key, err := s.options.seedKey(s.bin)
	if err != nil {
		return fmt.Errorf("name the prepared etcd data: %w", err)
	}
	cache, err := binaries.CacheDir()
	if err != nil {
		return err
	}
	parent := filepath.Join(cache, "apiserver")
	dir := filepath.Join(parent, key)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		if err := makeSeed(ctx, s.options, parent, dir); err != nil {
			return fmt.Errorf("prepare etcd data: %w", err)
		}
	}
	return copySparse(dir, s.data())
}

// seedKey names the data by all that goes into it: the programs, the range of ClusterIPs, the CRDs.
func (o options) seedKey(bin string) (string, error) {
	hash := sha256.New()
	fmt.Fprintln(hash, seedFormat, filepath.Base(bin), o.serviceCIDR)
	if o.crds != nil {
		crds, err := o.crds.chosen()
		if err != nil {
			return "", err
		}
		if err := json.NewEncoder(hash).Encode(crds); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(hash.Sum(nil))[:16], nil
}

// makeSeed runs a server without controllers until it serves the CRDs, and moves its data to dir.
func makeSeed(ctx context.Context, o options, parent, dir string) (err error) {
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	unlock, err := binaries.Lock(ctx, filepath.Join(parent, ".lock"))
	if err != nil {
		return fmt.Errorf("wait for another process that prepares it: %w", err)
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return nil // made meanwhile
	}
	if err := removeOldSeeds(parent); err != nil {
		return err
	}
	s, err := newServer(options{crds: o.crds, serviceCIDR: o.serviceCIDR, hub: o.hub})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	if err := s.serve(ctx); err != nil {
		return err
	}
	if o.crds != nil {
		if err := o.crds.install(s.config); err != nil {
			return err
		}
	}
	s.end("kube-apiserver")
	if err := s.forgetNamespaces(ctx); err != nil {
		return err
	}
	s.end("etcd")
	tmp := fmt.Sprintf("%s.%d", dir, os.Getpid())
	defer os.RemoveAll(tmp)
	if err := copySparse(s.data(), tmp); err != nil {
		return err
	}
	return os.Rename(tmp, dir)
}

// forgetNamespaces removes the namespaces that each API server makes at its start: the UID of
// kube-system is the identity of a cluster, and no two servers may share one.
func (s *server) forgetNamespaces(ctx context.Context) error {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + filepath.Join(s.dir.path, "client:0")},
		Context: ctx, DialTimeout: startTimeout, Logger: zap.NewNop()})
	if err != nil {
		return fmt.Errorf("connect to etcd: %w", err)
	}
	defer c.Close()
	gone, err := c.Delete(ctx, "/registry/namespaces/", clientv3.WithPrefix())
	if err == nil && gone.Deleted == 0 {
		err = errors.New("there are none")
	}
	if err != nil {
		return fmt.Errorf("remove the namespaces of the prepared data: %w", err)
	}
	return nil
}

func removeOldSeeds(parent string) error {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && e.IsDir() && time.Since(info.ModTime()) > seedAge {
			if err := os.RemoveAll(filepath.Join(parent, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// copySparse copies a directory. etcd allocates its log in segments of 64 MB: the zeros at the end
// of a file become a hole, and segments that etcd has made in advance (*.tmp) are left out.
func copySparse(from, to string) error {
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		switch target := filepath.Join(to, name); {
		case d.IsDir():
			return os.MkdirAll(target, 0o700)
		case strings.HasSuffix(name, ".tmp"):
			return nil
		default:
			return copyFile(path, target)
		}
	})
	if err != nil {
		return fmt.Errorf("copy etcd's data: %w", err)
	}
	return nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	zeros := make([]byte, 1<<16)
	block := make([]byte, 1<<16)
	for at := int64(0); ; {
		n, err := io.ReadFull(in, block)
		if n > 0 && !bytes.Equal(block[:n], zeros[:n]) {
			if _, err := out.WriteAt(block[:n], at); err != nil {
				return err
			}
		}
		at += int64(n)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return out.Truncate(at)
		case err != nil:
			return err
		}
	}
}
