package e2e

import (
	"testing"

	"github.com/pelago-net/pelago/test/await"
	"github.com/pelago-net/pelago/test/e2e/walk"
	"github.com/pelago-net/pelago/test/lab"
)

var twoClusters = walk.Walk{Gateways: 2, Wire: "vxlan", Propagation: true}

// TestTwoClusters runs all its parts in one clusterset. Each part creates what it needs, so that it
// can be run alone: go test ./test/e2e -run 'TestTwoClusters/gateway' -keep
func TestTwoClusters(t *testing.T) {
	s := newClusterset(t, lab.Options{Name: *labName, Nodes: 3}, twoClusters)
	s.run(t, "the walk-through", testWalkThrough)
	s.run(t, "a policy spreads a Deployment", testSpread)
	s.run(t, "a MultiClusterService", testMultiClusterService)
	s.run(t, "the map and nat list agree", testMapAndList)
	s.run(t, "conntrack translates nothing", testNoTranslationByConntrack)
	s.run(t, "policy engines", testPolicyEngines)
	s.run(t, "datapaths", testDatapaths)
	s.run(t, "a ClusterSetIP", testClusterSetIP)
	s.run(t, "a daemon that is killed", testDaemonKilled)
	s.run(t, "a gateway leaves", testGatewayLeaves)
	s.run(t, "a node whose port is closed", testClosedPort)
	s.run(t, "exports beside a dead gateway", testDeadGateway)
	s.run(t, "verify", testVerify)
	s.run(t, "rights at the hub", testRights)
	s.run(t, "bad input", testBadInput)
	s.run(t, "a forged packet", testInjection)
	s.run(t, "refused at once", testRefused)
	s.run(t, "first packets", testFirstPackets)
}

// TestTwoClustersLong are the parts that take minutes each, in a clusterset of their own.
func TestTwoClustersLong(t *testing.T) {
	s := newClusterset(t, lab.Options{Name: *labName + "long", Nodes: 3}, twoClusters)
	s.run(t, "a burst of connections", testBurst)
	s.run(t, "a flood of flows", testFlood)
	s.run(t, "exported to some clusters", testAudience)
	s.run(t, "backends come and go", testBackends)
	s.run(t, "a gateway is drained", testGatewayDrained)
	s.run(t, "an upgrade", testUpgrade)
	s.run(t, "an upgrade by the command", testUpgradeCommand)
	s.run(t, "members from one place", testMembers)
	s.run(t, "a hundred exports while agents are killed", testManyExports)
	s.run(t, "the hub is away", testHubAway)
	s.run(t, "a dead cluster leaves the name server", testDeadCluster)
	s.run(t, "workloads fail over", testFailover)
	s.run(t, "hosts outside the clusters", testExternal)
	s.run(t, "a trace explains", testTrace)
	s.run(t, "rule and routes are removed", testRulesRemoved)
	s.run(t, "firewalls", testFirewalls)
	s.run(t, "a node of a VPN", testNodeOfVPN)
}

// TestNFTables is the main path with kube-proxy in its other mode, and what shares netfilter with
// it.
func TestNFTables(t *testing.T) {
	s := newClusterset(t, lab.Options{Name: *labName + "nft", Nodes: 2, KubeProxy: lab.NFTables}, walk.Walk{Wire: "vxlan"})
	s.run(t, "the walk-through", testWalkThrough)
	s.run(t, "conntrack translates nothing", testNoTranslationByConntrack)
	s.run(t, "policy engines", testPolicyEngines)
	s.run(t, "an operator", testOperator)
}

func testSpread(t *testing.T, s *clusterset) {
	// of an earlier run
	s.kubectl(t, "hub", "delete", "overridepolicies.policy.karmada.io,propagationpolicies.policy.karmada.io,deployments.apps", "--all")
	// The agent that executes workloads may have been on a node that a part before this one cut off:
	// for the time of its Lease nothing is placed in its cluster.
	await.Equal(t, "", func() string {
		return s.kubectl(t, "hub", "get", "clusters.cluster.karmada.io", "-o", "jsonpath={.items[*].spec.taints}")
	})
	must(t, s.Spread(t.Context()))
	must(t, s.Override(t.Context()))
}

func testWalkThrough(t *testing.T, s *clusterset) {
	ctx := t.Context()
	// Of an earlier run with -keep: g1 must not have the service itself yet.
	s.kubectl(t, "g1", "-n", walk.Namespace, "delete", "serviceexport", "--all")
	must(t, s.Workload(ctx, "g2"))
	client, err := s.Client(ctx, "g1")
	must(t, err)
	must(t, s.Export(ctx, "g2", walk.ServiceName, walk.HeadlessName))
	must(t, s.FromFirst(ctx, client))
	must(t, s.Headless(ctx, client))
	_, err = s.Reverse(ctx)
	must(t, err)
	must(t, s.Translations(ctx))
}
