package main

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pelago-net/pelago/test/names"
)

func TestCommand(t *testing.T) {
	s := suite{name: "x", tests: []string{"TestOwn"}, args: []string{"-more"}}
	want := []string{"/tests/x.test", "-test.v", "-test.timeout=0s", "-test.run=TestOther", "-more"}
	if diff := cmp.Diff(want, s.command("TestOther")); diff != "" {
		t.Errorf("-run does not replace the suite's own choice:\n%s", diff)
	}
}

func TestChosenTestsExist(t *testing.T) {
	for _, s := range suites {
		p, err := names.Read(filepath.Join("../..", s.pkg))
		if err != nil {
			t.Fatal(err)
		}
		for _, test := range slices.Concat(s.tests, s.skip) {
			if err := p.Has(test); err != nil {
				t.Errorf("suite %s: %v", s.name, err)
			}
		}
	}
	s := suite{name: "x", tests: []string{"TestA", "TestB"}, parts: "^(one|two)", skip: []string{"TestC"}}
	want := []string{"/tests/x.test", "-test.v", "-test.timeout=0s", "-test.run=^(TestA|TestB)$/^(one|two)", "-test.skip=^(TestC)$"}
	if diff := cmp.Diff(want, s.command("")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
