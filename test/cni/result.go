// Package cni is the form of what the test of CNIs (test/e2e, TestCNI) finds, and the page that is
// made of it, docs/cni.md (report).
package cni

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Verdicts of a step.
const (
	Passed = "passed"
	Failed = "failed"
	// None: the step does not apply to the cell, such as policies that a CNI does not enforce.
	None = "none"
)

// Cells are the CNIs of the lab that TestCNI runs, the fastest first.
var Cells = []string{"bridge", "ptp", "ptp,aws", "flannel", "flannel,host-gw", "kube-router", "cilium", "cilium,kpr", "cilium,kpr,native"}

// Steps are what a cell runs, in this order, with the words of the page.
var Steps = []struct{ Name, About string }{
	{"install", "`deploy-broker` with globalnet and two `join`s, all clusters with the same CIDRs"},
	{"exec", "`kubectl exec` into pelago-node of every node"},
	{"service", "name to ClusterIP service, every pod reached, the source seen is an egress IP; both directions"},
	{"headless", "an address and a name for each pod; ping of 1,400 bytes"},
	{"udp", "1,000 datagrams echoed at 200/s, none lost"},
	{"large", "TCP transfers of 40 MiB each way, at least 20 MB received"},
	{"local vip", "a ClusterSetIP served by the client's own cluster, from a pod and from the node's network"},
	{"remote vip", "the same served by the other cluster, while the own one has no backend"},
	{"policy strict", "NetworkPolicies that deny and allow: ingress at the server by source, egress at the client"},
	{"policy hybrid", "the same with datapath `hybrid`"},
	{"policy fast", "the same with datapath `fast`"},
	{"policy auto", "the same with datapath `auto`; with Cilium by CiliumNetworkPolicies"},
	{"datapaths", "strict, hybrid, fast, auto, strict under 20 connections and 200 datagrams/s: none broken or lost"},
	{"agent of the CNI", "the CNI's daemon of every node killed under the same traffic"},
	{"pelago-node", "pelago-node of every node killed under the same traffic"},
	{"verify", "`pelago check` finds nothing but that each cluster has one gateway; `pelago verify` passes"},
	{"reboot", "power failure of a gateway and of the client's node; all reached again"},
	{"reboot, CNI late", "the gateway again, with the CNI's daemon held until pelago-node is ready"},
	{"uninstall", "`unjoin`: no device, rule, route, program or table of Pelago on any node; services inside go on"},
}

// Result is what one step of one cell gave.
type Result struct {
	Cell    string  `json:"cell"` // Options.CNI of the lab
	Version string  `json:"version,omitempty"`
	Step    string  `json:"step"`
	Verdict string  `json:"verdict"`
	Detail  string  `json:"detail,omitempty"` // figures, or the error
	Seconds float64 `json:"seconds"`
	Kernel  string  `json:"kernel"`
	Commit  string  `json:"commit"`
	Date    string  `json:"date"` // of the start of the cell, as 2006-01-02
}

// Read reads a file of results; one that does not exist has none.
func Read(file string) ([]Result, error) {
	data, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []Result
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, fmt.Errorf("read the results %s: %w", file, err)
	}
	for _, r := range all {
		if err := r.validate(); err != nil {
			return nil, fmt.Errorf("read the results %s: %w", file, err)
		}
	}
	return all, nil
}

func (r Result) validate() error {
	switch {
	case r.Cell == "":
		return fmt.Errorf("step %q has no cell", r.Step)
	case stepIndex(r.Step) < 0:
		return fmt.Errorf("%s: there is no step %q", r.Cell, r.Step)
	case !slices.Contains([]string{Passed, Failed, None}, r.Verdict):
		return fmt.Errorf("%s, %s: %q is no verdict", r.Cell, r.Step, r.Verdict)
	}
	return nil
}

func stepIndex(name string) int {
	for i, s := range Steps {
		if s.Name == name {
			return i
		}
	}
	return -1
}

// Write writes results into a file, whose folder it makes.
func Write(file string, all []Result) error {
	data, err := json.MarshalIndent(all, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, append(data, '\n'), 0o644)
}

// Merge returns old with the cells of the newer results in place of their old ones: a cell is one
// run. Cells are in order of their names, steps in that of Steps.
func Merge(old, newer []Result) []Result {
	again := map[string]bool{}
	for _, r := range newer {
		again[r.Cell] = true
	}
	all := slices.DeleteFunc(slices.Clone(old), func(r Result) bool { return again[r.Cell] })
	all = append(all, newer...)
	slices.SortStableFunc(all, func(a, b Result) int {
		if a.Cell != b.Cell {
			if a.Cell < b.Cell {
				return -1
			}
			return 1
		}
		return stepIndex(a.Step) - stepIndex(b.Step)
	})
	return all
}
