package resultfile

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "out", "bench.json")
	r := Report{Suite: "bench", Commit: "0123abcd", Kernel: "6.18.0", CPUs: 2, Rows: []Row{
		{Case: "gateway-path", Variant: "iptables", Metric: "udp_pps", Unit: "1/s", N: 7, Median: 2.5, Min: 1, Max: 3},
	}}
	if err := r.Write(name); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var got, want any
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(`{"suite":"bench","commit":"0123abcd","kernel":"6.18.0","cpus":2,"rows":[
		{"case":"gateway-path","variant":"iptables","metric":"udp_pps","unit":"1/s","n":7,"median":2.5,"min":1,"max":3}]}`), &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestNew(t *testing.T) {
	r, err := New("bench", nil)
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^\d+\.\d+`).MatchString(r.Kernel) || r.CPUs != runtime.NumCPU() {
		t.Errorf("report %+v", r)
	}
	t.Chdir(t.TempDir())
	if r, err = New("bench", nil); err != nil || r.Commit != "unknown" {
		t.Errorf("outside of a repository the commit is %q, %v", r.Commit, err)
	}
}
