package arch

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Limits of size: a package of the product has at most maxPackage lines that are neither blank nor comment, a file of the product
// maxFile lines of all kinds, a test's maxTestFile. Generated files do not count.
const (
	maxPackage  = 3000
	maxFile     = 500
	maxTestFile = 600
)

func TestSizes(t *testing.T) {
	root := filepath.Join("..", "..")
	packages := map[string]int{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir() && (name == "out" || name == "bin" || strings.HasPrefix(name, ".") && name != "."):
			return fs.SkipDir
		case d.IsDir() || filepath.Ext(name) != ".go":
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if bytes.Contains(content[:min(len(content), 2000)], []byte("DO NOT EDIT")) {
			return nil
		}
		lines, limit := bytes.Count(content, []byte("\n")), maxFile
		product := !strings.HasPrefix(name, "test/") && !strings.HasSuffix(name, "_test.go")
		if !product {
			limit = maxTestFile
		}
		if lines > limit {
			t.Errorf("%s has %d lines, at most %d: divide it by subject", name, lines, limit)
		}
		if product {
			packages[filepath.Dir(name)] += codeLines(content)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for path, n := range packages {
		if n > maxPackage {
			t.Errorf("package %s has %d lines of code, at most %d: divide it", path, n, maxPackage)
		}
	}
}

// codeLines counts the lines that are neither blank nor comment.
func codeLines(content []byte) (n int) {
	for line := range bytes.Lines(content) {
		if line = bytes.TrimSpace(line); len(line) > 0 && !bytes.HasPrefix(line, []byte("//")) {
			n++
		}
	}
	return n
}
