package view

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/scheduler"
)

// explainedNear are the round-trip times by which a template is placed (annotation pelago.io/near),
// as clusters report them now; the hub uses a change once it has lasted.
type explainedNear struct {
	To string `json:"to"`
	// Clusters are that cluster, or those that export the service.
	Clusters []string `json:"clusters,omitempty"`
	MaxRTT   string   `json:"maxRTT,omitempty"`
	Prefer   bool     `json:"prefer"`
	// RTT of each cluster of the hub to the nearest of them; "" is not measured.
	RTT map[string]string `json:"rtt"`
}

// readNear is nil if round-trip times do not bear on the binding.
func readNear(ctx context.Context, c client.Client, clusters []clusterv1alpha1.Cluster, b binding.Binding) (*explainedNear, error) {
	if !b.Exists() {
		return nil, nil
	}
	n, err := policyv1alpha1.NearOf(b.GetAnnotations())
	if n == nil || err != nil {
		return nil, err
	}
	var list pelagov1alpha1.ServiceContributionList
	if n.Service != "" {
		if err := c.List(ctx, &list, client.InNamespace(manifests.BrokerNamespace)); err != nil && !meta.IsNoMatchError(err) {
			return nil, fmt.Errorf("list the exports of service %s: %w", n.Service, err)
		}
	}
	return explainNear(n, clusters, list.Items), nil
}

func explainNear(n *policyv1alpha1.Near, clusters []clusterv1alpha1.Cluster, exports []pelagov1alpha1.ServiceContribution) *explainedNear {
	out := &explainedNear{To: n.String(), Prefer: n.Prefers(), RTT: map[string]string{}}
	if n.MaxRTT != nil {
		out.MaxRTT = n.MaxRTT.Duration.String()
	}
	if n.Cluster != "" {
		out.Clusters = []string{n.Cluster}
	}
	for i := range exports {
		if s := exports[i].Spec; s.Namespace+"/"+s.Service == n.Service {
			out.Clusters = append(out.Clusters, s.Cluster)
		}
	}
	slices.Sort(out.Clusters)
	rtts := scheduler.ReportedRTTs(clusters).To(n, out.Clusters).RTT
	for i := range clusters {
		name := clusters[i].Name
		out.RTT[name] = ""
		if rtt, ok := rtts[name]; ok {
			out.RTT[name] = rtt.String()
		}
	}
	return out
}

func (n *explainedNear) print(w io.Writer) {
	fmt.Fprintf(w, "Near:      %s", n.To)
	if strings.HasPrefix(n.To, "service") {
		by := strings.Join(n.Clusters, ", ")
		if by == "" {
			by = "no cluster"
		}
		fmt.Fprintf(w, ", exported by %s", by)
	}
	if n.MaxRTT != "" {
		fmt.Fprintf(w, ", at most %s", n.MaxRTT)
	}
	if n.Prefer {
		fmt.Fprint(w, ", the nearest first")
	}
	fmt.Fprintln(w)
	rtt := func(name string) time.Duration {
		if d, err := time.ParseDuration(n.RTT[name]); err == nil {
			return d
		}
		return math.MaxInt64 // not measured
	}
	for _, name := range slices.SortedFunc(maps.Keys(n.RTT), func(a, b string) int { return cmp.Or(cmp.Compare(rtt(a), rtt(b)), cmp.Compare(a, b)) }) {
		fmt.Fprintf(w, "           %s: %s\n", name, cmp.Or(n.RTT[name], "not measured"))
	}
}
