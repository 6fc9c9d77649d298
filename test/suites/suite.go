package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelago-net/pelago/test/need"
)

// module is the prefix of the tree's packages.
const module = "github.com/pelago-net/pelago/"

// Tiers, in the order in which they hold: each assumes that those before it pass (test/README.md).
const (
	tierCheck    = need.TierCheck // Go alone
	tierTest     = "test"         // the command of the README
	tierClusters = "clusters"     // what else must hold at each landing
	tierFull     = "full"         // the rare variants, before a release
)

var tiers = []string{tierCheck, tierTest, tierClusters, tierFull}

// suite is a part of tiers: packages for `go test`, or a target of the Makefile.
type suite struct {
	name     string
	about    string
	tiers    []string // that run it; its tests see the first one
	target   string   // of the Makefile; none: packages are tested
	packages []string // patterns of `go list`
	without  []string // packages to leave out, by patterns
	only     []string // tests to run; none: all but those in except
	except   []string
	flags    []string // of `go test`
	race     bool
	// cached: tests whose sources have not changed do not run again.
	cached bool
	// rerun runs what failed once more. Only for suites that share the machine's kernel and clock
	// with everything else on it: a unit test, a packet test or one with the race detector that
	// fails has found a defect.
	rerun   bool
	verbose bool // prints each test as it runs
	// background: it needs only CPU time, and gets what the other suites leave (runIdle). Suites of
	// tests cannot run like that, since they wait for API servers and leases.
	background bool
}

var (
	// concurrent are the packages with goroutines.
	concurrent = []string{"./dataplane/...", "./control/...", "./dns/...", "./cmd/pelago-dns/..."}
	// Packages whose tests take minutes begin first: at the end one would run alone.
	slowest    = []string{"./dataplane/cable", "./control/execute", "./control/hub/propagate", "./test/packet", "./control/hub/cluster", "./control/hub/access", "./dataplane/loader", "./control/kinds"}
	namespaces = []string{"./test/netns/..."}
	clusters   = []string{"./test/lab", "./test/e2e"}
	benchmark  = []string{"./test/bench", "./test/bench/node"}
)

// compiled are the flags of suites with many packages: most of these wait for API servers and
// timers, so that six at a time keep two cores busy, and linking without DWARF takes half the time.
var compiled = []string{"-timeout=30m", "-p=6", "-ldflags=-w"}

// Tests with a suite of their own.
var (
	walkE2E = []string{"TestWireGuard"}
	rareLab = []string{"TestLabWithNFTables"}
	rareE2E = []string{"TestTwoClustersLong", "TestWireGuardLong", "TestNFTables", "TestWithoutGlobalnet", "TestIPsec", "TestBehindNAT",
		"TestThreeClusters", "TestHubInstall", "TestVersions", "TestMigrateSubmariner", "TestDayTwo", "TestRanges", "TestFaults"}
	cniE2E  = []string{"TestCNI"}                         // with each CNI of the lab
	release = []string{"TestReleaseImage", "TestRelease"} // compile the product for other platforms
	// Of programs, each with several API servers.
	programTests = []string{
		"TestClusterAPI", "TestClusterAPIPull", "TestClusterset", "TestClustersetDistinctCIDRs", "TestExecution", "TestOperatorOfMember", "TestOperatorOfHub",
		"TestDeinit", "TestDeployBrokerAndJoin", "TestDryRun", "TestHosted", "TestInitWhereWorkloadsRun", "TestMemberCommands", "TestMigrateSubmariner",
		"TestRegister", "TestGatewayRotateKeys", "TestPushAndPull", "TestWorkloadCommands", "TestWorkloadsOnly",
		"TestChurn", "TestKills", "TestFailover", "TestLocal", "TestKubectl",
	}
	datapaths = []string{"TestHybridTown", "TestFastTown", "TestXDPTown", "TestPlainTown"}
)

var suites = []suite{
	{name: "verify", about: "generated code is what the sources make, formatted", tiers: []string{tierTest}, target: "verify"},
	{name: "generated", about: "generated code is what the sources make", tiers: []string{tierCheck}, target: "generated"},
	{name: "lint", about: "gofmt, go mod tidy, vet, staticcheck, known vulnerabilities, the CLI for other systems", tiers: []string{tierCheck, tierTest}, target: "lint", background: true},
	{name: "pure", about: "tests that need Go alone", tiers: []string{tierCheck}, packages: []string{"./..."}, cached: true,
		except: release, flags: []string{"-ldflags=-w"}},
	{name: "unit", about: "packets, controllers against API servers, all else without namespaces or clusters", tiers: []string{tierTest}, packages: append(slices.Clone(slowest), "./..."),
		without: slices.Concat(namespaces, clusters, benchmark), except: slices.Concat(release, programTests), flags: compiled},
	{name: "walk", about: "two joined clusters: install, names, NAT, encryption, a gateway's death, policy, override", tiers: []string{tierTest}, packages: []string{"./test/e2e"},
		rerun: true, verbose: true, only: walkE2E, flags: []string{"-timeout=30m"}},
	// Last of its tier: some of its tests put a load on both cores.
	{name: "netns", about: "two clusters of namespaces on the real data path", tiers: []string{tierTest}, packages: namespaces, except: datapaths, rerun: true,
		flags: []string{"-timeout=30m"}},

	{name: "programs", about: "commands, agents and pelago-hub, each against several API servers", tiers: []string{tierClusters}, packages: []string{"./cmd/...", "./test/chaos", "./test/versions", "./deploy/hub", "./test/api"},
		only: programTests, flags: append(slices.Clone(compiled), "-p=2")},
	{name: "race", about: "packages with goroutines under the race detector", tiers: []string{tierClusters}, packages: slices.Concat(slowest[:3], concurrent), race: true,
		without: []string{"./control/kinds/..."}, flags: append(slices.Clone(compiled), "-p=5")},
	{name: "lab", about: "the lab's own clusters", tiers: []string{tierClusters}, packages: []string{"./test/lab"}, rerun: true, verbose: true,
		except: rareLab, flags: []string{"-timeout=30m"}},
	{name: "e2e", about: "two joined clusters: failures and changes", tiers: []string{tierClusters}, packages: []string{"./test/e2e"}, rerun: true, verbose: true,
		except: slices.Concat(walkE2E, rareE2E, cniE2E), flags: []string{"-timeout=70m"}},
	{name: "datapaths", about: "the suite netns in the other datapaths", tiers: []string{tierClusters}, packages: []string{"./test/netns/clusters"}, only: datapaths, rerun: true,
		flags: []string{"-timeout=30m", "-parallel=4"}},
	{name: "smoke", about: "short runs of the benchmark, with nothing beside them", tiers: []string{tierClusters}, packages: benchmark, rerun: true, flags: []string{"-p=1", "-timeout=20m"}},

	{name: "lab-rare", about: "the lab with kube-proxy in nftables mode", tiers: []string{tierFull}, packages: []string{"./test/lab"}, rerun: true, verbose: true,
		only: rareLab, flags: []string{"-timeout=30m"}},
	{name: "e2e-rare", about: "more failures and changes, nftables kube-proxy, no globalnet, IPsec, a cluster behind NAT, three clusters, a hub in a host cluster, an upgrade from the first layout and back, a move from Submariner",
		tiers: []string{tierFull}, packages: []string{"./test/e2e"}, rerun: true, verbose: true,
		only: rareE2E, flags: []string{"-timeout=3h", "-args", "-kills=20", "-flood=1m"}},
	{name: "cni", about: "two joined clusters with each CNI of the lab, which are compiled the first time", tiers: []string{tierFull}, packages: []string{"./test/e2e"}, verbose: true,
		only: cniE2E, flags: []string{"-timeout=4h"}},
	{name: "versions", about: "the oldest and the newest supported Kubernetes in hub and members", tiers: []string{tierFull}, target: "test-versions"},
	{name: "charts", about: "the Helm charts against API servers", tiers: []string{tierFull}, target: "test-charts"},
	{name: "release", about: "a release, twice, and its image for amd64 and arm64", tiers: []string{tierFull}, packages: []string{"./test/images", "./test/release"},
		only: release, flags: []string{"-timeout=60m"}},
	{name: "variants", about: "the benchmark's variants at every scale", tiers: []string{tierFull}, packages: []string{"./test/bench"}, rerun: true,
		only: []string{"TestVariantsCarryTraffic"}, flags: []string{"-timeout=30m", "-args", "-every"}},
	{name: "model", about: "ten million random steps of the model of the flow table against the programs", tiers: []string{tierFull}, packages: []string{"./test/packet"},
		only: []string{"TestModel"}, flags: []string{"-timeout=60m", "-args", "-steps=10000000"}},
	{name: "wires", about: "WireGuard and IPsec without globalnet", tiers: []string{tierFull}, packages: []string{"./test/e2e"}, rerun: true, verbose: true,
		only: []string{"TestWireGuard", "TestWireGuardLong", "TestIPsec"}, flags: []string{"-timeout=90m", "-args", "-plain"}},
}

// command is what runs the suite, of the packages that it expands to; its events are written to
// jsonFile.
func (s suite) command(packages []string, jsonFile string) *exec.Cmd {
	if s.target != "" {
		return exec.Command("make", "--no-print-directory", s.target)
	}
	format := "standard-quiet"
	if s.verbose {
		format = "standard-verbose"
	}
	args := []string{"tool", "gotestsum", "--format", format, "--jsonfile", jsonFile, "--packages", strings.Join(packages, " ")}
	if s.rerun {
		// whole tests: subtests may depend on those before them
		args = append(args, "--rerun-fails=1", "--rerun-fails-max-failures=5", "--rerun-fails-run-root-test")
	}
	args = append(args, "--", "-vet=off") // lint vets all packages
	if !s.cached {
		args = append(args, "-count=1")
	}
	if s.race {
		args = append(args, "-race")
	}
	for flag, tests := range map[string][]string{"-run": s.only, "-skip": s.except} {
		if len(tests) > 0 {
			args = append(args, flag+"=^("+strings.Join(tests, "|")+")$")
		}
	}
	cmd := exec.Command("go", append(args, s.flags...)...)
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED="+map[bool]string{true: "1", false: "0"}[s.race], need.TierVariable+"="+s.tiers[0])
	// Compilers and API servers take a seventh less CPU time and more memory with it. What runs once
	// more measures, or runs pods: it keeps Go's default.
	if os.Getenv("GOGC") == "" && !s.rerun {
		cmd.Env = append(cmd.Env, "GOGC=400")
	}
	return cmd
}

// expand are the packages that the suite tests.
func (s suite) expand() ([]string, error) {
	packages, err := list(s.packages)
	if err != nil || len(s.without) == 0 {
		return packages, err
	}
	out, err := list(s.without)
	return slices.DeleteFunc(packages, func(p string) bool { return slices.Contains(out, p) }), err
}

// list expands patterns in their order, each package once.
func list(patterns []string) ([]string, error) {
	var all []string
	for _, p := range patterns {
		out, err := exec.Command("go", "list", p).Output()
		if err != nil {
			return nil, commandError("list the packages "+p, err)
		}
		for _, name := range strings.Fields(string(out)) {
			if !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
	}
	return all, nil
}

// dir is where the files of a run are kept, below the repository's root.
func dir(elements ...string) string { return filepath.Join(append([]string{"out"}, elements...)...) }
