package arch

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	metric = regexp.MustCompile(`"(pelago_[a-z_]+)"`)
	file   = regexp.MustCompile("`([A-Za-z0-9_./-]+\\.(?:go|c|h|md|yaml))`")
)

// TestDocs: docs/reference.md has every metric with our prefix, and each file that a README names in backquotes is in its folder, in one
// below it, or at that path from the root.
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
