package program_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pelago-net/pelago/test/program"
)

func TestChoose(t *testing.T) {
	self := func(s string) string { return s }
	all := []string{"wire-cut", "uplink-cut", "nothing"}
	tests := []struct {
		names string
		want  []string
		err   string
	}{
		{"", all, ""},
		{"nothing,wire-cut", []string{"nothing", "wire-cut"}, ""},
		{"earthquake", nil, `fault "earthquake" is unknown; there are wire-cut, uplink-cut, nothing`},
		{"nothing,", nil, `fault "" is unknown`},
		{"nothing,nothing", nil, `fault "nothing" is named twice`},
	}
	for _, tt := range tests {
		got, err := program.Choose("fault", tt.names, all, self)
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("Choose(%q) (-want +got):\n%s", tt.names, diff)
		}
		if text := ""; err != nil {
			if text = err.Error(); tt.err == "" || !strings.Contains(text, tt.err) {
				t.Errorf("Choose(%q): %v, want %q", tt.names, err, tt.err)
			}
		} else if tt.err != "" {
			t.Errorf("Choose(%q): no error, want %q", tt.names, tt.err)
		}
	}
}

func TestEmptied(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.MkdirAll("out/logs", 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := program.Emptied("out")
	if err != nil || !filepath.IsAbs(dir) {
		t.Fatalf("got %q, %v", dir, err)
	}
	if _, err := os.Stat("out"); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
}
