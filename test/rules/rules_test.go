// Package rules holds no code: its test holds rules.yaml, the list of the rules of propagation that
// users of Karmada rely on, and of those of the Multicluster Services API, against the tests that
// show them.
package rules

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/pelago-net/pelago/test/names"
)

const root = "../.."

// rule is one of rules.yaml.
type rule struct {
	// Rule is its number: section and place in it. A complaint has the number of its issue.
	Rule string `json:"rule"`
	Says string `json:"says"`
	// Tests are `directory.TestName`, or `directory.TestName/case` where the case is written out in
	// that package's tests, or is the name of a script in its testdata.
	Tests []string `json:"tests"`
}

// sections are how many rules each section has, so that none is forgotten.
var sections = map[string]int{"2.1": 7, "2.2": 10, "2.3": 8, "2.4": 5, "2.5": 6, "2.6": 5, "2.7": 9, "2.9": 4, "2.10": 12, "2.11": 6, "1645.1": 21}

// complaints are those of Karmada's users that must have an answer.
var complaints = []string{"#6943", "#7062", "#1385", "#4738", "#3410", "#386", "#1640", "#505", "#7320", "#6803"}

func TestEveryRuleHasItsTests(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(root, "test", "rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var rules []rule
	if err := yaml.UnmarshalStrict(raw, &rules); err != nil {
		t.Fatal(err)
	}
	var want, have []string
	for section, n := range sections {
		for i := range n {
			want = append(want, fmt.Sprintf("%s.%d", section, i+1))
		}
	}
	want = append(want, complaints...)
	tests := map[string]*names.Package{}
	for _, r := range rules {
		have = append(have, r.Rule)
		if r.Says == "" || len(r.Tests) == 0 {
			t.Errorf("rule %s has no words or no test", r.Rule)
		}
		for _, name := range r.Tests {
			if err := shown(tests, name); err != nil {
				t.Errorf("rule %s: %v", r.Rule, err)
			}
		}
	}
	slices.Sort(want)
	slices.Sort(have)
	for _, w := range want {
		if !slices.Contains(have, w) {
			t.Errorf("rule %s is missing", w)
		}
	}
	for i, h := range have {
		if !slices.Contains(want, h) || i > 0 && have[i-1] == h {
			t.Errorf("rule %s is none, or is there twice", h)
		}
	}
}

// shown reports whether a test exists.
func shown(known map[string]*names.Package, name string) error {
	dir, test, ok := strings.Cut(name, ".Test")
	if !ok {
		return fmt.Errorf("%q is no directory.TestName", name)
	}
	if known[dir] == nil {
		p, err := names.Read(filepath.Join(root, dir))
		if err != nil {
			return err
		}
		known[dir] = p
	}
	return known[dir].Has("Test" + test)
}
