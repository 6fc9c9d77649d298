package main

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/pelago-net/pelago/control/agent/peering"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/execute"
	"github.com/pelago-net/pelago/control/execute/collect"
	"github.com/pelago-net/pelago/control/hubclient"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/control/tunnel"
)

// addExecution adds the role execution, which executes this cluster's Works, and nothing else from
// the hub, and maintains the cluster's status and Lease at the hub. alone means that the role
// network, which renews the token, runs in another process or, with --workloads-only, not at all.
func (a *agent) addExecution(c config.Config, to hubclient.Options, tokens *peering.TokenSource, alone bool) error {
	id, hubID := c.ClusterID, c.HubID
	access, connected := hubclient.Config(to)
	h, err := hubclient.NewWorks(access, id, to.Logger)
	if err != nil {
		return err
	}
	if len(a.metrics) == 0 { // else the role network exports the same metric
		a.metrics = append(a.metrics, connected)
	}
	log := slog.New(logr.ToSlogHandler(a.manager.GetLogger().WithName("execution")))
	member := rest.CopyConfig(a.manager.GetConfig())
	member.QPS = 0 // the member's priority and fairness limits the requests
	custom := kinds.NewCustom()
	works, err := execute.New(execute.Options{
		Cluster: id, HubID: hubID, Interpreter: custom.Interpreter(), Hub: h.GetClient(), Works: execute.NewWorks(h.GetCache()),
		Member: member, Recorder: kube.EventRecorder(h, "pelago-agent"), Log: log,
	})
	if err != nil {
		return err
	}
	status, err := collect.NewCollector(collect.CollectorOptions{
		Cluster: id, Hub: h.GetClient(), Member: member, Lease: true, Log: log,
	})
	if err != nil {
		return err
	}
	attached := &tunnel.Agent{Cluster: id, Server: to.Server, CA: to.CA, Token: to.Token, Member: member, Log: log}
	a.metrics = append(a.metrics, attached.Metrics())
	follower := &execute.Follower{Cache: h.GetCache(), Live: h.GetAPIReader(), Mapper: h.GetRESTMapper(), Rules: custom, Log: log}
	for name, r := range map[string]manager.Runnable{
		// Add a Runnable, not the cluster.Cluster h: the manager would wait for its cache to sync,
		// and the hub may be unreachable.
		"the hub's cache":        manager.RunnableFunc(h.Start),
		"the rules of kinds":     manager.RunnableFunc(follower.Start),
		"the execution of Works": manager.RunnableFunc(works.Start),
		"the cluster's status":   manager.RunnableFunc(status.Start),
		"the tunnel of the hub":  manager.RunnableFunc(attached.Start),
	} {
		if err := a.manager.Add(r); err != nil {
			return fmt.Errorf("add %s: %w", name, err)
		}
	}
	switch {
	case c.WorkloadsOnly:
		a.metrics = append(a.metrics, tokens.Metrics())
		return errors.Join(a.followHub(c, tokens), peering.SetupToken(a.manager, peering.TokenOptions{
			Namespace: config.SystemNamespace, ClusterID: id, Source: tokens, Hub: h.GetClient(), BrokerNamespace: c.BrokerNamespace}))
	case alone:
		return peering.FollowToken(a.manager, config.SystemNamespace, tokens)
	}
	return nil
}
