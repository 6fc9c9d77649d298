package main

import (
	"strings"
	"time"
)

// suite is a test binary that runs in the VM.
type suite struct {
	name, pkg string
	// tests are what of it runs unless -run says otherwise; none: everything. parts are the subtests
	// that run of each, a pattern as for -test.run.
	tests []string
	parts string
	// skip does not run, with the reason next to it.
	skip []string
	args []string
	// limit is for the whole binary, far above what it takes.
	limit time.Duration
	why   string
}

// suites are all there are, in the order in which they run: what fails early explains most of what
// fails later.
var suites = []suite{
	// TestAttachPodEnds needs TCX, which Linux 6.1 has not.
	{name: "loader", pkg: "./dataplane/loader", limit: 20 * time.Minute,
		tests: []string{"TestMissingFeatures", "TestAttach", "TestAttachToTunnel", "TestCookie", "TestFlows", "TestPaths", "TestSelfRepair", "TestRemove",
			"TestAttachGoesFirst", "TestSockets", "TestRejectedProgram"},
		why: "the kernel's verifier takes our programs; maps; attachment by clsact or TCX, whichever the kernel has"},
	// TestRequirements reads the tests' sources, which are not there; TestEdgeSteers asks of 200
	// flows where they leave before a suspect path counts as dead, which is after 450 ms: emulation
	// is slower.
	{name: "packet", pkg: "./test/packet", skip: []string{"TestRequirements", "TestEdgeSteers"}, limit: 30 * time.Minute,
		why: "what the programs do to packets"},
	{name: "cable", pkg: "./dataplane/cable", args: []string{"-wires=kernel"}, limit: 30 * time.Minute,
		why: "the kernel's WireGuard, and its ESP over xfrm interfaces"},
	{name: "clusters", pkg: "./test/netns/clusters", limit: 30 * time.Minute,
		tests: []string{"TestClsact", "TestFar", "TestTown"}, parts: "^(every_combination|backends|headless|path_MTU|a_gateway_is_drained|the_daemon_dies|80_ms)",
		why: "two clusters over the real data path, also with netem's delay and loss between them"},
}

func nameOf(s suite) string { return s.name }

// command is how the guest runs it.
func (s suite) command(run string) []string {
	if run == "" && len(s.tests) > 0 {
		run = "^(" + strings.Join(s.tests, "|") + ")$"
		if s.parts != "" {
			run += "/" + s.parts
		}
	}
	c := []string{"/tests/" + s.name + ".test", "-test.v", "-test.timeout=" + s.limit.String()}
	if run != "" {
		c = append(c, "-test.run="+run)
	}
	if len(s.skip) > 0 {
		c = append(c, "-test.skip=^("+strings.Join(s.skip, "|")+")$")
	}
	return append(c, s.args...)
}
