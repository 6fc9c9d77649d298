// Package resultfile is the form of the result files that every suite which measures writes: bench,
// failover, vm.
package resultfile

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Report is the content of a result file.
type Report struct {
	Suite string `json:"suite"`
	// "-dirty" at its end: the tree had changes; "unknown" without git or a repository
	Commit string `json:"commit"`
	Kernel string `json:"kernel"` // release of what was measured
	CPUs   int    `json:"cpus"`
	Rows   []Row  `json:"rows"`
}

// Row is one metric of one variant in one case over its repetitions.
type Row struct {
	Case    string  `json:"case"`
	Variant string  `json:"variant"`
	Metric  string  `json:"metric"`
	Unit    string  `json:"unit"`
	N       int     `json:"n"` // number of repetitions, or of whatever was counted, that count
	Median  float64 `json:"median"`
	Min     float64 `json:"min"`
	Max     float64 `json:"max"`
}

// New is the report of a suite that ran on this machine, from the repository of the working
// directory.
func New(suite string, rows []Row) (Report, error) {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return Report{}, fmt.Errorf("read the kernel's release: %w", err)
	}
	return Report{Suite: suite, Commit: commit(), Kernel: unix.ByteSliceToString(uts.Release[:]), CPUs: runtime.NumCPU(), Rows: rows}, nil
}

func commit() string {
	head, err := exec.Command("git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(head))
}

// Write puts the report into a file, whose folder it makes.
func (r Report) Write(name string) error {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return fmt.Errorf("encode the report: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return os.WriteFile(name, append(b, '\n'), 0o644)
}
