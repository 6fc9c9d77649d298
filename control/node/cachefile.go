package node

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/pelago-net/pelago/control/node/tables"
)

// cacheFile is a file on the node with the objects that are in the kernel's tables.
type cacheFile struct {
	path string
	sum  [sha256.Size]byte // of what was written last
}

// save writes the objects if they have changed. An old file that cannot be replaced is removed:
// with it a node might use port blocks that it has given back since.
func (f *cacheFile) save(objs tables.Objects, boot string) error {
	content, err := tables.Encode(objs, boot)
	sum := sha256.Sum256(content)
	if _, gone := os.Stat(f.path); err == nil && gone == nil && sum == f.sum {
		return nil
	}
	if err == nil {
		err = replace(f.path, content)
	}
	if err != nil {
		f.sum = [sha256.Size]byte{}
		if gone := os.Remove(f.path); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
		return fmt.Errorf("save the objects to %s: %w: without them the node cannot start while the API server is away", f.path, err)
	}
	f.sum = sum
	return nil
}

// load reads what an earlier process has saved, and when that was. The error is fs.ErrNotExist if
// there is nothing.
func (f *cacheFile) load(node, boot string) (tables.Objects, time.Time, error) {
	objs, at, err := f.read(node, boot)
	if err != nil {
		return tables.Objects{}, time.Time{}, fmt.Errorf("read the objects in %s: %w", f.path, err)
	}
	return objs, at, nil
}

func (f *cacheFile) read(node, boot string) (tables.Objects, time.Time, error) {
	file, err := os.Open(f.path)
	if err != nil {
		return tables.Objects{}, time.Time{}, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return tables.Objects{}, time.Time{}, err
	}
	content, err := io.ReadAll(io.LimitReader(file, tables.MaxEncoded+1))
	if err != nil {
		return tables.Objects{}, time.Time{}, err
	}
	if len(content) > tables.MaxEncoded {
		return tables.Objects{}, time.Time{}, fmt.Errorf("it is longer than %d bytes", tables.MaxEncoded)
	}
	objs, err := tables.Decode(content, node, boot)
	return objs, info.ModTime(), err
}

// replace writes a file that only root reads, in one step: after a crash there is the old content
// or the new. There is one writer, so the name of the new file is always the same, and a crash
// leaves at most one behind.
func replace(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return os.Rename(f.Name(), path)
}
