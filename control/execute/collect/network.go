package collect

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

// readGateways reads the Gateways of a member; none if it has no data plane of ours, or they may
// not be read.
func readGateways(ctx context.Context, member rest.Interface) ([]submarinerv1.Gateway, error) {
	text, err := member.Get().AbsPath("/apis", submarinerv1.GroupVersion.String(), "gateways").DoRaw(ctx)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list Gateways: %w", err)
	}
	var list submarinerv1.GatewayList
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("read the list of Gateways: %w", err)
	}
	return list.Items, nil
}

// mayServeGateways reports whether the member serves Gateways: only a complete discovery can deny
// it.
func (v *observation) mayServeGateways() bool {
	if v.complete == nil || v.complete.Status != metav1.ConditionTrue {
		return true
	}
	return clusterv1alpha1.Serves(v.enablements, submarinerv1.GroupVersion.String(), "Gateway")
}

// network is how the gateways see other clusters, by name: by the nearest one that is connected.
// The Gateway of a node that is not ready is not up to date. Figures that have hardly changed are
// those of before, so that they are not worth a write.
func network(gateways []submarinerv1.Gateway, nodes []node, before []clusterv1alpha1.NetworkPath) []clusterv1alpha1.NetworkPath {
	of := map[string]clusterv1alpha1.NetworkPath{}
	for i := range gateways {
		g := &gateways[i]
		if !slices.ContainsFunc(nodes, func(n node) bool { return n.name == g.Name && n.ready }) {
			continue
		}
		for k := range g.Status.Connections {
			c := &g.Status.Connections[k]
			name := c.Endpoint.ClusterID
			if name == "" {
				continue
			}
			path := networkPath(c)
			if have, ok := of[name]; !ok || nearer(path, have) {
				of[name] = path
			}
		}
	}
	var out []clusterv1alpha1.NetworkPath
	for _, name := range slices.Sorted(maps.Keys(of)) {
		path := of[name]
		path.Cluster = name
		if i := slices.IndexFunc(before, func(p clusterv1alpha1.NetworkPath) bool { return p.Cluster == name }); i >= 0 {
			path = settled(before[i], path)
		}
		out = append(out, path)
	}
	return out
}

func networkPath(c *submarinerv1.Connection) clusterv1alpha1.NetworkPath {
	out := clusterv1alpha1.NetworkPath{Reachable: c.Status == submarinerv1.Connected}
	if !out.Reachable || c.LatencyRTT == nil {
		return out
	}
	duration := func(text string) *metav1.Duration {
		d, err := time.ParseDuration(text)
		if err != nil {
			return nil // of a daemon that has not measured it
		}
		return &metav1.Duration{Duration: d.Round(10 * time.Microsecond)}
	}
	out.RTT, out.Jitter, out.LossPercent = duration(c.LatencyRTT.Average), duration(c.LatencyRTT.StdDev), c.LossPercent
	return out
}

// nearer reports whether a is the better path: reachable, measured, without loss, with the shorter
// round-trip time.
func nearer(a, b clusterv1alpha1.NetworkPath) bool {
	switch {
	case a.Reachable != b.Reachable:
		return a.Reachable
	case a.RTT == nil || b.RTT == nil:
		return a.RTT != nil
	case (a.LossPercent > 0) != (b.LossPercent > 0):
		return a.LossPercent == 0
	}
	return a.RTT.Duration < b.RTT.Duration
}

// settled is the newer of two reports of a path, with the former figures where they differ by a
// fifth or 1 ms at most.
func settled(before, now clusterv1alpha1.NetworkPath) clusterv1alpha1.NetworkPath {
	if now.RTT == nil || before.RTT == nil || now.Reachable != before.Reachable || (now.LossPercent > 0) != (before.LossPercent > 0) {
		return now
	}
	same := func(a, b *metav1.Duration) bool {
		return a != nil && b != nil && (a.Duration-b.Duration).Abs() <= max(a.Duration/5, time.Millisecond)
	}
	if same(before.RTT, now.RTT) && same(before.Jitter, now.Jitter) && (now.LossPercent-before.LossPercent)*5 <= before.LossPercent &&
		(before.LossPercent-now.LossPercent)*5 <= before.LossPercent {
		return before
	}
	return now
}
