package netns

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"github.com/pelago-net/pelago/test/need"
)

// Require is for tests that make network namespaces: need.Root leaves them out, or they fail
// without root.
func Require(t testing.TB) {
	t.Helper()
	need.Root(t)
	if os.Geteuid() != 0 {
		t.Fatal("this test makes network namespaces: run it as root")
	}
}

// made counts the namespaces of this process, so that tests which run at the same time may use the
// same names.
var made atomic.Uint64

// ForTest makes a namespace that ends with the test, with name (short, lower case) in its name.
func ForTest(t testing.TB, name string) *NS {
	t.Helper()
	Require(t)
	n, err := Create(fmt.Sprintf("t%d-%d-%s", os.Getpid(), made.Add(1), name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}
