package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestChoose(t *testing.T) {
	got, err := choose("packet,cable")
	if err != nil || len(got) != 2 || got[0].name != "packet" || got[1].name != "cable" {
		t.Errorf("%v, %v", got, err)
	}
	if all, err := choose(""); err != nil || len(all) != len(suites) {
		t.Errorf("%v, %v", all, err)
	}
	if _, err := choose("cables"); err == nil || !strings.Contains(err.Error(), "choose of loader, packet") {
		t.Errorf("error %v", err)
	}
}

func TestCommand(t *testing.T) {
	s := suite{name: "x", run: "TestOwn", args: []string{"-more"}}
	want := []string{"/tests/x.test", "-test.v", "-test.timeout=0s", "-test.run=TestOther", "-more"}
	if diff := cmp.Diff(want, s.command("TestOther")); diff != "" {
		t.Errorf("-run does not replace the suite's own choice:\n%s", diff)
	}
}
