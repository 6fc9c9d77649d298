// Command karmada runs Karmada's own end-to-end suite against Pelago: `make conformance-karmada`.
// It builds the suite from its Go module, brings up a hub with three push members, runs the suite's
// specs against them, and compares with specs.yaml what passes.
//
//	go run ./test/conformance/karmada -focus 'OverridePolicy'
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"go/build"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/pelago-net/pelago/test/program"
)

func main() { program.Main("conformance-karmada", run) }

type options struct {
	version  string
	focus    string
	out, bin string
	procs    int
	migrate  bool
	timeout  time.Duration
}

func run(args []string, out io.Writer) error {
	var o options
	flags := flag.NewFlagSet("conformance-karmada", flag.ExitOnError)
	flags.StringVar(&o.version, "version", "v1.16.0", "version of the Go module "+suiteModule)
	flags.StringVar(&o.focus, "focus", "", "run only the specs whose text matches this regular expression, or that are in the file NAME_test.go: of the suite")
	flags.StringVar(&o.out, "out", "out/conformance-karmada", "directory of programs, kubeconfigs and logs; the report is beside it, with .json")
	flags.StringVar(&o.bin, "bin", "bin", "directory of the product's programs")
	flags.IntVar(&o.procs, "procs", 4, "specs that run at the same time")
	flags.BoolVar(&o.migrate, "migrate", false, "in place of the suite: run Karmada's own control plane, move it to Pelago and back")
	flags.DurationVar(&o.timeout, "timeout", 90*time.Minute, "time after which the suite is ended")
	if err := flags.Parse(args); err != nil {
		return err
	}
	for _, dir := range []*string{&o.out, &o.bin} {
		var err error
		if *dir, err = filepath.Abs(*dir); err != nil {
			return fmt.Errorf("find %s: %w", *dir, err)
		}
	}
	table, err := readTable(specsYAML)
	if err != nil {
		return err
	}
	program.QuietClients()
	ctx, cancel := program.Context()
	defer cancel()
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", o.out, err)
	}
	if o.migrate {
		return migrate(ctx, o)
	}
	suite, err := compile(ctx, o, programs)
	if err != nil {
		return err
	}
	specs, err := measure(ctx, o, suite, table)
	if err != nil {
		return err
	}
	if err := writeReport(o.out+".json", specs); err != nil {
		return err
	}
	printSummary(out, specs)
	return verdict(specs, table, o.focus != "")
}

// measure brings up the clusters, runs the suite on them and ends them.
func measure(ctx context.Context, o options, suite string, table []entry) (specs []spec, err error) {
	c, err := bringUp(ctx, o, suite)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	extra := serveClusters(c)
	defer func() { err = errors.Join(err, extra.Close()) }()
	begin := time.Now()
	failure := runSuite(ctx, o, table, extra.URL)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	specs, err = readReport(filepath.Join(o.out, "report.json"), table)
	if err != nil {
		return nil, errors.Join(err, failure)
	}
	slog.Info("the suite has run", "specs", len(specs), "log", filepath.Join(o.out, "log"), "elapsed", time.Since(begin).Round(time.Second))
	return specs, nil
}

// runSuite runs the suite's program; Ginkgo runs serial specs after all others. That specs fail is
// in the report.
func runSuite(ctx context.Context, o options, table []entry, clusters string) error {
	log, err := os.Create(filepath.Join(o.out, "log"))
	if err != nil {
		return fmt.Errorf("write the log of the suite: %w", err)
	}
	defer log.Close()
	args := []string{fmt.Sprintf("-procs=%d", o.procs), "-v", "-no-color", "-keep-going", "-json-report=report.json", "-timeout=" + o.timeout.String()}
	args = append(args, skips(table)...)
	if file, ok := strings.CutSuffix(o.focus, "_test.go:"); ok {
		args = append(args, "-focus-file=/"+file+"_test.go")
	} else if o.focus != "" {
		args = append(args, "-focus="+o.focus)
	}
	args = append(args, "suite.test", "--", "-poll-interval="+pollInterval.String(), "-poll-timeout="+pollTimeout.String())
	cmd := command(ctx, o.out, filepath.Join(o.out, "ginkgo"), args...)
	// Specs write kubeconfigs below HOME and run karmadactl of GOPATH; Ginkgo asks go for its
	// version, whose modules are the user's own.
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(o.out, suiteKubeconfig), "HOME="+o.out, "GOPATH="+o.out,
		"GOMODCACHE="+cmp.Or(os.Getenv("GOMODCACHE"), filepath.Join(build.Default.GOPATH, "pkg", "mod")),
		clustersVariable+"="+clusters)
	cmd.Stdout, cmd.Stderr = log, log
	// Ginkgo ends its processes
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run the suite: %w: its log is %s", err, log.Name())
	}
	return nil
}

func command(ctx context.Context, dir, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	return cmd
}
