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
	selected := check.Selection{Only: []string{"P"}, OfJoin: true}
	target := check.Target{Context: m.Config.Host, Joining: true, Open: func() (view.Member, error) { return m, nil }}
	var refused []error
	for _, f := range check.Run(check.Read(ctx, []check.Target{target}, checkTimeout, true, selected), selected).Findings() {
		if f.Verdict == check.Error {
			refused = append(refused, refusal{f})
			continue
		}
		progress("Warning: %s", refusal{f})
	}
	if len(refused) > 0 {
		return errors.Join(append(refused, errors.New("the cluster does not join: --skip-checks joins it all the same"))...)
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
