package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/control/config"
)

func TestParse(t *testing.T) {
	tests := map[string]struct {
		args    string
		wantErr string
	}{
		"defaults":       {"", ""},
		"network":        {"--roles=network --log-level=debug", ""},
		"execution":      {"--roles=execution", ""},
		"both":           {"--roles=network,execution", ""},
		"operator":       {"--roles=operator", ""},
		"too many":       {"--roles=operator,network", "run it as a process of its own"},
		"twice":          {"--roles=network,network", "give each role once"},
		"none":           {"--roles=", "unknown"},
		"another":        {"--roles=scheduler", `role "scheduler" is unknown`},
		"extra argument": {"now", `unexpected argument "now"`},
		"bad level":      {"--log-level=loud", "loud"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			o, err := parse(strings.Fields(tt.args))
			if tt.wantErr == "" {
				if err != nil || !o.leaderElect || o.metricsAddress != ":8082" || o.healthAddress != ":8081" {
					t.Errorf("options %+v, error %v", o, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("error %v, want %q", err, tt.wantErr)
			}
		})
	}
}

func TestRoles(t *testing.T) {
	for args, want := range map[string]struct {
		roles roles
		lease string
	}{
		"":                          {roles{network: true}, "pelago-agent"},
		"--roles=execution":         {roles{execution: true}, "pelago-agent-execution"},
		"--roles=operator":          {roles{operator: true}, "pelago-operator"},
		"--roles=execution,network": {roles{network: true, execution: true}, "pelago-agent"},
	} {
		o, err := parse(strings.Fields(args))
		if err != nil || o.roles != want.roles || o.roles.lease() != want.lease {
			t.Errorf("%q: roles %+v with lease %s, error %v; want %+v", args, o.roles, o.roles.lease(), err, want)
		}
	}
}

func TestWhatMakesAnAgentAnother(t *testing.T) {
	have := input{config.Config{ClusterID: "g1", CablePort: 4500}, config.Broker{Server: "https://hub", Token: "one", CA: []byte("ca")}}
	tests := map[string]struct {
		change func(*input)
		want   bool
	}{
		"nothing":    {func(*input) {}, false},
		"the token":  {func(i *input) { i.broker.Token = "two" }, false},
		"the port":   {func(i *input) { i.config.CablePort = 4501 }, true},
		"the server": {func(i *input) { i.broker.Server = "https://other" }, true},
		"the CA":     {func(i *input) { i.broker.CA = []byte("other") }, true},
	}
	for name, tt := range tests {
		now := have
		tt.change(&now)
		if got := have.differs(now); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

// The Go types of the MCS API stand for the version that is served.
func TestScheme(t *testing.T) {
	for _, version := range mcsVersions {
		s, err := newScheme(version)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for kind := range s.KnownTypes(schema.GroupVersion{Group: mcs.GroupName, Version: version}) {
			if strings.HasPrefix(kind, "Service") {
				got = append(got, kind)
			}
		}
		if diff := cmp.Diff([]string{"ServiceExport", "ServiceExportList", "ServiceImport", "ServiceImportList"}, sorted(got)); diff != "" {
			t.Errorf("%s: -want +got\n%s", version, diff)
		}
	}
}
