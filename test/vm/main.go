// Command vm boots a kernel of Debian in an emulated machine and runs in it those tests that need
// what the kernel of this machine may lack: WireGuard, ESP with xfrm interfaces, netem, and the
// eBPF verifier of an older kernel. Run it in the root of the repository: `make vm`, or `go run
// ./test/vm -help`.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/pelago-net/pelago/test/program"
	"github.com/pelago-net/pelago/test/vm/job"
)

type options struct {
	kernel, suites, run, json, dir, accelerator string
	cpus, memory                                int
	limit                                       time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.kernel, "kernel", "", "beginning of the version of a Debian kernel, such as 6.12; default: what "+defaultKernel+" depends on")
	flag.StringVar(&o.suites, "suites", "", "which test binaries, separated by commas, of: "+strings.Join(program.Names(suites, nameOf), ", ")+"; default: all")
	flag.StringVar(&o.run, "run", "", "run the tests that match, as go test -run; default: what the suite says")
	flag.StringVar(&o.json, "json", "", "write results to this file")
	flag.StringVar(&o.dir, "dir", filepath.Join("out", "vm"), "directory for kernels, the initramfs and the console's log")
	flag.StringVar(&o.accelerator, "accel", "tcg,thread=multi", "qemu's accelerator; kvm where the machine has it")
	flag.IntVar(&o.cpus, "cpus", 2, "processors of the VM")
	flag.IntVar(&o.memory, "memory", 3072, "MiB of memory of the VM")
	flag.DurationVar(&o.limit, "timeout", time.Hour, "end the VM after so long")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := do(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
		os.Exit(1)
	}
}

func do(ctx context.Context, o options) error {
	begin := time.Now()
	say := func(format string, args ...any) {
		fmt.Printf("[%4.0f s] %s\n", time.Since(begin).Seconds(), fmt.Sprintf(format, args...))
	}
	wanted, err := program.Choose("suite", o.suites, suites, nameOf)
	if err != nil {
		return err
	}
	k, err := findKernel(ctx, o.kernel, filepath.Join(o.dir, "kernels"))
	if err != nil {
		return err
	}
	say("kernel %s", k.release)
	m := machine{
		kernel: k.image, initramfs: filepath.Join(o.dir, "initramfs"), console: filepath.Join(o.dir, "console.log"),
		cpus: o.cpus, memory: o.memory, accelerator: o.accelerator,
	}
	if err := initramfs(ctx, m.initramfs, k, wanted, o.run, say); err != nil {
		return err
	}
	say("boot; the kernel's console goes to %s", m.console)
	limited, cancel := context.WithTimeoutCause(ctx, o.limit, fmt.Errorf("the time limit of %s is over (-timeout)", o.limit))
	defer cancel()
	var r result
	err = m.run(limited, func(text string) { say("%s", r.line(text)) })
	errs := []error{err, r.err(wanted)}
	if o.json != "" {
		report, err := r.report(o.cpus)
		if err == nil {
			err = report.Write(o.json)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	say("%d tests passed on Linux %s", len(r.tests), r.kernel)
	return nil
}

// initramfs makes the whole root directory of the VM, with the test binaries and the plan in it.
func initramfs(ctx context.Context, path string, k kernel, wanted []suite, run string, say func(string, ...any)) error {
	dir, err := os.MkdirTemp(filepath.Dir(path), "root")
	if err != nil {
		return fmt.Errorf("make the root directory of the VM: %w", err)
	}
	defer os.RemoveAll(dir)
	t := tree(dir)
	if err := t.fill(ctx, k); err != nil {
		return fmt.Errorf("fill the root directory of the VM: %w", err)
	}
	plan := job.Plan{Modules: modules}
	if err := goTool(ctx, "build", "-o", t.at("/init"), "./test/vm/guest"); err != nil {
		return err
	}
	for _, s := range wanted {
		say("build the tests of %s: %s", s.pkg, s.why)
		if err := goTool(ctx, "test", "-c", "-tags", "vm", "-o", t.at("/tests/"+s.name+".test"), s.pkg); err != nil {
			return err
		}
		plan.Jobs = append(plan.Jobs, job.Job{Name: s.name, Command: s.command(run), Dir: "/tests"})
	}
	raw, err := json.Marshal(plan)
	if err == nil {
		err = os.WriteFile(t.at(job.File), raw, 0o644)
	}
	if err != nil {
		return fmt.Errorf("write what the guest is to do: %w", err)
	}
	return t.archive(ctx, path)
}

// goTool runs the Go command; what it builds needs no library, as there may be another one in the
// VM.
func goTool(ctx context.Context, args ...string) error {
	c := exec.CommandContext(ctx, "go", args...)
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}
