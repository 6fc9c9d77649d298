package topology

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

const (
	// settleReports batches the reports of many nodes on one event; their daemons spread them over a
	// second.
	settleReports = 200 * time.Millisecond
	// recountReports is the interval at which reports that were left behind are noticed.
	recountReports = 30 * time.Second
)

// RouteAgentMetadata is an empty RouteAgent to watch: its annotations are the report, and its
// status, which lists every remote gateway, is not read.
func RouteAgentMetadata() *metav1.PartialObjectMetadata {
	o := new(metav1.PartialObjectMetadata)
	o.SetGroupVersionKind(submarinerv1.GroupVersion.WithKind("RouteAgent"))
	return o
}

// Reports reads the reports of the nodes that are Ready from a cache of RouteAgentMetadata and
// Nodes. The last report of a node that is not Ready may be from before its end.
func Reports(ctx context.Context, from client.Reader, now time.Time) ([]Report, error) {
	var agents metav1.PartialObjectMetadataList
	agents.SetGroupVersionKind(submarinerv1.GroupVersion.WithKind("RouteAgentList"))
	if err := from.List(ctx, &agents, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list RouteAgents: %w", err)
	}
	if len(agents.Items) == 0 {
		return nil, nil
	}
	var nodes corev1.NodeList
	if err := from.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list Nodes: %w", err)
	}
	ready := make(map[string]bool, len(nodes.Items))
	for i := range nodes.Items {
		ready[nodes.Items[i].Name] = NodeReady(&nodes.Items[i])
	}
	var out []Report
	for i := range agents.Items {
		if r, ok := ReportOf(&agents.Items[i], now); ok && ready[r.Node] {
			out = append(out, r)
		}
	}
	return out, nil
}

// WatchReports calls set with the clusters that are unreachable by the majority of the nodes'
// reports, first as soon as there is a witness, and then whenever they change, until ctx ends.
// Without a witness the last verdict stands.
func WatchReports(ctx context.Context, objects cache.Cache, set func(unreachable []string), log *slog.Logger) {
	changed := make(chan struct{}, 1)
	poke := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	poke()
	for _, o := range []client.Object{RouteAgentMetadata(), &corev1.Node{}} {
		informer, err := objects.GetInformer(ctx, o)
		if err == nil {
			_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
				AddFunc: func(any) { poke() }, DeleteFunc: func(any) { poke() },
				UpdateFunc: func(was, is any) {
					if reportChanged(was, is) {
						poke()
					}
				},
			})
		}
		if err != nil && ctx.Err() == nil {
			log.Error("no verdicts on other clusters: watch the nodes' reports", "kind", fmt.Sprintf("%T", o), "error", err)
		}
	}
	again := time.NewTicker(recountReports)
	defer again.Stop()
	var last []string // nil: none yet
	for {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		case <-changed:
			select {
			case <-ctx.Done():
				return
			case <-time.After(settleReports):
			}
		}
		reports, err := Reports(ctx, objects, time.Now())
		if err != nil {
			if ctx.Err() == nil {
				log.Error("no verdicts on other clusters", "error", err)
			}
			continue
		}
		if unreachable, known := Majority(reports, last); known && (last == nil || !slices.Equal(unreachable, last)) {
			if last != nil || len(unreachable) > 0 {
				log.Info("clusters that most nodes do not reach", "unreachable", unreachable, "reports", len(reports))
			}
			last = unreachable
			set(unreachable)
		}
	}
}

// reportChanged reports whether an update of a RouteAgent or a Node changes which reports count.
func reportChanged(was, is any) bool {
	switch before := was.(type) {
	case *corev1.Node:
		after, ok := is.(*corev1.Node)
		return !ok || NodeReady(before) != NodeReady(after)
	case *metav1.PartialObjectMetadata:
		after, ok := is.(*metav1.PartialObjectMetadata)
		return !ok || !SameReport(before, after)
	}
	return true
}
