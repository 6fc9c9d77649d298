// Package program is what the measuring and breaking programs of the tests have in common: how they
// start, end, and read what is chosen.
package program

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

// Main runs a program with its arguments; its exit code is 1 if it failed.
func Main(name string, run func(args []string, out io.Writer) error) {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		slog.Error(name+" failed", "error", err)
		os.Exit(1)
	}
}

// QuietClients has client-go and controller-runtime log nothing: for programs that break
// connections on purpose, and report themselves what is wrong.
func QuietClients() {
	ctrllog.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
}

// Context ends with the first signal to end. A second one ends the program at once; the kernel or
// the next run clears up then.
func Context() (context.Context, context.CancelFunc) {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	context.AfterFunc(ctx, cancel)
	return ctx, cancel
}

// Emptied is the absolute name of a directory that is not there, or not any more.
func Emptied(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err == nil {
		err = os.RemoveAll(dir)
	}
	if err != nil {
		return "", fmt.Errorf("empty the directory %s: %w", dir, err)
	}
	return dir, nil
}

// Names are those of all.
func Names[T any](all []T, name func(T) string) []string {
	names := make([]string, len(all))
	for i, x := range all {
		names[i] = name(x)
	}
	return names
}

// Choose picks some by their comma-separated names, in that order; all if none is named. The error
// names what was sought, with its kind, and what there is.
func Choose[T any](kind, names string, all []T, name func(T) string) ([]T, error) {
	if names == "" {
		return all, nil
	}
	known := Names(all, name)
	seen := map[string]bool{}
	var chosen []T
	for n := range strings.SplitSeq(names, ",") {
		i := slices.Index(known, n)
		switch {
		case i < 0:
			return nil, fmt.Errorf("%s %q is unknown; there are %s", kind, n, strings.Join(known, ", "))
		case seen[n]:
			return nil, fmt.Errorf("%s %q is named twice", kind, n)
		}
		seen[n] = true
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}
