// Package need is the only place where a test may be left out: what needs more than Go asks here
// first. Which tests run is a matter of the tier (test/README.md), not of what the machine happens
// to have: outside of `make check` nothing is left out as root, and a test whose program, package
// or kernel feature is missing fails and names it.
package need

import (
	"fmt"
	"os"
	"runtime"
	"testing"
)

// TierVariable is the environment variable with the tier that runs: TierCheck leaves out all that
// needs more than Go; any other value leaves out nothing; without a value (`go test ./...`) a test
// is left out unless it runs as root on Linux.
const (
	TierVariable = "PELAGO_TIER"
	TierCheck    = "check"
)

// LeftOut begins the message of each test that is left out; test/suites counts by it.
const LeftOut = "left out: needs "

// Root leaves out a test that loads eBPF programs or makes network namespaces, mounts or devices,
// perhaps with Debian packages of `make setup`.
func Root(t testing.TB) {
	t.Helper()
	leaveOut(t, "root on Linux", "make test")
}

// Kubernetes leaves out a test with API servers, whose programs `make setup` builds.
func Kubernetes(t testing.TB) {
	t.Helper()
	leaveOut(t, "Kubernetes' API server", "make test")
}

// Clusters leaves out a test with clusters of the lab (test/lab).
func Clusters(t testing.TB) {
	t.Helper()
	leaveOut(t, "clusters with nodes", "make test-clusters")
}

func leaveOut(t testing.TB, what, command string) {
	t.Helper()
	if left(os.Getenv(TierVariable), runtime.GOOS, os.Geteuid()) {
		t.Skip(message(what, command))
	}
}

// left reports whether a tier leaves out what needs more than Go.
func left(tier, system string, user int) bool {
	return tier == TierCheck || tier == "" && (system != "linux" || user != 0)
}

func message(what, command string) string {
	return fmt.Sprintf("%s%s: run `%s`", LeftOut, what, command)
}
