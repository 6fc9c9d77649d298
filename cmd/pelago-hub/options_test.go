package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pelago-net/pelago/control/hub/access"
	"github.com/pelago-net/pelago/control/hub/placement"
)

func TestParse(t *testing.T) {
	defaults := options{metricsAddress: ":8080", healthAddress: ":8081", profileAddress: "0", leaderElect: true,
		workers: workers{16, 16, 8, 8}, grace: 15 * time.Second, eviction: placement.EvictionOptions{
			ClusterFailure: 5 * time.Second, ReachableClusterFailure: 5 * time.Minute, Timeout: 10 * time.Minute, Rate: 20, HaltedAbove: 0.55,
			UnschedulableAfter: 5 * time.Minute}, rttHold: time.Minute, events: "failures", proxyAddress: "0"}
	shared := defaults
	shared.workloads = true
	named := defaults
	named.identity = "hub-0"
	told := defaults
	told.events = "all"
	tools := defaults
	tools.proxyAddress, tools.karmada = ":8443", access.Front{Address: ":6444", CertFile: "c", KeyFile: "k"}
	tests := map[string]struct {
		args    string
		want    options
		wantErr string
	}{
		"defaults":           {"", defaults, ""},
		"a hub with its own": {"--hub-runs-workloads-too", shared, ""},
		"a name":             {"--identity=hub-0", named, ""},
		"no workers":         {"--works-workers=0", options{}, "--works-workers 0: at least 1 is needed"},
		"no rate":            {"--resource-eviction-rate=0", options{}, "--resource-eviction-rate"},
		"all events":         {"--events=all", told, ""},
		"some events":        {"--events=some", options{}, "failures or all"},
		"no hold":            {"--rtt-hold=0s", options{}, "--rtt-hold"},
		"no threshold":       {"--unschedulable-threshold=0s", options{}, "--unschedulable-threshold"},
		"no share":           {"--eviction-halted-above=1.5", options{}, "--eviction-halted-above"},
		"Karmada's tools": {"--proxy-address=:8443 --karmada-address=:6444 --karmada-tls-cert-file=c --karmada-tls-private-key-file=k",
			tools, ""},
		"Karmada's tools without members": {"--karmada-address=:6444 --karmada-tls-cert-file=c --karmada-tls-private-key-file=k", options{},
			"needs --karmada-tls-cert-file, --karmada-tls-private-key-file and --proxy-address"},
		"Karmada's tools without a key": {"--proxy-address=:8443 --karmada-address=:6444 --karmada-tls-cert-file=c", options{},
			"--karmada-tls-private-key-file"},
		"extra argument": {"now", options{}, `unexpected argument "now"`},
		"bad level":      {"--log-level=loud", options{}, "loud"},
		"unknown flag":   {"--replicas=2", options{}, "not defined"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parse(strings.Fields(tt.args))
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("error %v, want %q", err, tt.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(options{}, workers{})); diff != "" {
				t.Errorf("options: -want +got\n%s", diff)
			}
		})
	}
}
