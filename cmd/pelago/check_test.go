package main

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pelago-net/pelago/cmd/pelago/internal/check"
	"github.com/pelago-net/pelago/cmd/pelago/internal/inspect"
)

// execute runs a command line.
func execute(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := root("pelago")
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// A verb that does not exist below another is an error with a suggestion; without one the help of
// the group is printed.
func TestUnknownVerb(t *testing.T) {
	for line, want := range map[string]string{
		"show conections":                 "unknown command \"conections\" of `pelago show`: did you mean connections?",
		"gateway drian n1":                "did you mean drain?",
		"clusters list":                   "see `pelago clusters --help`",
		"diagnose k8s-versions":           "unknown command",
		"check --explain PLG-X":           "there is no such code",
		"check --only X":                  "--only X",
		"check broker-info.subm":          "--pre only",
		"check --kubeconfig /nonexistent": "kubeconfig",
	} {
		if _, err := execute(t, strings.Fields(line)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("pelago %s: %v, want %q", line, err, want)
		}
	}
	if out, err := execute(t, "show"); err != nil || !strings.Contains(out, "connections") {
		t.Errorf("pelago show: %v\n%s", err, out)
	}
}

func TestExplainCheck(t *testing.T) {
	out, err := execute(t, "check", "--explain", "plg-n013")
	if err != nil || !strings.Contains(out, "PLG-N013") || !strings.Contains(out, "UDP 4500") {
		t.Errorf("%v\n%s", err, out)
	}
}

// A cluster that refuses everything is unknown, with exit status 3 and the name of its context.
func TestCheckStatus(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "broken", http.StatusInternalServerError) }))
	t.Cleanup(s.Close)
	kc := clientcmdapi.NewConfig()
	kc.Clusters["a"] = &clientcmdapi.Cluster{Server: s.URL}
	kc.Contexts["a"] = &clientcmdapi.Context{Cluster: "a"}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*kc, file); err != nil {
		t.Fatal(err)
	}
	out, err := execute(t, "check", "--kubeconfig", file)
	var status inspect.Status
	if !errors.As(err, &status) || status.Code != statusUnknown || !strings.Contains(out, "context a") {
		t.Errorf("%v\n%s", err, out)
	}
	for verdict, code := range map[check.Verdict]int{check.OK: 0, check.Warning: 0, check.Error: 1, check.Unknown: 3} {
		err := checkStatus(check.Result{Outcomes: []check.Outcome{{Verdict: verdict}}})
		status := inspect.Status{}
		if errors.As(err, &status); status.Code != code {
			t.Errorf("%s: exit status %d, want %d", verdict, status.Code, code)
		}
	}
}
