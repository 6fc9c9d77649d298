package netns

import (
	"fmt"
	"os"
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

// ForTest makes a namespace that ends with the test; name (short, lower case) need only be unique
// within the process.
func ForTest(t testing.TB, name string) *NS {
	t.Helper()
	Require(t)
	n, err := Create(fmt.Sprintf("t%d-%s", os.Getpid(), name))
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
