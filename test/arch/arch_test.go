// Package arch tests the rules of the tree: which package may import which.
package arch

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/pelago-net/pelago/"

// rule: packages at or below path may import, of what is not the standard library, only what begins
// with one of allow. Entries without a dot in the first element are packages of this module.
type rule struct {
	path  string
	exact bool // the package itself, not those below
	allow []string
	deny  []string // checked if allow is empty
}

var rules = []rule{
	{path: "bpf", allow: []string{"github.com/cilium/ebpf"}},
	{path: "dataplane", exact: true, allow: []string{}},
	{path: "dataplane", deny: []string{"k8s.io/", "sigs.k8s.io/", "api/", "control/"}},
	{path: "dataplane/firewall", allow: []string{"github.com/google/nftables", "golang.org/x/sys/unix"}},
	{path: "scheduler", allow: []string{"scheduler/", "api/", "k8s.io/api/", "k8s.io/apimachinery/",
		"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"}},
	{path: "dns", allow: []string{"dns", "github.com/miekg/dns", "github.com/prometheus/", "golang.org/x/sys/unix"}},
	{path: "control", deny: []string{"bpf", "cmd/"}},
	{path: "deploy", deny: []string{"bpf", "cmd/", "control/node", "control/operator"}},
	{path: "deploy", exact: true, allow: []string{}},
	{path: "deploy/manifests", deny: []string{"deploy/"}},
	{path: "deploy/rollout", deny: []string{"deploy/broker", "deploy/hub", "deploy/member", "deploy/spec"}},
	{path: "deploy/spec", exact: true, deny: []string{"sigs.k8s.io/", "k8s.io/client-go", "deploy/broker", "deploy/hub", "deploy/member"}},
	{path: "api", deny: []string{"control/", "dataplane", "bpf", "dns", "cmd/"}},
}

type listed struct {
	ImportPath string
	Imports    []string
}

func TestImports(t *testing.T) {
	for _, p := range packages(t) {
		path := strings.TrimPrefix(p.ImportPath, module)
		for _, imp := range p.Imports {
			if standard(imp) {
				continue
			}
			own := strings.TrimPrefix(imp, module)
			if strings.HasPrefix(own, "test/") && !strings.HasPrefix(path, "test/") {
				t.Errorf("%s imports %s: only tests import test/*", path, own)
			}
			for _, r := range rules {
				if path != r.path && (r.exact || !strings.HasPrefix(path, r.path+"/")) {
					continue
				}
				if r.allow != nil && !begins(own, r.allow) {
					t.Errorf("%s imports %s: %s may import %v besides the standard library", path, own, r.path, r.allow)
				}
				if begins(own, r.deny) {
					t.Errorf("%s imports %s: %s may not", path, own, r.path)
				}
			}
		}
	}
}

// rooms are the packages below control and what each may import of this module besides api. Paths
// are exact: a package that is not listed fails, so that a new one is a decision. agent, hub and
// node never import each other.
var rooms = map[string][]string{
	"control/config":           {},
	"control/kube":             {"control/kinds/filled"},
	"control/hubclient":        {"control/config", "control/kube"},
	"control/topology":         {"control/kube"},
	"control/tunnel":           {},
	"control/kinds":            {"control/kinds/filled", "control/kinds/lua", "scheduler"},
	"control/kinds/filled":     {},
	"control/kinds/lua":        {},
	"control/execute":          {"control/execute/meter", "control/kinds", "control/kube"},
	"control/execute/collect":  {"control/kube"},
	"control/execute/meter":    {},
	"control/agent/gateways":   {"control/kube", "control/topology"},
	"control/agent/hubaddress": {"control/config", "control/kube"},
	"control/agent/ipam":       {"control/kube", "control/topology"},
	"control/agent/peering":    {"control/config", "control/hubclient", "control/kube", "control/topology"},
	"control/agent/ranges":     {"control/kube"},
	"control/agent/services":   {"control/hubclient", "control/kube", "control/topology"},
	"control/agent/clusterdns": {"control/config", "control/kube", "control/topology", "dns"},
	"control/hub/binding":      {"control/kube"},
	"control/hub/policy":       {"control/hub/binding", "control/kube", "scheduler"},
	"control/hub/autoscale":    {"control/hub/binding", "control/kube"},
	"control/hub/placement":    {"control/hub/binding", "control/kube", "scheduler"},
	"control/hub/propagate": {"control/hub/binding", "control/hub/placement", "control/hub/policy", "control/kinds", "control/kube",
		"scheduler"},
	"control/hub/work": {"control/hub/binding", "control/hub/placement", "control/hub/policy", "control/kinds", "control/kube",
		"scheduler"},
	"control/hub/status":       {"control/hub/binding", "control/kinds", "control/kube"},
	"control/hub/cluster":      {"control/config", "control/execute/collect", "control/hub/binding", "control/hub/member", "control/kube", "scheduler"},
	"control/hub/member":       {"control/execute/collect"},
	"control/hub/access":       {"control/execute/collect", "control/hub/access/merge", "control/hub/member", "control/tunnel", "scheduler"},
	"control/hub/access/merge": {},
	"control/node": {"control/config", "control/node/status", "control/node/tables", "control/topology", "dataplane",
		"dataplane/cable", "dataplane/dump", "dataplane/liveness", "dataplane/loader", "dataplane/natt", "dataplane/netdev", "dataplane/observe",
		"dataplane/probe"},
	"control/node/status": {"control/node/tables", "control/topology", "dataplane", "dataplane/cable", "dataplane/liveness",
		"dataplane/natt", "dataplane/observe"},
	"control/node/tables": {"control/config", "control/topology", "dataplane", "dataplane/cable", "dataplane/liveness", "dataplane/natt"},
	"control/operator":    {"control/config", "control/kube", "deploy/broker", "deploy/manifests", "deploy/member", "deploy/spec"},
}

func TestRooms(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range packages(t) {
		path := strings.TrimPrefix(p.ImportPath, module)
		if !strings.HasPrefix(path, "control/") {
			continue
		}
		allowed, ok := rooms[path]
		if !ok {
			t.Errorf("%s: add the package to rooms, with what it may import, or merge it into one of them", path)
			continue
		}
		seen[path] = true
		for _, imp := range p.Imports {
			own, ours := strings.CutPrefix(imp, module)
			if ours && !strings.HasPrefix(own, "api/") && !slices.Contains(allowed, own) {
				t.Errorf("%s imports %s: it may import api and %v", path, own, allowed)
			}
		}
	}
	for path := range rooms {
		if !seen[path] {
			t.Errorf("%s: no such package: remove it from rooms", path)
		}
	}
}

func begins(s string, prefixes []string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}

func standard(imp string) bool {
	first, _, _ := strings.Cut(imp, "/")
	return !strings.Contains(first, ".")
}

// packages are those of the tree.
func packages(t *testing.T) []listed {
	t.Helper()
	return list(t, nil, module+"...")
}

// list runs `go list` with arguments in an environment; nil: that of this process.
func list(t *testing.T, env []string, args ...string) []listed {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Imports"}, args...)...)
	cmd.Env = env
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("list the packages: %v", err)
	}
	var all []listed
	d := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if len(all) < 20 {
		t.Fatalf("only %d packages found: the rules would hold for nothing", len(all))
	}
	return all
}
