package netns

import (
	"fmt"
	"os"
	"testing"
)

// Require fails the test when namespaces cannot be made here. It never skips: a test that needs the kernel and does not
// get it has not passed.
func Require(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test makes network namespaces: run it as root")
	}
}

// ForTest makes a namespace that ends with the test; name (short, lower case) need only be unique within the process.
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
