package arch

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

var (
	metric    = regexp.MustCompile(`"(pelago_[a-z_]+)"`)
	file      = regexp.MustCompile("`([A-Za-z0-9_./-]+\\.(?:go|c|h|md|yaml))`")
	tableCell = regexp.MustCompile(`(?:[^|\\]|\\.)+`)
	link      = regexp.MustCompile(`(?:\]\(|(?:src|srcset)=")([^)#\s"]+)`)
)

// Bounds of Markdown, in characters, lines and words.
const (
	columns     = 100
	cellLength  = 200
	readmeLines = 150
	readmeWords = 40_000
)

// TestDocs: docs/reference.md has every metric with our prefix, and each file that a README names
// in backquotes is in its folder, in one below it, or at that path from the root.
func TestDocs(t *testing.T) {
	root := filepath.Join("..", "..")
	var files, readmes []string
	metrics := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name == "out" || name == "bin" || strings.HasPrefix(name, ".") && name != "." {
				return fs.SkipDir
			}
			return nil
		}
		files = append(files, "/"+name)
		switch {
		case filepath.Ext(name) == ".md":
			readmes = append(readmes, name)
		case filepath.Ext(name) == ".go" && !strings.HasSuffix(name, "_test.go") && !strings.HasPrefix(name, "test/"):
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, m := range metric.FindAllSubmatch(content, -1) {
				metrics[string(m[1])] = name
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	reference, err := os.ReadFile(filepath.Join(root, "docs", "reference.md"))
	if err != nil {
		t.Fatal(err)
	}
	if len(metrics) < 20 {
		t.Errorf("only %d metrics were found", len(metrics))
	}
	for name, in := range metrics {
		if !strings.Contains(string(reference), "`"+name+"`") {
			t.Errorf("%s: docs/reference.md lacks metric %s", in, name)
		}
	}
	for _, readme := range readmes {
		content, err := os.ReadFile(filepath.Join(root, readme))
		if err != nil {
			t.Fatal(err)
		}
		below := strings.TrimSuffix("/"+filepath.Dir(readme)+"/", "./")
		for _, m := range file.FindAllSubmatch(content, -1) {
			name := string(m[1])
			found := false
			for _, f := range files {
				found = found || f == "/"+name || strings.HasPrefix(f, below) && strings.HasSuffix(f, "/"+name) || f == filepath.Join(below, name)
			}
			if !found {
				t.Errorf("%s names %s, which does not exist", readme, name)
			}
		}
	}
}

// TestMarkdown: relative links lead to files of the tree; no cell of a table is longer than 200
// characters; prose wraps at 100 columns (tables, code, and lines with a link may be longer); the
// README has at most 150 lines; the READMEs (all pages outside of docs but CHANGELOG.md and
// CONTRIBUTING.md) have at most 40,000 words together.
func TestMarkdown(t *testing.T) {
	root := filepath.Join("..", "..")
	words := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name == "out" || name == "bin" || strings.HasPrefix(name, ".") && name != "." {
				return fs.SkipDir
			}
			return nil
		}
		if filepath.Ext(name) != ".md" {
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !strings.HasPrefix(name, "docs/") && name != "CHANGELOG.md" && name != "CONTRIBUTING.md" && name != "SECURITY.md" {
			words += len(strings.Fields(string(content)))
		}
		if lines := strings.Count(string(content), "\n"); name == "README.md" && lines > readmeLines {
			t.Errorf("%s has %d lines, more than %d: move what is not for a new user to docs", name, lines, readmeLines)
		}
		code := false
		for i, line := range strings.Split(string(content), "\n") {
			for _, m := range link.FindAllStringSubmatch(line, -1) {
				if strings.Contains(m[1], ":") || code {
					continue
				}
				if _, err := os.Stat(filepath.Join(filepath.Dir(path), m[1])); err != nil {
					t.Errorf("%s:%d: a link to %s, which does not exist", name, i+1, m[1])
				}
			}
			switch n := utf8.RuneCountInString(line); {
			case strings.HasPrefix(strings.TrimSpace(line), "```"):
				code = !code
			case code || strings.HasPrefix(line, "    ") || strings.HasPrefix(line, "<") || link.MatchString(line) && !strings.HasPrefix(line, "|"):
			case strings.HasPrefix(line, "|"):
				for _, c := range tableCell.FindAllString(line, -1) {
					if n := utf8.RuneCountInString(strings.TrimSpace(c)); n > cellLength {
						t.Errorf("%s:%d: a cell of %d characters, more than %d: write it below the table", name, i+1, n, cellLength)
					}
				}
			case n > columns:
				t.Errorf("%s:%d: %d columns, more than %d", name, i+1, n, columns)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if words > readmeWords {
		t.Errorf("the READMEs have %d words, more than %d: remove what the code says, move what users need to docs", words, readmeWords)
	}
}

// TestThreatsHaveTests: the tests that SECURITY.md names exist.
func TestThreatsHaveTests(t *testing.T) {
	root := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(root, "SECURITY.md"))
	if err != nil {
		t.Fatal(err)
	}
	exist := map[string]bool{}
	function := regexp.MustCompile(`(?m)^func ([Tt]est[A-Z]\w*)\(`)
	err = filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		content, err := os.ReadFile(path)
		for _, m := range function.FindAllSubmatch(content, -1) {
			exist[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`([Tt]est[A-Z]\\w*)`").FindAllSubmatch(text, -1)
	if len(named) < 10 {
		t.Errorf("SECURITY.md names %d tests, want one for each threat that is met", len(named))
	}
	for _, m := range named {
		if !exist[string(m[1])] {
			t.Errorf("SECURITY.md: no test %s exists", m[1])
		}
	}
}
