package main

import (
	"time"
)

// suite is a test binary that runs in the VM.
type suite struct {
	name, pkg string
	// run is what of it runs unless -run says otherwise, as for -test.run; "": everything.
	run string
	// skip is what does not, with the reason next to it, as for -test.skip.
	skip string
	args []string
	// limit is for the whole binary, far above what it takes.
	limit time.Duration
	why   string
}

// suites are all there are, in the order in which they run: what fails early explains most of what
// fails later.
var suites = []suite{
	{name: "loader", pkg: "./dataplane/loader", run: "^Test(MissingFeatures|Attach|AttachToTunnel|Cookie|Flows|Paths|SelfRepair|Remove)$", limit: 20 * time.Minute,
		why: "the kernel's verifier takes our programs; maps; attachment by clsact or TCX, whichever the kernel has"},
	// TestRequirements reads the tests' sources, which are not there; TestEdgeSteers asks of 200
	// flows where they leave before a suspect path counts as dead, which is after 450 ms: emulation
	// is slower.
	{name: "packet", pkg: "./test/packet", skip: "^Test(Requirements|EdgeSteers)$", limit: 30 * time.Minute,
		why: "what the programs do to packets"},
	{name: "cable", pkg: "./dataplane/cable", args: []string{"-wires=kernel"}, limit: 30 * time.Minute,
		why: "the kernel's WireGuard, and its ESP over xfrm interfaces"},
	{name: "clusters", pkg: "./test/netns/clusters", run: "^(TestClsact|TestFar|TestTown)$/^(every_combination|backends|headless|path_MTU|a_gateway_is_drained|the_daemon_dies|80_ms)", limit: 30 * time.Minute,
		why: "two clusters over the real data path, also with netem's delay and loss between them"},
}

func nameOf(s suite) string { return s.name }

// command is how the guest runs it.
func (s suite) command(run string) []string {
	if run == "" {
		run = s.run
	}
	c := []string{"/tests/" + s.name + ".test", "-test.v", "-test.timeout=" + s.limit.String()}
	if run != "" {
		c = append(c, "-test.run="+run)
	}
	if s.skip != "" {
		c = append(c, "-test.skip="+s.skip)
	}
	return append(c, s.args...)
}
