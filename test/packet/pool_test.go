package packet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/pelago-net/pelago/dataplane/loader"
	"github.com/pelago-net/pelago/test/bpffs"
	"github.com/pelago-net/pelago/test/need"
)

// pool keeps the nodes that tests have done with: to load the programs takes longer than most
// tests.
var pool struct {
	dir     string
	unmount func() error // of the bpffs on dir, mounted with the first node
	made    int
	free    []*Kernel
}

func TestMain(m *testing.M) {
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "pelago-packet-")
	if err != nil {
		return 1, err
	}
	defer os.Remove(dir)
	pool.dir = dir
	code = m.Run()
	for _, k := range pool.free {
		err = errors.Join(err, k.Close())
	}
	if pool.unmount != nil {
		err = errors.Join(err, pool.unmount())
	}
	return code, err
}

// load makes a node with the tables of state(cluster, node) and without flows.
func load(t testing.TB, cluster int, node uint16) *Kernel {
	t.Helper()
	var k *Kernel
	if n := len(pool.free); n > 0 {
		k, pool.free = pool.free[n-1], pool.free[:n-1]
	} else {
		k = open(t, loader.Timers{})
	}
	t.Cleanup(func() { pool.free = append(pool.free, k) })
	k.Flush(t)
	k.Apply(t, state(cluster, node))
	return k
}

// loadTimers makes a node of its own for a test that cannot wait for the real timers.
func loadTimers(t testing.TB, timers loader.Timers, cluster int, node uint16) *Kernel {
	t.Helper()
	k := open(t, timers)
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	k.Apply(t, state(cluster, node))
	return k
}

func open(t testing.TB, timers loader.Timers) *Kernel {
	t.Helper()
	need.Root(t)
	var err error
	if pool.unmount == nil {
		if pool.unmount, err = bpffs.At(pool.dir); err != nil {
			t.Fatal(err)
		}
	}
	pool.made++
	k, err := Open(filepath.Join(pool.dir, fmt.Sprintf("node%d", pool.made)), timers)
	if err != nil {
		t.Fatal(err)
	}
	return k
}
