// Package rules holds no code: its test holds rules.yaml, the list of the rules of propagation that
// users of Karmada rely on, and of those of the Multicluster Services API, against the tests that
// show them.
package rules

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
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
	tests := map[string]*pkg{}
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

// pkg is what the tests of one directory consist of.
type pkg struct {
	functions map[string]bool
	texts     map[string]bool
}

// shown reports whether a test exists.
func shown(known map[string]*pkg, name string) error {
	dir, test, ok := strings.Cut(name, ".Test")
	test, sub, _ := strings.Cut("Test"+test, "/")
	if !ok {
		return fmt.Errorf("%q is no directory.TestName", name)
	}
	p := known[dir]
	if p == nil {
		var err error
		if p, err = parse(filepath.Join(root, dir)); err != nil {
			return err
		}
		known[dir] = p
	}
	if !p.functions[test] {
		return fmt.Errorf("%s has no %s", dir, test)
	}
	if sub != "" && !p.texts[sub] {
		return fmt.Errorf("no test of %s has a case %q", dir, sub)
	}
	return nil
}

func parse(dir string) (*pkg, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("%s has no tests: %w", dir, err)
	}
	p := &pkg{functions: map[string]bool{}, texts: map[string]bool{}}
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			return nil, err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				p.functions[n.Name.Name] = n.Recv == nil
			case *ast.BasicLit:
				if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
					p.texts[text] = true
				}
			}
			return true
		})
	}
	scripts, err := filepath.Glob(filepath.Join(dir, "testdata", "*.txtar"))
	for _, name := range scripts {
		p.texts[strings.TrimSuffix(filepath.Base(name), ".txtar")] = true
	}
	return p, err
}

// The list is read by people, in this order.
func TestRulesAreInOrder(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(root, "test", "rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	last := ""
	for line := range bytes.Lines(raw) {
		r, ok := strings.CutPrefix(strings.TrimSpace(string(line)), "- rule: ")
		if !ok || strings.HasPrefix(r, `"#`) {
			continue
		}
		if last != "" && !before(last, r) {
			t.Errorf("rule %s stands behind %s", r, last)
		}
		last = r
	}
}

func before(a, b string) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	return slices.CompareFunc(as, bs, func(x, y string) int {
		n, _ := strconv.Atoi(x) // the other test reports what is no number
		m, _ := strconv.Atoi(y) // likewise
		return n - m
	}) < 0
}
