package cni

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestPageIsCurrent: docs/cni.md is what its results make.
func TestPageIsCurrent(t *testing.T) {
	all, err := Read("results.json")
	if err != nil {
		t.Fatal(err)
	}
	have, err := os.ReadFile("../../docs/cni.md")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Page(all), string(have)); diff != "" {
		t.Errorf("docs/cni.md is stale: run `go run ./test/cni/report` (-want +have):\n%s", diff)
	}
}

func TestMerge(t *testing.T) {
	r := func(cell, step, verdict string) Result { return Result{Cell: cell, Step: step, Verdict: verdict} }
	old := []Result{r("ptp", "install", Passed), r("ptp", "udp", Failed), r("bridge", "udp", Passed)}
	got := Merge(old, []Result{r("ptp", "udp", Passed), r("ptp", "install", Passed)})
	// the step "udp" of the old run of ptp is gone with that run
	want := []Result{r("bridge", "udp", Passed), r("ptp", "install", Passed), r("ptp", "udp", Passed)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestRead(t *testing.T) {
	for content, want := range map[string]string{
		`[{"cell":"ptp","step":"udp","verdict":"passed"}]`:  "",
		`[{"step":"udp","verdict":"passed"}]`:               "has no cell",
		`[{"cell":"ptp","step":"tea","verdict":"passed"}]`:  `no step "tea"`,
		`[{"cell":"ptp","step":"udp","verdict":"perhaps"}]`: `"perhaps" is no verdict`,
		`{`: "read the results",
	} {
		file := filepath.Join(t.TempDir(), "results.json")
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		all, err := Read(file)
		if want == "" && (err != nil || len(all) != 1) {
			t.Errorf("%s: %v, %v", content, all, err)
		}
		if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", content, err, want)
		}
	}
	if all, err := Read(filepath.Join(t.TempDir(), "none")); err != nil || len(all) > 0 {
		t.Errorf("no file: %v, %v; want no results", all, err)
	}
}

func TestWrite(t *testing.T) {
	file := filepath.Join(t.TempDir(), "out", "ptp.json")
	want := []Result{{Cell: "ptp", Step: "udp", Verdict: Passed, Seconds: 1.5, Commit: "0123", Date: "2026-11-30"}}
	if err := Write(file, want); err != nil {
		t.Fatal(err)
	}
	got, err := Read(file)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
}

func TestPage(t *testing.T) {
	page := Page([]Result{
		{Cell: "bridge", Step: "udp", Verdict: Passed, Seconds: 60, Commit: "0123456789abcdef-dirty", Date: "2026-11-30", Kernel: "6.18"},
		{Cell: "bridge", Step: "policy fast", Verdict: None},
		{Cell: "flannel", Version: "0.28.10", Step: "udp", Verdict: Failed, Detail: "3 of 1000\ndatagrams are lost"},
	})
	for _, want := range []string{
		"| `bridge` | Debian's | 1 | 0 | 1.0 | 01234567-dirty | 2026-11-30 | 6.18 |",
		"| `flannel` | 0.28.10 | 0 | 1 | 0.0 |",
		"| udp | ✓ | ✗ |",
		"| policy fast | – |  |",
		"- `flannel`, udp:\n  3 of 1000 datagrams are lost\n",
		"- `kube-router`:\n  the lab has it; without a result",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is not in\n%s", want, page)
		}
	}
	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, "|") && len([]rune(line)) > 101 {
			t.Errorf("a line of %d columns: %s", len([]rune(line)), line)
		}
		for cell := range strings.SplitSeq(line, "|") {
			if strings.HasPrefix(line, "|") && len([]rune(cell)) > 200 {
				t.Errorf("a table cell of %d characters: %s", len([]rune(cell)), cell)
			}
		}
	}
}
