package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/pelago-net/pelago/test/lab"
)

// TestCommandsExplainThemselves: each command reports what it does, and each that
// does something shows how.
func TestCommandsExplainThemselves(t *testing.T) {
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Short == "" {
			t.Errorf("%s has no description", cmd.CommandPath())
		}
		if cmd.Runnable() && cmd.Example == "" {
			t.Errorf("%s has no example", cmd.CommandPath())
		}
		for _, c := range cmd.Commands() {
			walk(c)
		}
	}
	walk(root())
}

func TestBadUse(t *testing.T) {
	tests := map[string][]string{
		"pod-cidr":            {"up", "--pod-cidr", "nonsense"},
		"service-cidr":        {"up", "--service-cidr", "10.0.0.0/99"},
		"--underlay":          {"up", "--underlay", "x"},
		"none of the others":  {"up", "--hub", "--no-hub"},
		"unknown command":     {"fly"},
		"use wide, json":      {"status", "-o", "xml"},
		"no such lab":         {"--name", "nosuchlab", "kubeconfig"},
		"name:":               {"--name", "No-Such", "kubeconfig"},
		"requires at least 2": {"exec", "g1-n1"},
		"read --rate":         {"--name", "nosuchlab", "link", "shape", "g1", "--rate", "fast"},
		"required flag":       {"link", "shape", "g1"},
		"read --loss":         {"--name", "nosuchlab", "path", "impair", "g1", "g2", "--loss", "much"},
		"accepts 2 arg":       {"path", "cut", "g1"},
		"invalid argument":    {"image", "build", "nosuchimage"},
	}
	for want, args := range tests {
		cmd := root()
		cmd.SetArgs(args)
		cmd.SetOut(new(bytes.Buffer))
		cmd.SetErr(new(bytes.Buffer))
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want an error with %q", args, err, want)
		}
	}
}

func TestParseShape(t *testing.T) {
	tests := []struct {
		rate, burst, queue string
		want               lab.Shape
		err                string
	}{
		{"100mbit", "64k", "128k", lab.Shape{Rate: 12_500_000, Burst: 65536, Queue: 131072}, ""},
		{"1.5Gbit", "3000", "1m", lab.Shape{Rate: 187_500_000, Burst: 3000, Queue: 1 << 20}, ""},
		{"64kbit", "64k", "128k", lab.Shape{Rate: 8000, Burst: 65536, Queue: 131072}, ""},
		{"100", "64k", "128k", lab.Shape{}, "read --rate"},
		{"1kbit", "64k", "128k", lab.Shape{}, "read --rate"},
		{"-5mbit", "64k", "128k", lab.Shape{}, "read --rate"},
		{"1mbit", "10", "128k", lab.Shape{}, "read --burst"},
		{"1mbit", "64k", "9999m", lab.Shape{}, "read --queue"},
		{"1mbit", "64k", "many", lab.Shape{}, "read --queue"},
	}
	for _, test := range tests {
		got, err := parseShape(test.rate, test.burst, test.queue)
		if test.err == "" && err != nil || test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
			t.Errorf("parseShape(%s, %s, %s): error %v, want %q", test.rate, test.burst, test.queue, err, test.err)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("parseShape(%s, %s, %s) (-want +got):\n%s", test.rate, test.burst, test.queue, diff)
		}
	}
}

func TestSplitName(t *testing.T) {
	tests := []struct {
		args []string
		name string
		rest []string
	}{
		{[]string{"get", "pods", "--name", "x"}, "pelago", []string{"get", "pods", "--name", "x"}},
		{[]string{"--name", "small", "get", "pods"}, "small", []string{"get", "pods"}},
		{[]string{"--name=small", "get"}, "small", []string{"get"}},
		{[]string{"--name"}, "pelago", []string{"--name"}},
		{nil, "pelago", nil},
	}
	for _, test := range tests {
		if name, rest := splitName(test.args); name != test.name || !cmp.Equal(rest, test.rest) {
			t.Errorf("splitName(%q) = %s, %q; want %s, %q", test.args, name, rest, test.name, test.rest)
		}
	}
}

func TestPrintLog(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(file, []byte("a\nb\nc\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for tail, want := range map[int]string{-1: "a\nb\nc\n", 0: "", 2: "b\nc\n", 9: "a\nb\nc\n"} {
		var out bytes.Buffer
		if err := printLog(t.Context(), &out, file, tail, false); err != nil || out.String() != want {
			t.Errorf("tail %d: %q, %v, want %q", tail, out.String(), err, want)
		}
	}
	if err := printLog(t.Context(), new(bytes.Buffer), file+".missing", -1, false); err != nil {
		t.Errorf("a log that does not exist yet: %v, want nothing", err)
	}
}

func TestStatusTable(t *testing.T) {
	s := lab.Status{Name: "pelago", Clusters: []lab.ClusterStatus{
		{Name: "g1", State: "ready", Link: "up", Server: "https://172.31.1.2:6443", Version: "v1.34.4", PodCIDR: "10.7.0.0/16", ServiceCIDR: "10.77.0.0/16",
			Processes: map[string]int{"etcd": 7}, Nodes: []lab.NodeStatus{{Name: "g1-n1", State: "paused", Ready: "True", Link: "cut", PID: 9}}},
		{Name: "hub", State: "degraded", Message: "etcd is not running", Link: "up", ServiceCIDR: "10.96.0.0/12"}}}
	var narrow, wide bytes.Buffer
	if err := printStatus(&narrow, "", []lab.Status{s}); err != nil {
		t.Fatal(err)
	}
	if err := printStatus(&wide, "wide", []lab.Status{s}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"g1-n1", "paused", "cut", "degraded", "10.77.0.0/16"} {
		if !strings.Contains(narrow.String(), want) {
			t.Errorf("table lacks %q:\n%s", want, narrow.String())
		}
	}
	for _, want := range []string{"etcd=7", "etcd is not running"} {
		if strings.Contains(narrow.String(), want) || !strings.Contains(wide.String(), want) {
			t.Errorf("%q belongs into the wide table only:\n%s", want, wide.String())
		}
	}
	var none bytes.Buffer
	if err := printStatus(&none, "", nil); err != nil || !strings.Contains(none.String(), "no lab is up") {
		t.Errorf("without labs: %q, %v", none.String(), err)
	}
}

func TestPassStatus(t *testing.T) {
	err := passStatus(exec.Command("sh", "-c", "exit 7").Run())
	var status exitStatus
	if !errors.As(err, &status) || status != 7 {
		t.Errorf("exit 7 became %v", err)
	}
	if err := passStatus(nil); err != nil {
		t.Errorf("success became %v", err)
	}
	other := errors.New("other")
	if err := passStatus(other); !errors.Is(err, other) {
		t.Errorf("another error became %v", err)
	}
}
