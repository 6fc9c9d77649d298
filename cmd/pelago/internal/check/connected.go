package check

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
)

// Connections are those of the gateways of a member.
type Connections struct {
	// Peers is the number of other clusters, without those of Waiting.
	Peers int
	// Waiting is why there is no connection with a cluster that an administrator has to accept, or
	// with any until this one is accepted.
	Waiting string
	// Gateways is the number of gateways, Connected of those that reach every other cluster.
	Gateways, Connected int
	// RTT is the shortest mean round-trip time; 0: none is known.
	RTT time.Duration
	// Reason is the first problem.
	Reason string
}

// Done reports whether all gateways reach every other cluster.
func (c Connections) Done() bool { return c.Gateways > 0 && c.Connected == c.Gateways }

func (c Connections) String() string {
	text := fmt.Sprintf("%d of %d gateways connected", c.Connected, c.Gateways)
	if c.RTT > 0 {
		text += ", " + c.RTT.Round(max(c.RTT/100, 10*time.Microsecond)).String()
	}
	if !c.Done() && c.Reason != "" {
		text += ": " + c.Reason
	}
	if !c.Done() {
		text += " (see `pelago check`)"
	}
	return text
}

// Connected reads how the gateways of a member are connected.
func Connected(ctx context.Context, r client.Reader) (out Connections, err error) {
	var gateways submarinerv1.GatewayList
	if err := r.List(ctx, &gateways, client.InNamespace(config.SystemNamespace)); err != nil {
		return out, fmt.Errorf("list Gateways: %w", err)
	}
	var peers pelagov1alpha1.PeerList
	if err := r.List(ctx, &peers); err != nil {
		return out, fmt.Errorf("list Peers: %w", err)
	}
	peers.Items = slices.DeleteFunc(peers.Items, func(p pelagov1alpha1.Peer) bool {
		c := meta.FindStatusCondition(p.Status.Conditions, pelagov1alpha1.PeerAccepted)
		waits := c != nil && c.Reason == pelagov1alpha1.ReasonUnapproved
		if waits {
			out.Waiting = c.Message
		}
		return waits
	})
	out.Peers, out.Gateways = len(peers.Items), len(gateways.Items)
	for i := range peers.Items {
		if p := &peers.Items[i]; !accepted(p) {
			out.Reason = fmt.Sprintf("cluster %s is not accepted", p.Name)
			for _, c := range p.Status.Conditions {
				out.Reason = fmt.Sprintf("cluster %s: %s", p.Name, c.Message)
			}
		}
	}
	for _, g := range gateways.Items {
		reached := map[string]bool{}
		for _, c := range g.Status.Connections {
			if c.Status != submarinerv1.Connected {
				if c.StatusMessage != "" {
					out.Reason = fmt.Sprintf("from %s to gateway %s of cluster %s: %s", g.Name, c.Endpoint.Hostname, c.Endpoint.ClusterID, c.StatusMessage)
				}
				continue
			}
			reached[c.Endpoint.ClusterID] = true
			if c.LatencyRTT == nil {
				continue
			}
			if rtt, err := time.ParseDuration(c.LatencyRTT.Average); err == nil && (out.RTT == 0 || rtt < out.RTT) {
				out.RTT = rtt
			}
		}
		missing := false
		for _, p := range peers.Items {
			missing = missing || !reached[p.Name]
		}
		if !missing {
			out.Connected++
		}
	}
	return out, nil
}
