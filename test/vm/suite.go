package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// suite is a test binary that runs in the VM.
type suite struct {
	name, pkg string
	// run is what of it runs unless -run says otherwise, as for -test.run; "": everything.
	run  string
	args []string
	// limit is for the whole binary, far above what it takes.
	limit time.Duration
	why   string
}

// suites are all there are, in the order in which they run: what fails early says most about what fails later.
var suites = []suite{
	{name: "loader", pkg: "./dataplane/loader", run: "^Test(MissingFeatures|Attach|AttachToTunnel|Cookie|Flows|Paths|SelfRepair|Remove)$", limit: 20 * time.Minute,
		why: "the kernel's verifier takes our programs; maps; attachment by clsact or TCX, whichever the kernel has"},
	{name: "packet", pkg: "./test/packet", limit: 30 * time.Minute,
		why: "what the programs do to packets"},
	{name: "cable", pkg: "./dataplane/cable", args: []string{"-wires=kernel"}, limit: 30 * time.Minute,
		why: "the kernel's WireGuard, and its ESP over xfrm interfaces"},
	{name: "clusters", pkg: "./test/netns/clusters", run: "^(TestClsact|TestFar|TestTown)$/^(every_combination|backends|headless|path_MTU|a_gateway_is_drained|the_daemon_dies|80_ms)", limit: 30 * time.Minute,
		why: "two clusters over the real data path, also with netem's delay and loss between them"},
}

// choose picks suites by name, all if names is empty.
func choose(names string) ([]suite, error) {
	if names == "" {
		return suites, nil
	}
	var out []suite
	for _, name := range strings.Split(names, ",") {
		i := slices.IndexFunc(suites, func(s suite) bool { return s.name == name })
		if i < 0 {
			return nil, fmt.Errorf("suite %q does not exist: choose of %s", name, strings.Join(suiteNames(), ", "))
		}
		out = append(out, suites[i])
	}
	return out, nil
}

func suiteNames() (out []string) {
	for _, s := range suites {
		out = append(out, s.name)
	}
	return out
}

// command is how the guest runs it.
func (s suite) command(run string) []string {
	if run == "" {
		run = s.run
	}
	c := []string{"/tests/" + s.name + ".test", "-test.v", "-test.timeout=" + s.limit.String()}
	if run != "" {
		c = append(c, "-test.run="+run)
	}
	return append(c, s.args...)
}
