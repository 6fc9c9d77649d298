package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/member"
	"github.com/pelago-net/pelago/deploy/spec"
)

// A flag that is added to join or deploy-broker is that of a field of the spec, which decides
// whether it is kept, or it is listed here.
func TestEveryFlagIsOfTheSpec(t *testing.T) {
	access := []string{"kubeconfig", "context", "cluster", "user"}
	for name, tt := range map[string]struct {
		cmd    *cobra.Command
		fields spec.Names
		never  []string
	}{
		"join": {new(join).command(), spec.Flags(spec.Member{}), []string{"cluster-provider", "cluster-region", "cluster-zones", "cluster-kubeconfig",
			"cluster-context", "wait", "timeout", "dry-run", "output", "components", "keep-registration", "discovery-only", "yes", "skip-checks"}},
		"deploy-broker": {deployBrokerCommand(), spec.Flags(spec.Broker{}), []string{"ipsec-psk-from", "broker-ca", "output", "skip-checks"}},
	} {
		flags := slices.Collect(maps.Values(tt.fields))
		tt.cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !slices.Contains(flags, "--"+f.Name) && !slices.Contains(slices.Concat(access, tt.never), f.Name) {
				t.Errorf("%s does not keep --%s", name, f.Name)
			}
		})
		for path, flag := range tt.fields {
			if tt.cmd.Flags().Lookup(strings.TrimPrefix(flag, "--")) == nil {
				t.Errorf("%s has no flag %s for %s", name, flag, path)
			}
		}
	}
}

// testKeptSettings runs deploy-broker and join again with a few flags, then without them, then as
// they were.
func (c clusterset) testKeptSettings(t *testing.T, m *reader) {
	printed := func(out string, changes ...string) {
		t.Helper()
		if n := strings.Count(out, "Changing "); n != len(changes) {
			t.Errorf("%d changes are printed, want %q:\n%s", n, changes, out)
		}
		for _, change := range changes {
			if !strings.Contains(out, "Changing "+change) {
				t.Errorf("the change %q is not printed:\n%s", change, out)
			}
		}
	}
	before := m.config()
	deployed := func(args ...string) string {
		t.Helper()
		return c.must(t, append([]string{"deploy-broker", "--context", "hub", "--output", c.infoFile()}, args...)...)
	}
	printed(deployed("--custom-domains", "example.org"), "custom-domains: unset → example.org")
	printed(deployed())
	if i := info(t, c.infoFile()); len(i.CustomDomains) != 1 || i.BrokerURL != c.hub.Host {
		t.Errorf("broker-info.subm without the flags given again: domains %q, URL %s", i.CustomDomains, i.BrokerURL)
	}
	again := c.join("--clusterid", "g1")
	printed(c.must(t, append(again, "--cable-driver", "libreswan", "--nattport", "4600", "--network-only", "--image", "registry.example/pelago:v1",
		"--image-pull-policy", "Never")...),
		"cable-driver: wireguard → libreswan", "cable-port: 4500 → 4600", "custom-domains: unset → example.org", "network-only: unset → true")
	changed := before
	changed.CableDriver, changed.CablePort, changed.NetworkOnly, changed.CustomDomains = "libreswan", 4600, true, []string{"example.org"}
	printed(c.must(t, again...))
	if diff := cmp.Diff(changed.Data(), m.config().Data()); diff != "" {
		t.Errorf("pelago-config after a join without the flags: -want +got\n%s", diff)
	}
	have, err := member.Read(t.Context(), m.c)
	if err != nil {
		t.Fatal(err)
	}
	if kept := have.Member(); kept.Image != "registry.example/pelago:v1" || kept.PullPolicy != "Never" {
		t.Errorf("after a join without the flags the image is %s, its pull policy %s", kept.Image, kept.PullPolicy)
	}
	printed(deployed("--custom-domains", ""), "custom-domains: example.org → unset")
	c.must(t, append(again, "--cable-driver", "wireguard", "--nattport", "4500", "--network-only=false", "--image", "localhost/pelago:dev",
		"--image-pull-policy", "IfNotPresent")...)
	if diff := cmp.Diff(before.Data(), m.config().Data()); diff != "" {
		t.Errorf("pelago-config with the first flags: -want +got\n%s", diff)
	}

	// Without the hub: its credential has become invalid.
	i := info(t, c.infoFile())
	i.ClientToken.Data["token"] = []byte("expired")
	content, err := i.Encode()
	if err != nil {
		t.Fatal(err)
	}
	old := filepath.Join(t.TempDir(), broker.InfoFile)
	if err := os.WriteFile(old, content, 0o600); err != nil {
		t.Fatal(err)
	}
	keep := func(args ...string) []string {
		return append([]string{"join", old, "--context", "g1", "--wait=false", "--keep-registration"}, args...)
	}
	c.fails(t, "credential", keep("--clusterid", "g1", "--keep-registration=false")...)
	c.fails(t, "other ranges", keep("--clusterid", "g1", "--clustercidr", "10.99.0.0/16")...)
	c.fails(t, `has not joined as "g9"`, keep("--clusterid", "g9")...)
	printed(c.must(t, keep("--clusterid", "g1", "--nattport", "4600", "--image", "registry.example/pelago:v2")...), "cable-port: 4500 → 4600")
	changed = before
	changed.CablePort = 4600
	if diff := cmp.Diff(changed.Data(), m.config().Data()); diff != "" {
		t.Errorf("pelago-config without the hub: -want +got\n%s", diff)
	}
	if have, err := member.Read(t.Context(), m.c); err != nil || have.Member().Image != "registry.example/pelago:v2" {
		t.Errorf("the image without the hub: %+v %v", have.Pod, err)
	}
	c.must(t, keep("--clusterid", "g1", "--nattport", "4500", "--image", "localhost/pelago:dev")...)
}
