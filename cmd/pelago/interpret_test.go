package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestInterpret(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	rules := file("rules.yaml", `apiVersion: config.karmada.io/v1alpha1
kind: ResourceInterpreterCustomization
metadata: {name: farms}
spec:
  target: {apiVersion: example.com/v1, kind: Farm}
  customizations:
    replicaResource: {luaScript: "function GetReplicas(o) return o.spec.hens, nil end"}
    componentResource: {luaScript: "function GetComponents(o) return {{name = 'coop', replicas = o.spec.hens + 3}} end"}
    replicaRevision: {luaScript: "function ReviseReplica(o, n) o.spec.hens = n return o end"}
    retention: {luaScript: "function Retain(d, o) d.spec.door = o.spec.door return d end"}
    healthInterpretation: {luaScript: "function InterpretHealth(o) while true do end end"}
    statusReflection: {luaScript: "function ReflectStatus(o) return {eggs = o.spec.hens * 2} end"}
---
apiVersion: pelago.io/v1alpha1
kind: KindRules
metadata: {name: farms}
spec:
  kinds: [{apiVersion: example.com/v1, kind: Farm}]
  rules:
    aggregate: "{'eggs': items.map(i, i.status.eggs).sum()}"
    dependencies: "[{'apiVersion': 'v1', 'kind': 'Secret', 'name': 'key'}]"
`)
	farm := file("farm.yaml", "apiVersion: example.com/v1\nkind: Farm\nmetadata: {name: a, namespace: shop}\nspec: {hens: 2}\n")
	open := file("open.yaml", "apiVersion: example.com/v1\nkind: Farm\nmetadata: {name: a, namespace: shop}\nspec: {hens: 2, door: open}\n")
	status := file("status.yaml", "- {clusterName: m1, status: {eggs: 3}}\n- {clusterName: m2, status: {eggs: 4}}\n")
	broken := file("broken.yaml", `apiVersion: config.karmada.io/v1alpha1
kind: ResourceInterpreterCustomization
metadata: {name: farms}
spec:
  target: {apiVersion: example.com/v1, kind: Farm}
  customizations: {retention: {luaScript: "function Retain(d, o) return"}}
`)
	for name, tt := range map[string]struct {
		want string // contained in the output or the error
		args []string
	}{
		"check":        {"all rules compile", []string{"-f", rules, "--check"}},
		"replicas":     {"replica: 2", []string{"-f", rules, "--operation", "InterpretReplica", "--desired-file", farm}},
		"components":   {"replicas: 5", []string{"-f", rules, "--operation", "InterpretComponent", "--desired-file", farm}},
		"revise":       {"hens: 7", []string{"-f", rules, "--operation", "ReviseReplica", "--desired-file", farm, "--desired-replica", "7"}},
		"retain":       {"door: open", []string{"-f", rules, "--operation", "Retain", "--desired-file", farm, "--observed-file", open}},
		"status":       {"eggs: 4", []string{"-f", rules, "--operation", "InterpretStatus", "--observed-file", farm}},
		"aggregate":    {"eggs: 7", []string{"-f", rules, "--operation", "AggregateStatus", "--desired-file", farm, "--status-file", status}},
		"dependencies": {"name: key", []string{"-f", rules, "--operation", "InterpretDependency", "--desired-file", farm}},
		"without end":  {"exceeded the limit of work", []string{"-f", rules, "--operation", "InterpretHealth", "--observed-file", farm}},
		"no Lua":       {"rule retention of ResourceInterpreterCustomization farms", []string{"-f", broken, "--check"}},
		"other kinds":  {"Farm is neither", []string{"-f", farm, "--check"}},
		"no operation": {"unknown operation", []string{"-f", rules}},
		"no object":    {"--observed-file", []string{"-f", rules, "--operation", "InterpretHealth"}},
		"no file":      {"required flag", nil},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			cmd := root("pelago")
			cmd.SetOut(&out)
			cmd.SetErr(&out)
			cmd.SetArgs(append([]string{"interpret"}, tt.args...))
			if err := cmd.Execute(); err != nil {
				out.WriteString(err.Error())
			}
			if !strings.Contains(out.String(), tt.want) {
				t.Errorf("%s\nwant %q", out.String(), tt.want)
			}
		})
	}
}
