// Command versions runs the tests of what depends on the API servers' version with the oldest and
// the newest supported Kubernetes in the hub and in members, in all four combinations, and prints a
// table of the results.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/lab/binaries"
	"github.com/pelago-net/pelago/test/program"
)

// check is one line of the table: tests of one package.
type check struct {
	title, pkg string
	tests      []string
}

var checks = []check{
	{"every admission policy refuses its canary", "./deploy/manifests", []string{"TestPoliciesAreWellTyped", "TestEveryPolicyHasACanary"}},
	{"rights of members at the hub", "./deploy/broker", []string{"TestMemberWritesItsOwnObjectsOnly", "TestMemberClaimsItsOwnRangesOnly"}},
	{"rights of pull members at the hub", "./deploy/manifests", []string{"TestMemberWorkloads", "TestMemberSetsListedFieldsOfItsClusterOnly"}},
	{"deploy-broker, join, unjoin", "./cmd/pelago", []string{"TestDeployBrokerAndJoin"}},
	{"services are exported and imported", "./cmd/pelago-agent", []string{"TestClusterset"}},
	{"a pull member applies Works", "./cmd/pelago-agent", []string{"TestExecution"}},
	{"a policy, an override, failover", "./test/versions", []string{"TestFailover"}},
}

// combination is the Kubernetes of the hub and of the members.
type combination struct{ hub, member string }

func (c combination) String() string { return c.hub + "/" + c.member }

var combinations = []combination{
	{binaries.OldestHub, binaries.OldestMember}, {binaries.OldestHub, binaries.KubernetesVersion},
	{binaries.KubernetesVersion, binaries.OldestMember}, {binaries.KubernetesVersion, binaries.KubernetesVersion},
}

func main() { program.Main("versions", run) }

func run(_ []string, out io.Writer) error {
	ctx, stop := program.Context()
	defer stop()
	for _, version := range []string{binaries.KubernetesVersion, binaries.OldestHub, binaries.OldestMember} {
		if _, err := binaries.KubernetesRelease(ctx, version, func(line string) { slog.Info(line) }); err != nil {
			return err
		}
	}
	root, err := binaries.Repository()
	if err != nil {
		return err
	}
	results, failed := map[string]map[combination]string{}, 0
	for _, c := range combinations {
		for _, k := range checks {
			begin := time.Now()
			log, err := test(ctx, root, c, k)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			result := fmt.Sprintf("ok, %.0f s", time.Since(begin).Seconds())
			if err != nil {
				failed++
				result = "FAILED"
				slog.Error(k.title, "hub", c.hub, "members", c.member, "error", err, "output", string(log))
			}
			slog.Info(k.title, "hub", c.hub, "members", c.member, "result", result)
			if results[k.title] == nil {
				results[k.title] = map[combination]string{}
			}
			results[k.title][c] = result
		}
	}
	if err := table(out, results); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d checks failed", failed, len(checks)*len(combinations))
	}
	return nil
}

// test runs one check. A test that has not run is a failure.
func test(ctx context.Context, root string, c combination, k check) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-timeout=30m", "-v", "-run=^("+strings.Join(k.tests, "|")+")$", k.pkg)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), apiserver.HubVersion+"="+c.hub, apiserver.MemberVersion+"="+c.member)
	out, err := cmd.CombinedOutput()
	for _, name := range k.tests {
		if err == nil && !bytes.Contains(out, []byte("--- PASS: "+name+" ")) {
			err = fmt.Errorf("%s did not run %s", filepath.Clean(k.pkg), name)
		}
	}
	return out, err
}

// table prints what came out, one column for each combination.
func table(out io.Writer, results map[string]map[combination]string) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprint(w, "HUB/MEMBERS")
	for _, c := range combinations {
		fmt.Fprintf(w, "\t%s", c)
	}
	fmt.Fprintln(w)
	for _, k := range checks {
		fmt.Fprint(w, k.title)
		for _, c := range combinations {
			fmt.Fprintf(w, "\t%s", results[k.title][c])
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}
