package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pelago-net/pelago/control/agent/clusterdns"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/dns"
)

func TestParse(t *testing.T) {
	defaults := options{listen: ":53", metrics: ":9153", verdict: topology.UnreachableClustersSocket, drain: 3 * time.Second}
	for _, c := range []struct {
		about   string
		args    []string
		env     map[string]string
		want    options
		problem string
	}{
		{"nothing: the ConfigMap decides", nil, nil, defaults, ""},
		{
			"all flags",
			[]string{"--cluster-id=g1", "--mode=mcs", "--zones=clusterset.local,Global.Example", "--listen=127.0.0.1:5353", "--metrics=:1", "--kubeconfig=k", "--verdict-socket=v", "--drain=0s", "--ttl=30s"},
			nil,
			options{zone: clusterdns.TableConfig{LocalCluster: "g1", Mode: dns.ModeMCS, Zones: []string{"clusterset.local.", "global.example."}, TTL: 30 * time.Second}, listen: "127.0.0.1:5353", metrics: ":1", kubeconfig: "k", verdict: "v"},
			"",
		},
		{
			"a flag wins over the environment",
			[]string{"--mode=mcs"},
			map[string]string{"PELAGO_CLUSTER_ID": "g1", "PELAGO_MODE": "submariner"},
			options{zone: clusterdns.TableConfig{LocalCluster: "g1", Mode: dns.ModeMCS, Zones: []string{"clusterset.local."}}, listen: ":53", metrics: ":9153", verdict: topology.UnreachableClustersSocket, drain: 3 * time.Second},
			"",
		},
		{"cluster id", []string{"--cluster-id=G1"}, nil, options{}, `--cluster-id: cluster id "G1" is not an RFC 1123 label`},
		{"mode", []string{"--cluster-id=g1", "--mode=karmada"}, nil, options{}, `--mode: parse mode "karmada": want "submariner" or "mcs"`},
		{"zones", []string{"--cluster-id=g1", "--zones=a,"}, nil, options{}, `--zones: parse zone ""`},
		{"TTL", []string{"--ttl=1500ms"}, nil, options{}, "--ttl 1.5s: use whole seconds, at most 1h0m0s"},
		{"environment", nil, map[string]string{"PELAGO_DRAIN": "soon"}, options{}, `PELAGO_DRAIN="soon"`},
		{"unknown flag", []string{"--clusterid=g1"}, nil, options{}, "clusterid"},
		{"argument", []string{"g1"}, nil, options{}, `unexpected argument "g1"`},
	} {
		t.Run(c.about, func(t *testing.T) {
			got, err := parse(c.args, func(name string) string { return c.env[name] })
			if (err != nil) != (c.problem != "") || err != nil && !strings.Contains(err.Error(), c.problem) {
				t.Fatalf("got error %v, want %q", err, c.problem)
			}
			if err != nil {
				return
			}
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(options{})); diff != "" {
				t.Errorf("options (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNoAPIServer(t *testing.T) {
	err := run(t.Context(), []string{"--kubeconfig=/nonexistent"})
	if err == nil || !strings.Contains(err.Error(), "/nonexistent") {
		t.Errorf("got error %v, want one that names the file", err)
	}
}
