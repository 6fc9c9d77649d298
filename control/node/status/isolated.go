package status

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane"
)

// Reasons of Events about a Node.
const (
	reasonIsolated    = "NoGatewayAnswers"
	reasonNotIsolated = "GatewayAnswers"
)

// isolation follows Verdict.Isolated once it has lasted for steady, in both directions.
type isolation struct {
	reported bool
	changed  time.Time // since when the observation differs from what is reported; zero: it does not
}

// update returns the Event of a change.
func (i *isolation) update(snap Snapshot, v Verdict, now time.Time) []Event {
	switch {
	case v.Isolated == i.reported:
		i.changed = time.Time{}
		return nil
	case i.changed.IsZero():
		i.changed = now
	}
	if now.Sub(i.changed) < steady || v.Isolated && !v.Known {
		return nil
	}
	*i = isolation{reported: v.Isolated}
	if v.Isolated {
		return []Event{{corev1.EventTypeWarning, reasonIsolated, isolatedMessage(snap)}}
	}
	return []Event{{corev1.EventTypeNormal, reasonNotIsolated, "a gateway answers this node again: its verdict on other clusters counts"}}
}

// isolatedMessage names the node, the gateways and the remedy.
func isolatedMessage(snap Snapshot) string {
	var gateways []string
	for i := range snap.Objects.NodeIndexes {
		n := &snap.Objects.NodeIndexes[i]
		if n.Name != snap.Objects.Name && slices.Contains(snap.State.Gateways, uint16(n.Spec.Index)) {
			gateways = append(gateways, n.Name)
		}
	}
	slices.Sort(gateways)
	remote := ""
	if snap.Gateway {
		remote = fmt.Sprintf(", and that the cable's UDP port passes to the gateways of %s", strings.Join(peerNames(snap), ", "))
	}
	return fmt.Sprintf("no gateway answers node %s: its pods reach no other cluster, and its view of other clusters does not count; "+
		"check that UDP %d passes in both directions between it and %s%s", snap.Objects.Name, dataplane.OverlayPort, strings.Join(gateways, ", "), remote)
}

func peerNames(snap Snapshot) (out []string) {
	for p := range tables.RoutedPeers(snap.Objects.Peers) {
		out = append(out, p.Name)
	}
	slices.Sort(out)
	return out
}
