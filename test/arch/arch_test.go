// Package arch holds the rules of the tree: which package may import which. They are written down in STYLE terms in
// README.md, section Map.
package arch

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/pelago-net/pelago/"

// rule: packages at or below path may import, of what is not the standard library, only what begins with one of allow.
// Entries without a dot in the first element are packages of this module.
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
	{path: "scheduler", allow: []string{"scheduler/", "api/", "k8s.io/api/", "k8s.io/apimachinery/"}},
	{path: "dns", allow: []string{"dns", "github.com/miekg/dns", "github.com/prometheus/"}},
	{path: "control", deny: []string{"bpf", "cmd/"}},
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

// leaves are the packages below control that others there may import: values and pure functions, no controller.
var leaves = []string{
	"control/config", "control/egress", "control/merge", "control/backends", "control/objectset", "control/hub",
	"control/gateways", "control/index", "control/pace", "control/verdict", "control/addresses/pool", "control/publicip",
	"control/selects", "control/override", "control/interpret", "control/names", "control/decide", "control/execution",
	"control/clusterstatus", "control/manifest", "control/written", "control/intern", "control/stream", "control/fence",
}

func TestControllersDoNotImportEachOther(t *testing.T) {
	for _, p := range packages(t) {
		path := strings.TrimPrefix(p.ImportPath, module)
		if !strings.HasPrefix(path, "control/") {
			continue
		}
		for _, imp := range p.Imports {
			own := strings.TrimPrefix(imp, module)
			if strings.HasPrefix(own, "control/") && !begins(own, leaves) && !strings.HasPrefix(path, own+"/") && !strings.HasPrefix(own, path+"/") {
				t.Errorf("%s imports %s: a controller does not know another", path, own)
			}
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

func packages(t *testing.T) []listed {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports", module+"...").Output()
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
