package e2e

import (
	"context"
	"encoding/base64"
	"fmt"
	"github.com/pelago-net/pelago/deploy/broker"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// testBadInput: user errors on live clusters. The cluster that tries to join is the hub itself,
// which is no member; it gets a fake node.
func testBadInput(t *testing.T, s *clusterset) {
	ctx := t.Context()
	const node = "stray"
	s.applyQuietly(t, "hub", "apiVersion: v1\nkind: Node\nmetadata: {name: "+node+"}\nspec: {podCIDR: 10.9.0.0/24}\n")
	t.Cleanup(func() {
		if _, err := s.Quietly(context.Background(), s.Lab.Kubectl(), "--context", "hub", "delete", "node", node); err != nil {
			t.Error(err)
		}
	})
	_, err := s.Pelago(ctx, "deploy-broker", "--context", "hub", "--globalnet", "--globalnet-cidr-range", "120.0.0.0/8")
	must(t, err)
	const good = "broker-info.subm"
	write := func(name, text string) string {
		must(t, os.WriteFile(filepath.Join(s.Dir, name), []byte(text), 0o600))
		return name
	}
	text, err := os.ReadFile(filepath.Join(s.Dir, good))
	must(t, err)
	garbage, expired := write("garbage.subm", "apiVersion: v1\nkind: Config\n"), write("expired.subm", expiredInfo(t, text))

	before := s.kubectl(t, "hub", "-n", brokerNamespace, "get", "configmap", "submariner-globalnet-info", "-o", "jsonpath={.data}")
	join := func(file, context string, args ...string) []string {
		return append([]string{"join", file, "--context", context, "--wait=false", "--timeout=10s", "--yes"}, args...)
	}
	for _, tt := range []struct {
		name string
		args []string
		want []string // words of the message: the object and the remedy
	}{
		{"GlobalCIDR outside the range", join(good, "hub", "--clusterid", "g3", "--globalnet-cidr", "121.3.0.0/24"), []string{"121.3.0.0/24", "120.0.0.0/8"}},
		{"GlobalCIDR of another cluster", join(good, "hub", "--clusterid", "g3", "--globalnet-cidr", "120.1.0.0/25"), []string{"120.1.0.0/25", "overlaps", `"g1"`}},
		{"GlobalCIDR around another cluster's", join(good, "hub", "--clusterid", "g3", "--globalnet-cidr", "120.2.0.0/16"), []string{"120.2.0.0/16", "overlaps", `"g2"`}},
		{"GlobalCIDR that is none", join(good, "hub", "--clusterid", "g3", "--globalnet-cidr", "120.3.0.0/33"), []string{"--globalnet-cidr", "120.3.0.0/33"}},
		{"cluster id in use", join(good, "hub", "--clusterid", "g1"), []string{`"g1"`, "choose another"}},
		{"cluster id that is none", join(good, "hub", "--clusterid", "G_3"), []string{`"G_3"`, "RFC 1123"}},
		{"second id for a cluster", join(good, "g1", "--clusterid", "other"), []string{`has joined as "g1"`, "pelago unjoin"}},
		{"other GlobalCIDR for a cluster", join(good, "g1", "--clusterid", "g1", "--globalnet-cidr", "120.9.0.0/24"), []string{"120.9.0.0/24", "120.1.0.0/24"}},
		{"garbage as broker file", join(garbage, "hub", "--clusterid", "g3"), []string{garbage, "pelago deploy-broker"}},
		{"expired broker file", join(expired, "hub", "--clusterid", "g3"), []string{expired, "expired", "pelago deploy-broker"}},
		{"broker file that is not there", join("nowhere.subm", "hub", "--clusterid", "g3"), []string{"nowhere.subm", "pelago deploy-broker"}},
		{"unknown cable driver", join(good, "hub", "--clusterid", "g3", "--cable-driver", "carrier-pigeon"), []string{`"carrier-pigeon"`, "vxlan"}},
		{"gateway node that is not there", join(good, "g1", "--clusterid", "g1", "--gateway-node", "g1-n9"), []string{`"g1-n9"`, "g1-n1, g1-n2"}},
		{"context that is not there", join(good, "nowhere", "--clusterid", "g3"), []string{`"nowhere"`}},
		{"service that is not there", []string{"export", "service", "--context", "g1", "--namespace", "default", "nothing"}, []string{"default/nothing", "kubectl -n default get services"}},
		{"address without a flow", []string{"nat", "get", "--context", "g1", "192.0.2.1"}, []string{"192.0.2.1"}},
		{"node without the daemon", []string{"nat", "list", "--context", "g1", "--node", "g1-n9"}, []string{"g1-n9", "kubectl get nodes"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, err := s.Quietly(ctx, filepath.Join(s.Bin, "pelago"), tt.args...)
			if err == nil {
				t.Fatalf("pelago %s ends with 0:\n%s", strings.Join(tt.args, " "), out)
			}
			_, message, _ := strings.Cut(err.Error(), "exit status 1: ")
			t.Log(message)
			for _, want := range tt.want {
				if !strings.Contains(message, want) {
					t.Errorf("the message lacks %q:\n%s", want, message)
				}
			}
		})
	}
	if after := s.kubectl(t, "hub", "-n", brokerNamespace, "get", "configmap", "submariner-globalnet-info", "-o", "jsonpath={.data}"); after != before {
		t.Errorf("a join that was refused changed the allocations from\n%s\nto\n%s", before, after)
	}
}

// expiredInfo is a broker file whose token has expired.
func expiredInfo(t *testing.T, text []byte) string {
	t.Helper()
	info, err := broker.DecodeInfo(text)
	must(t, err)
	parts := strings.Split(string(info.ClientToken.Data["token"]), ".")
	parts[1] = base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"exp":%d}`, time.Now().Add(-time.Hour).Unix()))
	info.ClientToken.Data["token"] = []byte(strings.Join(parts, "."))
	out, err := info.Encode()
	must(t, err)
	return string(out)
}
