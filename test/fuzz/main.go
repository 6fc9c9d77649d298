// Command fuzz runs every fuzz target of the module for a time each. Inputs that extend the
// coverage are kept in the cache directory, inputs that fail in testdata/fuzz of the package, where
// `go test` runs them from then on.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// target is one fuzz function.
type target struct{ pkg, name string }

func main() {
	var o options
	flag.StringVar(&o.dir, "C", ".", "directory of the module")
	flag.StringVar(&o.cache, "cache", "out/fuzz", "directory of the inputs that extend the coverage")
	flag.DurationVar(&o.time, "time", 30*time.Second, "time for each target")
	match := flag.String("match", ".", "regular expression of the targets, as package.Function")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if o.match, err = regexp.Compile(*match); err == nil {
		err = o.run(ctx, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

type options struct {
	dir, cache string
	time       time.Duration
	match      *regexp.Regexp
}

// run fuzzes all targets, one after the other, and reports all that fail.
func (o options) run(ctx context.Context, out io.Writer) error {
	targets, err := o.targets(ctx)
	if err != nil {
		return err
	}
	if len(targets) == 0 {
		return fmt.Errorf("find fuzz targets: none matches %q", o.match)
	}
	cache, err := filepath.Abs(o.cache)
	if err != nil {
		return fmt.Errorf("find the directory of the cache: %w", err)
	}
	var failed []error
	for _, t := range targets {
		fmt.Fprintf(out, "=== %s.%s\n", t.pkg, t.name)
		// Minimization of one input takes up to a minute by default, during which nothing is
		// fuzzed. The second -test.fuzzcachedir wins over that of the go command.
		cmd := o.command(ctx, "test", "-run=^$", "-fuzz=^"+t.name+"$", "-fuzztime="+o.time.String(), "-fuzzminimizetime=1s", t.pkg,
			"-args", "-test.fuzzcachedir="+filepath.Join(cache, filepath.FromSlash(t.pkg)))
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Run(); err != nil {
			failed = append(failed, fmt.Errorf("%s.%s: %w", t.pkg, t.name, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("%d of %d targets failed:\n%w", len(failed), len(targets), errors.Join(failed...))
	}
	fmt.Fprintf(out, "%d targets, %s each: none failed\n", len(targets), o.time)
	return ctx.Err()
}

// targets asks the test binaries of all packages whose test files declare a fuzz function.
func (o options) targets(ctx context.Context) ([]target, error) {
	listed, err := o.output(ctx, "list", "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles", "./...")
	if err != nil {
		return nil, fmt.Errorf("list packages: %w", err)
	}
	var out []target
	for d := json.NewDecoder(bytes.NewReader(listed)); ; {
		var p struct {
			ImportPath, Dir           string
			TestGoFiles, XTestGoFiles []string
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return nil, fmt.Errorf("list packages: %w", err)
		}
		if has, err := declares(p.Dir, append(p.TestGoFiles, p.XTestGoFiles...)); err != nil {
			return nil, err
		} else if !has {
			continue // its test binary need not be built
		}
		names, err := o.output(ctx, "test", "-list=^Fuzz", p.ImportPath)
		if err != nil {
			return nil, fmt.Errorf("list targets of %s: %w", p.ImportPath, err)
		}
		for lines := bufio.NewScanner(bytes.NewReader(names)); lines.Scan(); {
			if name := lines.Text(); strings.HasPrefix(name, "Fuzz") && o.match.MatchString(p.ImportPath+"."+name) {
				out = append(out, target{p.ImportPath, name})
			}
		}
	}
}

// declares reports whether one of the files declares a fuzz function.
func declares(dir string, files []string) (bool, error) {
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(dir, f))
		if err != nil {
			return false, fmt.Errorf("read test file: %w", err)
		}
		if bytes.Contains(text, []byte("\nfunc Fuzz")) {
			return true, nil
		}
	}
	return false, nil
}

func (o options) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = o.dir
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	return cmd
}

func (o options) output(ctx context.Context, args ...string) ([]byte, error) {
	cmd := o.command(ctx, args...)
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w: %s%s", args[0], err, problems.Bytes(), out)
	}
	return out, nil
}
