package cni

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// unrun are the networks that no cell has, with what is known of them by reading.
var unrun = [][2]string{
	{"Calico, Canal", "not built: its module needs `github.com/projectcalico/api`, which module proxies lack. By reading: like `ptp`, a veth pair and a route for each pod"},
	{"Cilium before 1.20", "not built in the lab"},
	{"Cilium with netkit, and Cilium's ClusterMesh, L7 policies, bandwidth manager, host firewall", "not run. Pods on netkit have no traffic with other clusters: [network.md](network.md)"},
	{"Antrea, Open vSwitch", "not run. Ports of a switch are imitated in `test/netns`: always `strict`"},
	{"OVN-Kubernetes, OpenShift", "not run. By reading: with the shared gateway packets bypass the node's stack; the self-test then reports `Diverted`"},
	{"EKS with the VPC CNI", "not run. `ptp,aws` has its rule priorities and a table for pods by the node's prefix, on one interface; security groups for pods have rules at 10, before Pelago's 105"},
	{"GKE (Dataplane V2), AKS", "not run. By reading: Dataplane V2 and Azure CNI powered by Cilium are Cilium with endpoint routes"},
}

// modes are what the cells are, in the order of Cells.
var modes = [][2]string{
	{"bridge", "Debian's plugin bridge, routes between the nodes"},
	{"ptp", "Debian's plugin ptp: a veth pair and a route for each pod"},
	{"ptp,aws", "the same with the rules and the routing table that the AWS VPC CNI has for pods"},
	{"flannel", "VXLAN between the nodes; `host-gw`: routes"},
	{"kube-router", "BGP between the nodes, NetworkPolicies; kube-proxy runs"},
	{"cilium", "VXLAN between the nodes, kube-proxy, routing of pods by the kernel (`enable-host-legacy-routing: true`)"},
	{"cilium,kpr", "`kube-proxy-replacement: true` (\"kpr\"), `enable-bpf-masquerade: true`, BPF host routing; VXLAN"},
	{"cilium,kpr,native", "the same with `routing-mode: native` and `enable-endpoint-routes: true`"},
}

const pastTheStack = `*Past the stack* is the share of packets that the datapath sent past the node's stack. With ` + "`hybrid`" + `
these are packets of connections that the node's conntrack has assured. With BPF host routing
(` + "`cilium,kpr`" + `) Cilium forwards packets of pods past conntrack, so all of them take the way of
` + "`strict`" + `, and the share is 0 %. ` + "`fast`" + ` does not depend on conntrack.

`

// Page is docs/cni.md.
func Page(all []Result) string {
	var b strings.Builder
	b.WriteString(`# CNIs

What ran with which CNI: real clusters (` + "`test/lab`" + `: two of two nodes, one gateway each, the same
CIDRs, globalnet, wire vxlan), with the CNI's programs compiled from their Go modules. Made by
` + "`go run ./test/cni/report`" + ` from ` + "`test/cni/results.json`" + `; ` + "`make test-cni CNI=NAME`" + ` runs a cell.

The cable driver of all cells is ` + "`vxlan`" + `. The default, ` + "`wireguard`" + `, and IPsec are tested with
the plugin ` + "`bridge`" + ` only (` + "`test/e2e`" + `): between gateways, packets pass the devices of nodes and
no CNI. ` + "`pelago check --pre`" + ` refuses what cannot work ([network.md](network.md), Before a join).

| cell | mode |
|---|---|
`)
	for _, m := range modes {
		fmt.Fprintf(&b, "| `%s` | %s |\n", m[0], m[1])
	}
	b.WriteString(`
Which one is yours: ` + "`kubectl -n kube-system get configmap cilium-config -o yaml`" + ` has these settings
of Cilium. With kpr and BPF masquerading, and without ` + "`enable-host-legacy-routing: true`" + `, it uses
BPF host routing. Before 1.20 that sends packets past the node's routes, and ` + "`pelago check --pre`" + `
refuses it.

`)
	cells := map[string][]Result{}
	for _, r := range all {
		cells[r.Cell] = append(cells[r.Cell], r)
	}
	names := slices.Sorted(maps.Keys(cells))
	b.WriteString("| cell | version | passed | failed | minutes | commit | date | kernel |\n|---|---|---|---|---|---|---|---|\n")
	for _, name := range names {
		count, seconds := map[string]int{}, 0.0
		for _, r := range cells[name] {
			count[r.Verdict]++
			seconds += r.Seconds
		}
		first := cells[name][0]
		version := first.Version
		if version == "" {
			version = "Debian's"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %d | %d | %.1f | %s | %s | %s |\n", name, version, count[Passed], count[Failed], seconds/60, short(first.Commit), first.Date, first.Kernel)
	}
	if len(names) > 0 {
		b.WriteString("\n## Steps\n\n✓ passed, ✗ failed, – without meaning for the CNI (no policies, no daemon), empty: not run.\n\n| step |")
		for _, name := range names {
			fmt.Fprintf(&b, " `%s` |", name)
		}
		b.WriteString("\n|---|" + strings.Repeat("---|", len(names)) + "\n")
		for _, step := range Steps {
			fmt.Fprintf(&b, "| %s |", step.Name)
			for _, name := range names {
				fmt.Fprintf(&b, " %s |", mark(cells[name], step.Name))
			}
			b.WriteString("\n")
		}
	}
	b.WriteString("\n| step | content |\n|---|---|\n")
	for _, step := range Steps {
		fmt.Fprintf(&b, "| %s | %s |\n", step.Name, step.About)
	}
	b.WriteString(failures(all))
	b.WriteString(figures(all))
	b.WriteString("\n## Not run\n\n")
	for _, name := range Cells {
		if cells[name] == nil {
			fmt.Fprintf(&b, "- `%s`:\n%s", name, indented("the lab has it; without a result of this version"))
		}
	}
	for _, row := range unrun {
		fmt.Fprintf(&b, "- %s:\n%s", row[0], indented(row[1]))
	}
	return b.String()
}

func mark(cell []Result, step string) string {
	for _, r := range cell {
		if r.Step == step {
			return map[string]string{Passed: "✓", Failed: "✗", None: "–"}[r.Verdict]
		}
	}
	return ""
}

// failures lists what failed, with the error as it was.
func failures(all []Result) string {
	var b strings.Builder
	for _, r := range all {
		if r.Verdict == Failed {
			fmt.Fprintf(&b, "- `%s`, %s:\n%s", r.Cell, r.Step, indented(r.Detail))
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return "\n## Failures\n\n" + b.String()
}

// figures lists what was measured on the way.
func figures(all []Result) string {
	var b strings.Builder
	for _, r := range all {
		if r.Verdict == Passed && r.Detail != "" {
			fmt.Fprintf(&b, "- `%s`, %s:\n%s", r.Cell, r.Step, indented(r.Detail))
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return "\n## Figures\n\nAll clusters, and at times compilers, shared one machine: gaps include waiting for a processor.\n\n" +
		pastTheStack + b.String()
}

// indented wraps text at 100 columns as a paragraph of a list.
func indented(text string) string {
	const width = 98
	var b strings.Builder
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > width {
			b.WriteString("  " + line + "\n")
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	if line != "" {
		b.WriteString("  " + line + "\n")
	}
	return b.String()
}

// short is a commit of eight digits, with what follows it.
func short(commit string) string {
	id, dirty, _ := strings.Cut(commit, "-")
	if len(id) > 8 {
		id = id[:8]
	}
	if dirty != "" {
		id += "-" + dirty
	}
	return id
}
