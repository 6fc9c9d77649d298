package node

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/test/clusterset"
)

func TestSaving(t *testing.T) {
	objs, _ := clusterset.Full(true)
	f := &cacheFile{path: filepath.Join(t.TempDir(), "node", "state.json")}
	if _, _, err := f.load("n1", "boot"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read before there is anything: %v", err)
	}
	stamp := func() time.Time {
		info, err := os.Stat(f.path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("the file has mode %v, want it to be root's alone", info.Mode())
		}
		return info.ModTime()
	}
	save := func(objs tables.Objects) {
		t.Helper()
		if err := f.save(objs, "boot"); err != nil {
			t.Fatal(err)
		}
	}
	save(objs)
	long := time.Now().Add(-time.Hour)
	if err := os.Chtimes(f.path, long, long); err != nil {
		t.Fatal(err)
	}
	save(objs)
	if at := stamp(); time.Since(at) < time.Minute {
		t.Error("the same objects were written a second time")
	}
	objs.Peers = nil
	save(objs)
	if at := stamp(); time.Since(at) > time.Minute {
		t.Error("a change was not written")
	}
	if err := os.Remove(f.path); err != nil {
		t.Fatal(err)
	}
	save(objs)
	back, at, err := f.load("n1", "boot")
	if err != nil || len(back.Peers) != 0 || time.Since(at) > time.Minute {
		t.Errorf("read %d peers, written at %v, %v; want none, and now", len(back.Peers), at, err)
	}
	if entries, err := os.ReadDir(filepath.Dir(f.path)); err != nil || len(entries) != 2 {
		t.Errorf("there are %v, %v; want the file and the directory of its parts", entries, err)
	}
	if entries, err := os.ReadDir(f.path + ".parts"); err != nil || len(entries) != len(f.parts) {
		t.Errorf("there are the parts %v, %v; want the %d that are in use", entries, err, len(f.parts))
	}

	// What cannot be replaced does not stay as it was.
	if err := os.Mkdir(f.path+".new", 0o700); err != nil {
		t.Fatal(err)
	}
	objs.Nodes = nil
	if err := f.save(objs, "boot"); err == nil || !strings.Contains(err.Error(), f.path) {
		t.Errorf("saved with error %v where that is not possible", err)
	}
	if _, _, err := f.load("n1", "boot"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the old file can still be read: %v", err)
	}
	if err := os.Remove(f.path + ".new"); err != nil {
		t.Fatal(err)
	}
	save(objs)
	if _, _, err := f.load("n1", "boot"); err != nil {
		t.Error(err)
	}
}

// A crash in the middle of a write leaves the old file, and does not stand in the way of the next.
func TestCrashWhileSaving(t *testing.T) {
	objs, _ := clusterset.Full(true)
	f := &cacheFile{path: filepath.Join(t.TempDir(), "state.json")}
	if err := f.save(objs, "boot"); err != nil {
		t.Fatal(err)
	}
	fewer := objs
	fewer.Peers, fewer.Nodes = nil, fewer.Nodes[:1]
	var unchanged string
	half, err := tables.Encode(fewer, "boot", func(name string, content []byte) error {
		if exists(f.part(name)) {
			unchanged = name
			return nil
		}
		return os.WriteFile(f.part(name)+".new", content[:len(content)/2], 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.path+".new", half[:len(half)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	next := &cacheFile{path: f.path}
	back, _, err := next.load("n1", "boot")
	if err != nil || len(back.Peers) != 1 {
		t.Fatalf("read %d peers, %v; want the one of before", len(back.Peers), err)
	}
	// A part that was damaged is written again by the next process.
	if err := os.WriteFile(f.part(unchanged), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	back.Peers = nil
	if err := next.save(back, "boot"); err != nil {
		t.Fatal(err)
	}
	if back, _, err = next.load("n1", "boot"); err != nil || len(back.Peers) != 0 {
		t.Errorf("read %d peers, %v; want none", len(back.Peers), err)
	}
}

// A file that is not used is named in the error.
func TestUnusableFile(t *testing.T) {
	for want, content := range map[string][]byte{"it is broken": []byte("hello\n"), "longer than": bytes.Repeat([]byte("x"), tables.MaxEncoded+1)} {
		f := cacheFile{path: filepath.Join(t.TempDir(), "state.json")}
		if err := os.WriteFile(f.path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := f.load("n1", "boot"); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), f.path) {
			t.Errorf("read with error %v, want one with the file's name and %q", err, want)
		}
	}
}
