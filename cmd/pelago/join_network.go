package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/cmd/pelago/internal/install"
	"github.com/pelago-net/pelago/cmd/pelago/internal/migrate"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy"
	"github.com/pelago-net/pelago/deploy/broker"
)

// network installs everything, the agent for workloads only where the hub propagates.
func (j *join) network(
	ctx context.Context, m *cluster, info broker.Info, former config.Config, answers *view.Answers, out io.Writer, progress deploy.Progress,
) error {
	if !j.adopt {
		if err := migrate.RefuseSubmariner(ctx, m.Client, progress); err != nil {
			return err
		}
	}
	facts, err := install.ReadFacts(ctx, m.Member, j.ClusterID, former, j.clusterCIDR, j.serviceCIDR, progress)
	if err != nil {
		return err
	}
	gateways, err := install.ChooseGateways(ctx, facts.Nodes, j.gatewayNodes, j.labelGateway, answers, out)
	if err != nil {
		return err
	}
	if j.registered {
		return j.update(ctx, m, info, former, facts, gateways, progress)
	}
	progress("Reading the hub at %s", info.BrokerURL)
	hub, set, err := j.openHub(ctx, info)
	if err != nil {
		return err
	}
	entry, err := broker.Claim(ctx, hub, info.Namespace(), broker.Request{
		ClusterID: j.ClusterID, ClusterUID: facts.UID, GlobalCIDR: j.globalCIDR, Size: j.globalSize, NoGlobalnet: !j.globalnet,
		ClusterSetIPCIDR: j.vipCIDR,
		Local:            slices.Concat(facts.PodCIDRs, facts.ServiceCIDRs), External: j.ExternalCIDRs, Nodes: facts.NodeAddresses(), Fabric: set.Fabric, Hub: set.Hub,
	})
	if err != nil {
		return fmt.Errorf("join as %q: %w", j.ClusterID, err)
	}
	share := ""
	if len(entry.GlobalCIDR) > 0 {
		share = fmt.Sprintf(" and GlobalCIDR %s", entry.GlobalCIDR[0])
	}
	progress("Cluster %s has index %d%s", j.ClusterID, entry.ClusterIndex, share)
	c := j.Parsed()
	c.ClusterIndex, c.GlobalCIDRs = uint16(entry.ClusterIndex), entry.GlobalCIDR
	c.PodCIDRs, c.ServiceCIDRs, c.FabricCIDR = facts.PodCIDRs, facts.ServiceCIDRs, set.Fabric
	c.Mode, c.CustomDomains = config.Mode(set.Mode), set.CustomDomains
	c.ClusterSetIPs, c.ClusterSetIPCIDRs = c.ClusterSetIPs || set.ClusterSetIPs, entry.ClusterSetIPCIDR
	if c.GlobalRange, c.ClusterSetIPRange, err = broker.Ranges(ctx, hub, info.Namespace()); err != nil {
		return err
	}
	if c.CoreDNSCustom == "" && !j.flags.Changed("coredns-custom-configmap") {
		if c.CoreDNSCustom, err = install.CoreDNSCustom(ctx, m.Client); err != nil {
			return err
		}
	}
	c.HubID, c.HubServer, c.BrokerNamespace = set.HubID, info.BrokerURL, info.Namespace()
	token := ""
	if err := writeSettings(ctx, m, info, former, c, gateways, progress, func() (err error) {
		token, err = install.RegisterNetwork(ctx, hub, m.Client, info, broker.Member{
			Entry: entry, PodCIDR: c.RoutedPodCIDRs(), ServiceCIDR: facts.ServiceCIDRs, Fabric: set.Fabric, NetworkOnly: j.NetworkOnly,
		}, progress)
		return err
	}); err != nil {
		return err
	}
	pull := false
	switch {
	case j.NetworkOnly:
	case j.dryRun:
		if pull, err = install.Propagates(hub); err != nil {
			return err
		}
	default:
		if pull, err = install.RegisterPull(ctx, info, set, token, j.ClusterID, facts.UID, progress); err != nil {
			return err
		}
	}
	return j.install(ctx, m.Client, c, pull, progress)
}

// update is network with --keep-registration, for a cluster that keeps what the hub has allocated to it.
func (j *join) update(
	ctx context.Context, m *cluster, info broker.Info, former config.Config, facts install.Facts, gateways []string, progress deploy.Progress,
) error {
	c := j.Parsed()
	if !slices.Equal(facts.PodCIDRs, former.PodCIDRs) || !slices.Equal(facts.ServiceCIDRs, former.ServiceCIDRs) ||
		!slices.Equal(c.ExternalCIDRs, former.ExternalCIDRs) {
		return errors.New("--keep-registration: other ranges are the hub's to grant: leave the flag out")
	}
	c.ClusterIndex, c.PodCIDRs, c.ServiceCIDRs, c.FabricCIDR = former.ClusterIndex, former.PodCIDRs, former.ServiceCIDRs, former.FabricCIDR
	c.GlobalCIDRs, c.GlobalRange, c.Mode, c.CustomDomains = former.GlobalCIDRs, former.GlobalRange, former.Mode, former.CustomDomains
	c.ClusterSetIPs, c.ClusterSetIPCIDRs, c.ClusterSetIPRange = former.ClusterSetIPs, former.ClusterSetIPCIDRs, former.ClusterSetIPRange
	c.HubID, c.HubServer, c.BrokerNamespace = former.HubID, former.HubServer, former.BrokerNamespace
	if err := writeSettings(ctx, m, info, former, c, gateways, progress, func() error { return nil }); err != nil {
		return err
	}
	err := m.Client.Get(ctx, client.ObjectKey{Namespace: deploy.SystemNamespace, Name: deploy.ExecutionDeployment}, &appsv1.Deployment{})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get Deployment %s: %w", deploy.ExecutionDeployment, err)
	}
	return j.install(ctx, m.Client, c, err == nil && !j.NetworkOnly, progress)
}

// writeSettings validates the configuration, prints what changes if the cluster has joined before, calls register, and then writes what
// the components read.
func writeSettings(
	ctx context.Context, m *cluster, info broker.Info, former, c config.Config, gateways []string, progress deploy.Progress, register func() error,
) error {
	if _, err := config.Parse(c.Data()); err != nil {
		return fmt.Errorf("the flags and the discovered settings make no valid configuration: %w", err)
	}
	if former.ClusterID != "" {
		for _, change := range view.Changes(former.Data(), c.Data()) {
			progress("Changing %s", change)
		}
		psk, err := install.SecretKey(ctx, m.Client, config.PSKSecretName, config.KeyPSK)
		if err != nil {
			return err
		}
		if len(psk) > 0 && !bytes.Equal(psk, info.IPSecPSK.Data["psk"]) {
			progress("Changing the pre-shared key of the cables: members that do not join again lose the connection")
		}
	}
	if err := deploy.MemberBase(ctx, m.Client, progress); err != nil {
		return err
	}
	if err := register(); err != nil {
		return err
	}
	if err := install.Configure(ctx, m.Client, info, c); err != nil {
		return err
	}
	if err := install.MoveForward(ctx, m.Client, former.CoreDNSCustom, c.CoreDNSCustom, progress); err != nil {
		return err
	}
	if err := install.LoadBalancer(ctx, m.Client, c); err != nil {
		return err
	}
	return install.LabelGateways(ctx, m.Client, gateways, progress)
}
