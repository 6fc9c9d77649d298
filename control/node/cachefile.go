package node

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/pelago-net/pelago/control/node/tables"
)

// cacheFile is a file on the node with the objects that are in the kernel's tables. Its parts are
// separate files, in the directory PATH.parts. The name of a part contains the checksum of its
// content, so that a part is never changed: after a crash, the file names the parts that it was
// written with.
type cacheFile struct {
	path    string
	content []byte          // that was written last
	parts   map[string]bool // that this process has written, and the file names
}

func (f *cacheFile) part(name string) string {
	return filepath.Join(f.path+".parts", filepath.Base(name))
}

// save writes the objects if they have changed, and of their parts those that have. An old file
// that cannot be replaced is removed: with it a node might use port blocks that it has given back
// since.
func (f *cacheFile) save(objs tables.Objects, boot string) error {
	parts := map[string]bool{}
	content, err := tables.Encode(objs, boot, func(name string, content []byte) error {
		parts[name] = true
		if f.parts[name] && exists(f.part(name)) {
			return nil
		}
		return replace(f.part(name), content)
	})
	if err == nil && exists(f.path) && bytes.Equal(content, f.content) {
		return nil
	}
	if err == nil {
		err = replace(f.path, content)
	}
	if err != nil {
		f.content, f.parts = nil, nil
		if gone := os.Remove(f.path); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
		return fmt.Errorf("save the objects to %s: %w: without them the node cannot start while the API server is away", f.path, err)
	}
	f.content, f.parts = content, parts
	return f.removeStale()
}

// removeStale removes parts that the file no longer names.
func (f *cacheFile) removeStale() error {
	entries, err := os.ReadDir(f.path + ".parts")
	if err != nil {
		return fmt.Errorf("list the parts of %s: %w", f.path, err)
	}
	var errs []error
	for _, e := range entries {
		if !f.parts[e.Name()] {
			errs = append(errs, os.Remove(f.part(e.Name())))
		}
	}
	return errors.Join(errs...)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
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
	content, at, err := readBounded(f.path)
	if err != nil {
		return tables.Objects{}, time.Time{}, err
	}
	objs, err := tables.Decode(content, node, boot, func(name string) ([]byte, error) {
		content, _, err := readBounded(f.part(name))
		if errors.Is(err, fs.ErrNotExist) {
			err = errors.New("it is missing")
		}
		return content, err
	})
	return objs, at, err
}

// readBounded reads a file, and when it was written.
func readBounded(path string) ([]byte, time.Time, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, time.Time{}, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, time.Time{}, err
	}
	if info.Size() > tables.MaxEncoded {
		return nil, time.Time{}, fmt.Errorf("it is longer than %d bytes", tables.MaxEncoded)
	}
	content, err := io.ReadAll(io.LimitReader(file, tables.MaxEncoded))
	return content, info.ModTime(), err
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
