package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCommand(t *testing.T) {
	s := suite{name: "x", run: "TestOwn", args: []string{"-more"}}
	want := []string{"/tests/x.test", "-test.v", "-test.timeout=0s", "-test.run=TestOther", "-more"}
	if diff := cmp.Diff(want, s.command("TestOther")); diff != "" {
		t.Errorf("-run does not replace the suite's own choice:\n%s", diff)
	}
}
