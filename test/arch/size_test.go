package arch

import (
	"os"
	"path/filepath"
	"testing"
)

// TestSizes asks only that the table is current; no size is wrong.
func TestSizes(t *testing.T) {
	root := filepath.Join("..", "..")
	have, err := os.ReadFile(filepath.Join(root, SizesFile))
	if err != nil {
		t.Fatal(err)
	}
	want, err := Sizes(root, string(have))
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != want {
		t.Errorf("%s is not current: run `go run ./test/arch/sizes -update`", SizesFile)
	}
}

func TestCodeLines(t *testing.T) {
	for text, want := range map[string]int{
		"package a\n\n// b\nvar c = 1 // d\n":          2,
		"package a\n/* b\nc */\nvar d = `e\n\nf`\n":    4,
		"package a\n\nfunc f() {\n\tg(1,\n\t\t2)\n}\n": 5,
	} {
		if got := codeLines("a.go", []byte(text)); got != want {
			t.Errorf("%q: %d lines, want %d", text, got, want)
		}
	}
	if got := codeLines("a.c", []byte("/* a\n * b\n */\nint c; // d\n\nint e; /* f */\n")); got != 2 {
		t.Errorf("%d lines of C, want 2", got)
	}
}

// TestHundreds: a written number stays until it is a hundred off.
func TestHundreds(t *testing.T) {
	for _, c := range []struct{ count, former, want int }{
		{10, 0, 100}, {149, 0, 100}, {150, 0, 200}, {299, 200, 200}, {300, 200, 300}, {101, 200, 200}, {100, 200, 100},
	} {
		if got := hundreds(c.count, c.former); got != c.want {
			t.Errorf("%d, written as %d: %d, want %d", c.count, c.former, got, c.want)
		}
	}
}
