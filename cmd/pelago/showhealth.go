package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
)

// staleAfter is how long a gateway may leave its Gateway object alone: three times as long as a live one does.
const staleAfter = 90 * time.Second

// health is what is known of a gateway besides its own words, which it cannot take back when it is dead.
type health struct {
	// silentTo are the nodes that it does not answer, of asked ones.
	silentTo []string
	asked    int
	// silence is the time since its last report if that is too long ago, else 0.
	silence time.Duration
}

// gone: nobody gets an answer, or it has not reported for long. Its own words are no longer to be believed.
func (h health) gone() bool { return h.silence > 0 || h.asked > 0 && len(h.silentTo) == h.asked }

// words say what is wrong; empty if nothing is.
func (h health) words() string {
	var out []string
	switch n := len(h.silentTo); {
	case n == 0:
	case n == 1:
		out = append(out, fmt.Sprintf("1 of %d nodes gets no answer", h.asked))
	default:
		out = append(out, fmt.Sprintf("%d of %d nodes get no answer", n, h.asked))
	}
	if h.silence > 0 {
		out = append(out, fmt.Sprintf("no report for %.0f minutes", max(1, h.silence.Minutes())))
	}
	return strings.Join(out, ", ")
}

// gatewayHealth looks at what the nodes say of each gateway. The word of a gateway that others get no answer from does not
// count: it may be old.
func gatewayHealth(ctx context.Context, m *member, gateways []submarinerv1.Gateway, now time.Time) (map[string]health, error) {
	agents := &submarinerv1.RouteAgentList{}
	err := m.client.List(ctx, agents, client.InNamespace(config.SystemNamespace))
	if err != nil && !meta.IsNoMatchError(err) { // a member of an older version has none
		return nil, fmt.Errorf("list RouteAgents: %w", err)
	}
	silent := map[string][]string{} // gateway → nodes that it does not answer
	for _, a := range agents.Items {
		for name := range strings.SplitSeq(a.Annotations[submarinerv1.AnnotationSilentGateways], ",") {
			if name != "" {
				silent[name] = append(silent[name], a.Name)
			}
		}
	}
	out := map[string]health{}
	for _, g := range gateways {
		h := health{}
		for _, a := range agents.Items {
			if a.Name == g.Name || len(silent[a.Name]) > 0 {
				continue
			}
			h.asked++
			if slices.Contains(silent[g.Name], a.Name) {
				h.silentTo = append(h.silentTo, a.Name)
			}
		}
		slices.Sort(h.silentTo)
		if seconds, err := strconv.ParseInt(g.Annotations[submarinerv1.AnnotationUpdated], 10, 64); err == nil {
			if age := now.Sub(time.Unix(seconds, 0)); age > staleAfter {
				h.silence = age
			}
		}
		out[g.Name] = h
	}
	return out, nil
}
