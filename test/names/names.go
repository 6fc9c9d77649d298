// Package names reads from the source which tests a package has, for what names tests of other
// packages: without it, a renamed test would be run, or shown, by nobody.
package names

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Package is what the tests of one directory consist of.
type Package struct {
	dir       string
	functions map[string]bool
	texts     map[string]bool // string literals and scripts, which name the cases of a test
}

// Read parses the tests of a directory.
func Read(dir string) (*Package, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("%s has no tests", dir)
	}
	p := &Package{dir: dir, functions: map[string]bool{}, texts: map[string]bool{}}
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

// Has returns an error unless the test exists: TestName, or TestName/case where the case is written
// out in one of the tests, or is the name of a script in testdata.
func (p *Package) Has(test string) error {
	name, sub, _ := strings.Cut(test, "/")
	if !p.functions[name] {
		return fmt.Errorf("%s has no %s", p.dir, name)
	}
	if sub != "" && !p.texts[sub] {
		return fmt.Errorf("no test of %s has a case %q", p.dir, sub)
	}
	return nil
}

// Tests are the names of the tests, sorted.
func (p *Package) Tests() (tests []string) {
	for name, top := range p.functions {
		if top && strings.HasPrefix(name, "Test") && name != "TestMain" {
			tests = append(tests, name)
		}
	}
	slices.Sort(tests)
	return tests
}
