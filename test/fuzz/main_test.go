package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestRun: all targets of a module are found and run, a failing one fails the run, and its input is
// kept.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":       "module example.test/m\n\ngo 1.24\n",
		"good/good.go": "package good\n",
		"good/good_test.go": `package good

import "testing"

func FuzzOne(f *testing.F) {
	f.Add("a")
	f.Fuzz(func(t *testing.T, s string) {
		if len(s) > 1 && s[0] == 'x' {
			t.Log(s)
		}
	})
}

func FuzzTwo(f *testing.F) { f.Add("a"); f.Fuzz(func(*testing.T, string) {}) }
`,
		"bad/bad_test.go": `package bad

import "testing"

func FuzzBad(f *testing.F) {
	f.Add(byte(0))
	f.Fuzz(func(t *testing.T, b byte) {
		if b > 100 {
			t.Fatal("found")
		}
	})
}
`,
		"none/none_test.go": "package none\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		match string
		runs  []string
		err   string // "": none
	}{
		{".", []string{"=== example.test/m/good.FuzzOne", "=== example.test/m/good.FuzzTwo", "bad.FuzzBad"}, "1 of 3 targets failed:\nexample.test/m/bad.FuzzBad: "},
		{"good.FuzzTwo", []string{"1 targets, 1s each: none failed"}, ""},
		{"absent", nil, `none matches "absent"`},
	} {
		var out bytes.Buffer
		err := options{dir: dir, cache: filepath.Join(dir, "cache"), time: time.Second, match: regexp.MustCompile(tt.match)}.run(t.Context(), &out)
		if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %v, want %q\n%s", tt.match, err, tt.err, &out)
		}
		for _, line := range tt.runs {
			if !strings.Contains(out.String(), line) {
				t.Errorf("%s: no %q in\n%s", tt.match, line, &out)
			}
		}
	}
	for _, pattern := range []string{"bad/testdata/fuzz/FuzzBad/*", "cache/example.test/m/good/FuzzOne/*"} {
		if files, err := filepath.Glob(filepath.Join(dir, pattern)); err != nil || len(files) == 0 {
			t.Errorf("no file %s (%v)", pattern, err)
		}
	}
}
