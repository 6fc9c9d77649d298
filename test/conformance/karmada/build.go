package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pelago-net/pelago/test/program"
)

const suiteModule = "github.com/karmada-io/karmada"

// How often and how long a spec polls: the suite's constants, 5 s and 7 min, are for a machine that
// pulls images. A spec that is expected to fail takes pollTimeout.
const (
	pollInterval = time.Second
	pollTimeout  = 100 * time.Second
)

// programs are what is built of the module, by the package.
var programs = map[string]string{
	"suite.test":     "./test/e2e/suites/base",
	"ginkgo":         "github.com/onsi/ginkgo/v2/ginkgo", // of the version that the suite links
	"webhook":        "./examples/customresourceinterpreter/webhook",
	"bin/karmadactl": "./cmd/karmadactl", // where the suite finds it: below GOPATH
}

// compile builds the programs from a copy of the module, with the dependencies that the module
// itself has, and returns its directory.
func compile(ctx context.Context, o options, programs map[string]string) (string, error) {
	copied, err := program.Emptied(filepath.Join(o.out, "module"))
	if err != nil {
		return "", err
	}
	var module struct{ Dir, Error string }
	// Outside of a module, so that go.mod of the working directory does not matter.
	text, err := command(ctx, os.TempDir(), "go", "mod", "download", "-json", suiteModule+"@"+o.version).Output()
	if err = errors.Join(json.Unmarshal(text, &module), err); err != nil || module.Error != "" {
		return "", fmt.Errorf("get the Go module %s %s: %w: %s: is GOPROXY reachable?", suiteModule, o.version, err, module.Error)
	}
	if err := os.CopyFS(copied, os.DirFS(module.Dir)); err != nil {
		return "", fmt.Errorf("copy the suite: %w", err)
	}
	if err := setPolling(filepath.Join(copied, "test", "e2e", "framework", "constant.go")); err != nil {
		return "", err
	}
	if err := replaceKind(filepath.Join(copied, "test", "e2e", "suites", "base")); err != nil {
		return "", err
	}
	for name, pkg := range programs {
		build := []string{"build"}
		if strings.HasSuffix(name, ".test") {
			build = []string{"test", "-c"}
		}
		cmd := command(ctx, copied, "go", append(build, "-o", filepath.Join(o.out, name), pkg)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("compile %s of the suite: %w: %s", pkg, err, out)
		}
	}
	return copied, nil
}

// setPolling changes the constants of polling in a file of the suite.
func setPolling(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the constants of the suite: %w", err)
	}
	for was, d := range map[string]time.Duration{"PollInterval = 5 * time.Second": pollInterval, "PollTimeout = 420 * time.Second": pollTimeout} {
		if !strings.Contains(string(text), was) {
			return fmt.Errorf("%s has no %q: this version of the suite is not known", file, was)
		}
		name, _, _ := strings.Cut(was, " ")
		text = []byte(strings.ReplaceAll(string(text), was, fmt.Sprintf("%s = time.Duration(%d)", name, d)))
	}
	if err := errors.Join(os.Chmod(file, 0o644), os.WriteFile(file, text, 0o644)); err != nil {
		return fmt.Errorf("set the constants of the suite: %w", err)
	}
	return nil
}
