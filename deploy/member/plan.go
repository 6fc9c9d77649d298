// Package member installs a member of a clusterset from a spec.Member, and removes what is
// registered of it at the hub. Read reads what an earlier join has left, NewPlan decides from that
// and from what is wanted, without access to anything, and Apply does it. The command line, the
// operator and the migration from Submariner call it.
package member

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/spec"
)

// Have is what an earlier join has left in a cluster; the zero value if there was none.
type Have struct {
	Config config.Config
	// Pod is that of an agent, nil if none is installed.
	Pod *corev1.PodSpec
}

// Joined reports whether there was one.
func (h Have) Joined() bool { return h.Config.ClusterID != "" }

// Member is the Member that the earlier join was given.
func (h Have) Member() spec.Member {
	m := spec.FromConfig(h.Config)
	if h.Pod != nil && len(h.Pod.Containers) > 0 {
		m.AddPod(*h.Pod)
	}
	return m
}

// Read reads what an earlier join has left.
func Read(ctx context.Context, c client.Reader) (h Have, err error) {
	if h.Config, err = Former(ctx, c); err != nil || !h.Joined() {
		return h, err
	}
	// a member has one of them
	for _, name := range []string{manifests.AgentDeployment, manifests.ExecutionDeployment} {
		d := &appsv1.Deployment{}
		key := client.ObjectKey{Namespace: config.SystemNamespace, Name: name}
		err := c.Get(ctx, key, d)
		if client.IgnoreNotFound(err) != nil {
			return h, fmt.Errorf("get Deployment %s: %w", key, err)
		}
		if err == nil {
			h.Pod = &d.Spec.Template.Spec
			break
		}
	}
	return h, nil
}

// Plan is what Apply brings about.
type Plan struct {
	// Member is what is wanted, completed by what an earlier join was given.
	Member spec.Member
	// KeepRegistration: the hub is not asked, and the cluster keeps what it has granted.
	KeepRegistration bool

	have config.Config
	// gatewaysGiven: the number of gateways was given.
	gatewaysGiven bool
}

// NewPlan completes what is wanted and refuses what is not valid or contradicts what the cluster
// has joined with. given reports whether a field, by its path, was given; the others are kept.
func NewPlan(want spec.Member, given func(path string) bool, have Have, keepRegistration bool) (Plan, error) {
	p := Plan{Member: want, KeepRegistration: keepRegistration, have: have.Config}
	if have.Joined() {
		p.Member.Keep(have.Member(), given)
	}
	p.gatewaysGiven = given("spec.gateways")
	if len(p.Member.GatewayNodes) > 0 {
		if p.gatewaysGiven && p.Member.Gateways > 0 {
			return p, spec.Refuse("gateways", "spec.gateways %d: spec.gatewayNodes names the gateways already: leave one of them out", p.Member.Gateways)
		}
		p.Member.Gateways = 0
	}
	if err := spec.Join(p.Member.Validate()); err != nil {
		return p, err
	}
	former, id := have.Config, want.ClusterID
	if have.Joined() && former.WorkloadsOnly != p.Member.WorkloadsOnly {
		return p, spec.Refuse("workloadsOnly", "this cluster has joined as %q %s: remove it first, at the hub with `pelago unjoin --clusterid %s` and here "+
			"with `pelago unjoin`", former.ClusterID, map[bool]string{true: "with spec.workloadsOnly", false: "with the network"}[former.WorkloadsOnly],
			former.ClusterID)
	}
	if keepRegistration && former.ClusterID != id {
		return p, spec.Refuse("clusterID", "--keep-registration: the cluster has not joined as %q: leave the flag out", id)
	}
	if have.Joined() && former.ClusterID != id {
		return p, spec.Refuse("clusterID", "this cluster has joined as %q: use that id, or remove it first with `pelago unjoin`", former.ClusterID)
	}
	if p.Member.WorkloadsOnly {
		return p, refuseNetwork(given)
	}
	return p, nil
}

// refuseNetwork refuses fields of the network that were given with WorkloadsOnly.
func refuseNetwork(given func(path string) bool) error {
	allowed := append([]string{"spec.clusterID", "spec.workloadsOnly", "spec.image", "spec.imagePullPolicy"}, spec.PodFields...)
	flags := spec.Flags(spec.Member{})
	var wrong []string
	for path := range flags {
		if given(path) && !slices.Contains(allowed, path) {
			wrong = append(wrong, path)
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	slices.SortFunc(wrong, func(a, b string) int { return strings.Compare(flags[a], flags[b]) })
	return spec.Refuse(strings.TrimPrefix(wrong[0], "spec."), "%s: %s", wrong, spec.NetworkRefusal)
}

// configure is the configuration that the plan makes of the facts and of what the hub has granted.
func (p Plan) configure(facts Facts, g granted) config.Config {
	c := p.Member.Config()
	c.PodCIDRs, c.ServiceCIDRs, c.APIServer = facts.PodCIDRs, facts.ServiceCIDRs, cmp.Or(facts.APIServer, p.have.APIServer)
	c.ClusterIndex, c.GlobalCIDRs, c.ClusterSetIPCIDRs = g.index, g.globalCIDRs, g.clusterSetIPCIDRs
	c.FabricCIDR, c.Mode, c.CustomDomains = g.fabric, g.mode, g.customDomains
	c.ClusterSetIPs = c.ClusterSetIPs || g.clusterSetIPs
	c.GlobalRange, c.ClusterSetIPRange = g.globalRange, g.clusterSetIPRange
	c.HubID, c.HubServer, c.BrokerNamespace, c.CableDriver = g.hubID, g.hubServer, g.brokerNamespace, g.cableDriver
	return c
}

// kept is what the hub has granted to an earlier join.
func (p Plan) kept() (g granted) {
	c := p.have
	g = granted{index: c.ClusterIndex, globalCIDRs: c.GlobalCIDRs, clusterSetIPCIDRs: c.ClusterSetIPCIDRs, fabric: c.FabricCIDR, mode: c.Mode,
		customDomains: c.CustomDomains, globalRange: c.GlobalRange, clusterSetIPRange: c.ClusterSetIPRange,
		hubID: c.HubID, hubServer: c.HubServer, brokerNamespace: c.BrokerNamespace, cableDriver: p.Member.CableDriver}
	return g
}

// sameRanges refuses ranges that the hub has not granted.
func (p Plan) sameRanges(facts Facts) error {
	for _, r := range []struct {
		name       string
		want, have []netip.Prefix
	}{
		{"clusterCIDR", facts.PodCIDRs, p.have.PodCIDRs}, {"serviceCIDR", facts.ServiceCIDRs, p.have.ServiceCIDRs},
		{"externalCIDR", p.Member.ExternalCIDR, p.have.ExternalCIDRs},
	} {
		if !slices.Equal(r.want, r.have) {
			return spec.Refuse(r.name, "--keep-registration: other ranges are the hub's to grant: join again without it, with ranges that contain the former ones")
		}
	}
	return nil
}
