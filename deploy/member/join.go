package member

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/spec"
)

// Options are how a plan is applied.
type Options struct {
	// Info is what the cluster joins with.
	Info broker.Info
	// DryRun: the client of the member is a recorder, and the hub is only read.
	DryRun bool
	// AcceptRanges: pod ranges that only the present nodes have, or that lack running pods, are
	// confirmed.
	AcceptRanges bool
	// RegisterOnly: no component is installed.
	RegisterOnly bool
	// Submariner: the cluster may still run Submariner.
	Submariner bool
	// FirstCableDriver is the cable driver of a cluster that is given none and is the first of its
	// clusterset; empty: spec.DefaultCableDriver.
	FirstCableDriver string
	// Choose returns the gateways of several candidates; without it, or if it returns none, as many are
	// taken as the agent keeps.
	Choose   func(candidates []string) ([]string, error)
	Progress manifests.Progress
}

// granted is what the hub grants to a cluster, and the settings that it shares with the others.
type granted struct {
	index                                  uint16
	globalCIDRs, clusterSetIPCIDRs         []netip.Prefix
	fabric, globalRange, clusterSetIPRange netip.Prefix
	mode                                   config.Mode
	customDomains                          []string
	clusterSetIPs                          bool
	hubID, hubServer, brokerNamespace      string
	cableDriver                            string
}

// Apply joins the cluster, or updates it.
func (p Plan) Apply(ctx context.Context, c manifests.Cluster, o Options) error {
	switch {
	case p.Member.WorkloadsOnly && p.KeepRegistration:
		return p.install(ctx, c.Client, p.have, true, o)
	case p.Member.WorkloadsOnly:
		return p.workloads(ctx, c, o)
	}
	return p.network(ctx, c, o)
}

// network installs everything, the agent for workloads only where the hub propagates.
func (p Plan) network(ctx context.Context, c manifests.Cluster, o Options) error {
	if !o.Submariner {
		if err := RefuseSubmariner(ctx, c.Client, o.Progress); err != nil {
			return err
		}
	}
	facts, err := readFacts(ctx, c, p.Member, p.have, o.AcceptRanges, o.Progress)
	if err != nil {
		return err
	}
	if labelled := slices.ContainsFunc(facts.Nodes, func(n corev1.Node) bool { return topology.IsGateway(&n) }); labelled && !p.gatewaysGiven && p.have.ClusterID == "" {
		p.Member.Gateways = 0 // the labels are the user's
	}
	gateways, err := chooseGateways(facts.Nodes, p.Member, o.Choose)
	if err != nil {
		return err
	}
	p.Member.Gateways = gateways.keep
	warnSingle(facts.Nodes, gateways.nodes, o.Progress)
	if p.KeepRegistration {
		return p.update(ctx, c, facts, gateways, o)
	}
	o.Progress("Reading the hub at %s", o.Info.BrokerURL)
	hub, set, err := openHub(ctx, o)
	if err != nil {
		return err
	}
	entry, err := broker.Claim(ctx, hub, o.Info.Namespace(), p.request(facts, set, o))
	if err != nil {
		return fmt.Errorf("join as %q: %w", p.Member.ClusterID, err)
	}
	share := ""
	if len(entry.GlobalCIDR) > 0 {
		share = fmt.Sprintf(" and GlobalCIDR %s", entry.GlobalCIDR[0])
	}
	o.Progress("Cluster %s has index %d%s", p.Member.ClusterID, entry.ClusterIndex, share)
	if p.Member.CableDriver == "" {
		o.Progress("Its cable driver is %s", entry.CableDriver)
		p.Member.CableDriver = entry.CableDriver
		if err := spec.Join(p.Member.Validate()); err != nil {
			return err
		}
	}
	g := granted{index: uint16(entry.ClusterIndex), globalCIDRs: entry.GlobalCIDR, clusterSetIPCIDRs: entry.ClusterSetIPCIDR, fabric: set.Fabric,
		mode: config.Mode(set.Mode), customDomains: set.CustomDomains, clusterSetIPs: set.ClusterSetIPs, hubID: set.HubID, hubServer: o.Info.BrokerURL,
		brokerNamespace: o.Info.Namespace(), cableDriver: p.Member.CableDriver}
	if g.globalRange, g.clusterSetIPRange, err = broker.Ranges(ctx, hub, o.Info.Namespace()); err != nil {
		return err
	}
	settings := p.configure(facts, g)
	if p.Member.CoreDNSCustom == nil {
		if settings.CoreDNSCustom, err = coreDNSCustom(ctx, c.Client); err != nil {
			return err
		}
	}
	token := ""
	if err := p.write(ctx, c, settings, gateways, o, func() (err error) {
		token, err = registerNetwork(ctx, hub, c.Client, o.Info, broker.Member{
			Entry: entry, PodCIDR: settings.RoutedPodCIDRs(), ServiceCIDR: facts.ServiceCIDRs, Fabric: set.Fabric, NetworkOnly: p.Member.NetworkOnly,
			Needed: facts.Needed, Unapproved: set.Asks,
		}, o.Progress)
		return err
	}); err != nil {
		return err
	}
	pull := false
	switch {
	case p.Member.NetworkOnly:
	case o.DryRun:
		if pull, err = Propagates(hub); err != nil {
			return err
		}
	default:
		if pull, err = p.addWorkloads(ctx, hub, o, set, token, facts.UID); err != nil {
			return err
		}
	}
	return p.install(ctx, c.Client, settings, pull, o)
}

// addWorkloads registers the cluster for workloads too, and reports whether the hub propagates any.
func (p Plan) addWorkloads(ctx context.Context, hub client.Client, o Options, set broker.Clusterset, token, uid string) (bool, error) {
	id := p.Member.ClusterID
	networkOnly, err := broker.NetworkOnly(ctx, hub, o.Info.Namespace(), id)
	if err == nil && networkOnly {
		networkOnly, err = Propagates(hub)
	}
	if err != nil {
		return false, err
	}
	if networkOnly { // registerPull would wait for rights that never come
		return false, fmt.Errorf("register cluster %q for workloads: it was joined with --network-only: to give it workloads, unjoin it "+
			"(pelago unjoin) and join it without that flag", id)
	}
	return registerPull(ctx, o.Info, set, token, id, uid, o.Progress)
}

// request is what the cluster asks the hub for.
func (p Plan) request(facts Facts, set broker.Clusterset, o Options) broker.Request {
	return broker.Request{
		ClusterID: p.Member.ClusterID, ClusterUID: facts.UID, GlobalCIDR: p.Member.GlobalCIDR, Size: p.Member.GlobalnetClusterSize,
		NoGlobalnet: !p.Member.Globalnet, ClusterSetIPCIDR: p.Member.ClustersetIPCIDR, Pods: facts.PodCIDRs, Services: facts.ServiceCIDRs,
		External: p.Member.ExternalCIDR, Nodes: facts.NodeAddresses(), Needed: facts.Needed, Fabric: set.Fabric, Hub: set.Hub, Allowed: set.Allowed,
		CableDriver: p.Member.CableDriver, FirstCableDriver: o.FirstCableDriver,
	}
}

// update is network for a cluster that keeps what the hub has granted to it.
func (p Plan) update(ctx context.Context, c manifests.Cluster, facts Facts, gateways chosenGateways, o Options) error {
	if err := p.sameRanges(facts); err != nil {
		return err
	}
	settings := p.configure(facts, p.kept())
	settings.ClusterSetIPs = p.have.ClusterSetIPs
	if err := p.write(ctx, c, settings, gateways, o, func() error { return nil }); err != nil {
		return err
	}
	err := c.Client.Get(ctx, client.ObjectKey{Namespace: manifests.SystemNamespace, Name: manifests.ExecutionDeployment}, &appsv1.Deployment{})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get Deployment %s: %w", manifests.ExecutionDeployment, err)
	}
	return p.install(ctx, c.Client, settings, err == nil && !p.Member.NetworkOnly, o)
}

// write validates the configuration, reports what changes if the cluster has joined before, calls
// register, and then writes what the components read.
func (p Plan) write(ctx context.Context, c manifests.Cluster, settings config.Config, gateways chosenGateways, o Options, register func() error) error {
	if _, err := config.Parse(settings.Data()); err != nil {
		return fmt.Errorf("the flags and the discovered settings make no valid configuration: %w", err)
	}
	if p.have.ClusterID != "" {
		for _, change := range Changes(p.have.Data(), settings.Data()) {
			o.Progress("Changing %s", change)
		}
		psk, err := SecretKey(ctx, c.Client, config.PSKSecretName, config.KeyPSK)
		if err != nil {
			return err
		}
		if len(psk) > 0 && !bytes.Equal(psk, o.Info.IPSecPSK.Data["psk"]) {
			o.Progress("Changing the pre-shared key of the cables: members that do not join again lose the connection")
		}
	}
	if err := manifests.MemberBase(ctx, c.Client, o.Progress); err != nil {
		return err
	}
	if err := register(); err != nil {
		return err
	}
	if err := configure(ctx, c.Client, o.Info, settings); err != nil {
		return err
	}
	if err := moveForward(ctx, c.Client, p.have.CoreDNSCustom, settings.CoreDNSCustom, o.Progress); err != nil {
		return err
	}
	if err := loadBalancer(ctx, c.Client, settings); err != nil {
		return err
	}
	return labelGateways(ctx, c.Client, gateways, o.Progress)
}

// workloads installs the agent for workloads alone.
func (p Plan) workloads(ctx context.Context, c manifests.Cluster, o Options) error {
	id := p.Member.ClusterID
	uid, err := broker.ClusterUID(ctx, c.Client)
	if err != nil {
		return err
	}
	o.Progress("Reading the hub at %s", o.Info.BrokerURL)
	hub, set, err := openHub(ctx, o)
	if err != nil {
		return err
	}
	if ok, err := Propagates(hub); err != nil {
		return err
	} else if !ok {
		return errors.New("the hub propagates no workloads: run `pelago init` there, or join without --workloads-only")
	}
	entry, err := broker.Claim(ctx, hub, o.Info.Namespace(), broker.Request{ClusterID: id, ClusterUID: uid, WorkloadsOnly: true})
	if err != nil {
		return fmt.Errorf("join as %q: %w", id, err)
	}
	settings := config.Config{WorkloadsOnly: true, ClusterID: id, ClusterIndex: uint16(entry.ClusterIndex),
		HubID: set.HubID, HubServer: o.Info.BrokerURL, BrokerNamespace: o.Info.Namespace()}
	if err := manifests.ExecutionBase(ctx, c.Client, o.Progress); err != nil {
		return err
	}
	token, err := registerNetwork(ctx, hub, c.Client, o.Info, broker.Member{Entry: entry, Unapproved: set.Asks}, o.Progress)
	if err != nil {
		return err
	}
	if err := configure(ctx, c.Client, o.Info, settings); err != nil {
		return err
	}
	if !o.DryRun {
		if _, err := registerPull(ctx, o.Info, set, token, id, uid, o.Progress); err != nil {
			return err
		}
	}
	return p.install(ctx, c.Client, settings, true, o)
}

// install installs the components, with pull also the agent for workloads.
func (p Plan) install(ctx context.Context, c client.Client, settings config.Config, pull bool, o Options) error {
	if o.RegisterOnly {
		return nil
	}
	options := p.Member.Options()
	options.IKE, options.CoreDNSCustom = settings.CableDriver == config.CableLibreswan, settings.CoreDNSCustom
	if settings.WorkloadsOnly {
		return manifests.Execution(ctx, c, options, o.Progress)
	}
	if err := manifests.Member(ctx, c, options, o.Progress); err != nil {
		return err
	}
	if pull {
		return manifests.Execution(ctx, c, options, o.Progress)
	}
	return manifests.RemoveExecution(ctx, c, o.Progress)
}

// openHub opens the hub with the credential of the file and reads the settings of the clusterset.
func openHub(ctx context.Context, o Options) (client.Client, broker.Clusterset, error) {
	hub, err := manifests.Open(o.Info.Config())
	if err != nil {
		return nil, broker.Clusterset{}, err
	}
	if err := hub.RequireHubVersion(); err != nil {
		return nil, broker.Clusterset{}, err
	}
	set, err := broker.ReadClusterset(ctx, hub.Client, o.Info.Namespace())
	if err != nil {
		return nil, broker.Clusterset{}, fmt.Errorf("%w: was the broker deployed by `pelago deploy-broker`, and does its file come from there?", err)
	}
	if o.DryRun {
		return &manifests.Recorder{Client: hub.Client}, set, nil
	}
	return hub.Client, set, nil
}

// Changes lists the settings that differ, sorted.
func Changes(before, after map[string]string) []string {
	keys := maps.Clone(before)
	maps.Copy(keys, after)
	value := func(of map[string]string, key string) string {
		if text := of[key]; text != "" {
			return text
		}
		return "unset"
	}
	var out []string
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if before[key] != after[key] {
			out = append(out, strings.Join([]string{key + ": " + value(before, key), value(after, key)}, " → "))
		}
	}
	return out
}
