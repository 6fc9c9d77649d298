// Command conformance runs the public conformance suite of the MCS API on two real clusters: `make
// conformance`. It brings the clusters up, installs the product in them, runs the suite against
// them and keeps its reports.
//
//	go run ./test/conformance -mode mcs,globalnet -suite ../mcs-api/conformance -out out/conformance
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/pelago-net/pelago/test/e2e/walk"
	"github.com/pelago-net/pelago/test/images"
	"github.com/pelago-net/pelago/test/lab"
	"github.com/pelago-net/pelago/test/program"
)

func main() { program.Main("conformance", run) }

// mode is a way to join the clusters. The first context of a run is the exporting cluster, whose
// export is the oldest.
type mode struct {
	name     string
	plain    bool       // without globalnet
	contexts []string   // one run of the suite each
	excluded []excluded // specs that cannot pass
}

var modes = []mode{
	{name: "mcs", plain: true, contexts: []string{"g1,g2", "g2,g1"}},
	{name: "globalnet", contexts: []string{"g1,g2"}, excluded: withGlobalnet},
}

type options struct {
	suite, version string
	focus          string
	out, lab       string
	bin, images    string
}

func run(args []string, out io.Writer) error {
	var o options
	flags := flag.NewFlagSet("conformance", flag.ExitOnError)
	names := flags.String("mode", "", "comma-separated modes: mcs, without globalnet and with the contexts in both orders, or globalnet (default: both)")
	flags.StringVar(&o.suite, "suite", "", "directory mcs-api/conformance of a checkout (default: the Go module in -version)")
	flags.StringVar(&o.version, "version", "v0.5.2", "version of the Go module "+suiteModule)
	flags.StringVar(&o.focus, "focus", "", "run only the specs whose description matches this regular expression")
	flags.StringVar(&o.out, "out", "out/conformance", "directory of the reports")
	flags.StringVar(&o.lab, "lab", "conform", "name of the lab")
	flags.StringVar(&o.bin, "bin", "bin", "directory of the product's programs")
	flags.StringVar(&o.images, "images", "out/images", "directory of the image archives")
	if err := flags.Parse(args); err != nil {
		return err
	}
	chosen, err := program.Choose("mode", *names, modes, func(m mode) string { return m.name })
	if err != nil {
		return err
	}
	for _, dir := range []*string{&o.out, &o.bin, &o.images} {
		if *dir, err = filepath.Abs(*dir); err != nil {
			return fmt.Errorf("find %s: %w", *dir, err)
		}
	}
	ctx, cancel := program.Context()
	defer cancel()
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", o.out, err)
	}
	suite := filepath.Join(o.out, "suite.test")
	if err := compile(ctx, o.suite, o.version, suite); err != nil {
		return err
	}
	image, err := images.ConformanceImage()
	if err != nil {
		return err
	}
	archive := filepath.Join(o.out, "image.tar")
	if _, err := image.Write(archive); err != nil {
		return err
	}
	var results []result
	var errs []error
	for _, m := range chosen {
		r, err := runMode(ctx, o, m, suite, archive)
		results, errs = append(results, r...), append(errs, err)
	}
	printTable(out, results)
	return errors.Join(errs...)
}

// runMode runs the suite once for each order of contexts, on clusters that it brings up and
// removes.
func runMode(ctx context.Context, o options, m mode, suite, archive string) (results []result, err error) {
	defer func() {
		down := lab.Down(context.WithoutCancel(ctx), o.lab, func(string) {})
		if errors.Is(down, lab.ErrNotFound) {
			down = nil
		}
		err = errors.Join(err, down)
	}()
	w, err := bringUp(ctx, o, m, archive)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, contexts := range m.contexts {
		dir, err := program.Emptied(filepath.Join(o.out, m.name, strings.ReplaceAll(contexts, ",", "-")))
		if err != nil {
			return results, err
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return results, fmt.Errorf("make %s: %w", dir, err)
		}
		begin := time.Now()
		failure := runSuite(ctx, suite, dir, w.Lab.Kubeconfig(), contexts, o.focus)
		if ctx.Err() != nil {
			return results, ctx.Err()
		}
		specs, err := readJUnit(filepath.Join(dir, "junit.xml"))
		if err != nil {
			return results, errors.Join(err, failure)
		}
		r := result{mode: m.name, contexts: contexts, specs: specs}
		slog.Info("the suite has run", "mode", m.name, "contexts", contexts, "passed", r.passed(), "specs", len(specs),
			"reports", dir, "elapsed", time.Since(begin).Round(time.Second))
		results = append(results, r)
		for _, e := range m.excluded {
			slog.Info("excluded in this mode", "spec", e.description, "reason", e.reason)
		}
		if err := r.verdict(m.excluded, o.focus != ""); err != nil {
			errs = append(errs, fmt.Errorf("mode %s, contexts %s: %w", m.name, contexts, err))
		}
	}
	return results, errors.Join(errs...)
}

// bringUp makes two clusters and installs the product and the suite's images in them.
func bringUp(ctx context.Context, o options, m mode, archive string) (*walk.Walk, error) {
	if err := lab.Down(ctx, o.lab, func(string) {}); err != nil && !errors.Is(err, lab.ErrNotFound) {
		return nil, err
	}
	w := &walk.Walk{Plain: m.plain, Mode: "mcs", Bin: o.bin, Images: o.images, Dir: filepath.Join(o.out, m.name), Out: io.Discard}
	if err := os.MkdirAll(w.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make %s: %w", w.Dir, err)
	}
	lo := lab.Options{Name: o.lab, Clusters: 2, Progress: func(line string) { slog.Info("lab", "step", line) }}
	for _, cluster := range []string{"g1", "g2"} {
		lo.PodCIDRs = append(lo.PodCIDRs, netip.MustParsePrefix(w.Pods(cluster)))
		lo.ServiceCIDRs = append(lo.ServiceCIDRs, netip.MustParsePrefix(w.Services(cluster)))
	}
	if !m.plain { // one prefix stands for both clusters
		lo.PodCIDRs, lo.ServiceCIDRs = lo.PodCIDRs[:1], lo.ServiceCIDRs[:1]
	}
	var err error
	if w.Lab, err = lab.Up(ctx, lo); err != nil {
		return nil, err
	}
	if err := w.Lab.LoadImage(ctx, archive); err != nil {
		return nil, err
	}
	if err := w.Install(ctx); err != nil {
		return nil, err
	}
	return w, w.Connected(ctx)
}

const suiteModule = "sigs.k8s.io/mcs-api/conformance"

// compile makes the suite's test program, from a checkout or from its Go module.
func compile(ctx context.Context, dir, version, program string) error {
	remedy := "clone kubernetes-sigs/mcs-api and name its directory: make conformance SUITE=…/mcs-api/conformance"
	pkg := "."
	if dir != "" {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
			return fmt.Errorf("the suite is not in %s: %w: %s", dir, err, remedy)
		}
	} else {
		temp, err := os.MkdirTemp("", "pelago-conformance-")
		if err != nil {
			return fmt.Errorf("make a directory for the suite's module: %w", err)
		}
		defer os.RemoveAll(temp)
		dir, pkg = temp, suiteModule
		for _, args := range [][]string{{"mod", "init", "suite"}, {"get", "-t", suiteModule + "@" + version}} {
			if out, err := command(ctx, dir, "go", args...).CombinedOutput(); err != nil {
				return fmt.Errorf("get the Go module %s %s: %w: %s\n%s", suiteModule, version, err, out, remedy)
			}
		}
	}
	if out, err := command(ctx, dir, "go", "test", "-c", "-o", program, pkg).CombinedOutput(); err != nil {
		return fmt.Errorf("compile the suite in %s: %w: %s", dir, err, out)
	}
	return nil
}

// runSuite runs the suite's program in dir, which gets its report in addition to ours.
func runSuite(ctx context.Context, suite, dir, kubeconfig, contexts, focus string) error {
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return fmt.Errorf("write the log of the suite: %w", err)
	}
	defer log.Close()
	args := []string{"-contexts=" + contexts, "-kubeconfig=" + kubeconfig, "-test.timeout=1h", "-ginkgo.v", "-ginkgo.no-color",
		"-ginkgo.timeout=1h", "-ginkgo.junit-report=junit.xml"}
	if focus != "" {
		args = append(args, "-ginkgo.focus="+focus)
	}
	cmd := command(ctx, dir, suite, args...)
	cmd.Stdout, cmd.Stderr = log, log
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
