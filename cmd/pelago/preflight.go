package main

import (
	"context"
	"errors"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/cmd/pelago/internal/check"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// preflight checks a cluster before it joins. Errors refuse it; the rest is reported.
func preflight(ctx context.Context, m view.Member, progress manifests.Progress) error {
	return refuse(ctx, check.Target{Context: m.Config.Host, Joining: true, Open: opened(m)}, check.Selection{Only: []string{"P"}, OfJoin: true},
		"the cluster does not join: --skip-checks joins it all the same", progress)
}

// preflightHub checks an API server before it is made a hub, or before a hub is updated.
func preflightHub(ctx context.Context, m view.Member, progress manifests.Progress) error {
	return refuse(ctx, check.Target{Context: m.Config.Host, Hosting: true, Open: opened(m)}, check.Selection{Only: []string{"P", "PLG-N042", "PLG-N043"}},
		"the hub is not made: --skip-checks makes it all the same", progress)
}

// preflightHost checks the cluster that a hub is to run in as pods: the hub has an API server and a
// store of its own.
func preflightHost(ctx context.Context, m view.Member, progress manifests.Progress) error {
	return refuse(ctx, check.Target{Context: m.Config.Host, Hosting: true, Open: opened(m)}, check.Selection{Only: []string{"PLG-P021", "PLG-N042", "PLG-N043"}},
		"the hub is not made: --skip-checks makes it all the same", progress)
}

func opened(m view.Member) func() (view.Member, error) {
	return func() (view.Member, error) { return m, nil }
}

// refuse runs the selected checks of a cluster. Errors are returned, with remedy; the rest is
// reported.
func refuse(ctx context.Context, target check.Target, selected check.Selection, remedy string, progress manifests.Progress) error {
	var refused []error
	for _, f := range check.Run(check.Read(ctx, []check.Target{target}, checkTimeout, true, selected), selected).Findings() {
		if f.Verdict == check.Error {
			refused = append(refused, refusal{f})
			continue
		}
		progress("Warning: %s", refusal{f})
	}
	if len(refused) > 0 {
		return errors.Join(append(refused, errors.New(remedy))...)
	}
	return nil
}

// refusal is a finding in one line.
type refusal struct{ check.Finding }

func (r refusal) Error() string {
	where := ""
	if r.Object != "" {
		where = r.Object + ": "
	}
	return r.Code + ": " + where + r.Reason + ": " + r.Remedy
}

const (
	// peersKnown is how long the agent may take to receive the Peers of other clusters.
	peersKnown = 5 * time.Second
	// connectionsUp is how long the gateways may take to connect.
	connectionsUp = 30 * time.Second
)

// awaitConnections waits a while for the gateways to connect to those of the other clusters, and
// reports what has come of it.
func awaitConnections(ctx context.Context, c client.Reader, progress manifests.Progress) {
	begin := time.Now()
	for {
		state, err := check.Connected(ctx, c)
		switch passed := time.Since(begin); {
		case err != nil:
			progress("Warning: whether the gateways are connected is not known: %v", err)
			return
		case state.Peers == 0 && state.Waiting != "":
			progress("Not connected: %s", state.Waiting)
			return
		case state.Peers == 0 && passed > peersKnown:
			progress("No other cluster has joined yet")
			return
		case state.Peers > 0 && state.Done() || passed > connectionsUp:
			progress("%s", state)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
	}
}
