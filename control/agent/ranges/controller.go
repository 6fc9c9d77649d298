package ranges

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/kube"
)

const (
	// interval is the mean time between two comparisons: ranges are added by administrators, and
	// the list of a large cluster's CiliumNodes is not small.
	interval = 5 * time.Minute
	// retry follows a comparison before the first copy of the hub's Cluster.
	retry = 10 * time.Second
	// reasonOutgrown is that of Events on the Cluster.
	reasonOutgrown = "RangesOutgrown"
)

// Options of Setup.
type Options struct {
	Registered
	// Namespace is that of the Cluster objects.
	Namespace string
	// Interval is the mean time between two comparisons; 0: five minutes.
	Interval time.Duration
}

// Setup adds the comparison to the manager and returns its metric.
func Setup(mgr ctrl.Manager, o Options) ([]prometheus.Collector, error) {
	c := newComparer(o, mgr.GetClient(), mgr.GetAPIReader(), kube.EventRecorder(mgr, "pelago-agent"))
	if err := mgr.Add(c); err != nil {
		return nil, fmt.Errorf("compare the registered ranges: %w", err)
	}
	return []prometheus.Collector{c.outgrown}, nil
}

// comparer compares at intervals. Only the leader does.
type comparer struct {
	Options
	client   client.Client
	live     client.Reader // without a cache: the kinds may not be served, and are read seldom
	events   record.EventRecorder
	outgrown prometheus.Gauge
}

func newComparer(o Options, c client.Client, live client.Reader, events record.EventRecorder) *comparer {
	if o.Interval == 0 {
		o.Interval = interval
	}
	return &comparer{Options: o, client: c, live: live, events: events, outgrown: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "pelago_ranges_outgrown",
		Help: "1 if pods or services get addresses outside of the ranges that the cluster is registered with.",
	})}
}

// Start runs until ctx ends.
func (c *comparer) Start(ctx context.Context) error {
	for {
		wait := c.Interval
		switch err := c.compare(ctx); {
		case apierrors.IsNotFound(err): // the hub's Cluster has not been copied yet
			wait = min(wait, retry)
		case err != nil && ctx.Err() == nil:
			log.FromContext(ctx).Error(err, "the registered ranges cannot be compared")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait/2 + rand.N(wait)):
		}
	}
}

// compare writes the condition of the own Cluster object. Its error is NotFound until the hub's has
// been copied.
func (c *comparer) compare(ctx context.Context) error {
	ranges, err := c.read(ctx)
	if err != nil {
		return err
	}
	message := Outgrown(c.Registered, ranges)
	condition := metav1.Condition{Type: submarinerv1.ClusterRangesRegistered, Status: metav1.ConditionTrue, Reason: submarinerv1.ReasonRangesRegistered}
	c.outgrown.Set(0)
	if message != "" {
		c.outgrown.Set(1)
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, submarinerv1.ReasonRangesOutgrown, message
	}
	own := &submarinerv1.Cluster{}
	if err := c.client.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: c.ClusterID}, own); err != nil {
		return fmt.Errorf("read the own Cluster: %w", err)
	}
	own = own.DeepCopy()
	if !meta.SetStatusCondition(&own.Status.Conditions, condition) {
		return nil
	}
	if err := c.client.Status().Update(ctx, own); err != nil {
		return fmt.Errorf("write the status of Cluster %s: %w", client.ObjectKeyFromObject(own), err)
	}
	if message != "" {
		c.events.Event(own, corev1.EventTypeWarning, reasonOutgrown, message)
	}
	return nil
}

// read returns what gives addresses to pods and services.
func (c *comparer) read(ctx context.Context) (out []Range, err error) {
	add := func(object string, services bool, texts ...string) {
		for _, text := range texts {
			if p, err := netip.ParsePrefix(text); err == nil { // their own controllers report others
				out = append(out, Range{object, p.Masked(), services})
			}
		}
	}
	services := &networkingv1.ServiceCIDRList{} // since Kubernetes 1.33
	if err := optional(c.live.List(ctx, services)); err != nil {
		return nil, fmt.Errorf("list the ServiceCIDRs: %w", err)
	}
	for _, s := range services.Items {
		if s.DeletionTimestamp == nil {
			add("ServiceCIDR "+s.Name, true, s.Spec.CIDRs...)
		}
	}
	pools, err := c.list(ctx, schema.GroupVersionKind{Group: "crd.projectcalico.org", Version: "v1", Kind: "IPPoolList"})
	if err != nil {
		return nil, err
	}
	for i := range pools {
		add("IPPool "+pools[i].GetName(), false, OfPool(&pools[i])...)
	}
	nodes, err := c.list(ctx, schema.GroupVersionKind{Group: "cilium.io", Version: "v2", Kind: "CiliumNodeList"})
	if err != nil {
		return nil, err
	}
	for i := range nodes {
		add("CiliumNode "+nodes[i].GetName(), false, OfCiliumNode(&nodes[i])...)
	}
	return out, nil
}

// OfPool is the range that an IPPool of Calico gives pods addresses of; none if it gives them none.
func OfPool(p *unstructured.Unstructured) []string {
	text, ok, _ := unstructured.NestedString(p.Object, "spec", "cidr")              // absent: no range
	disabled, _, _ := unstructured.NestedBool(p.Object, "spec", "disabled")         // absent: false
	uses, set, _ := unstructured.NestedStringSlice(p.Object, "spec", "allowedUses") // absent: all
	if !ok || disabled || set && !slices.Contains(uses, "Workload") {
		return nil
	}
	return []string{text}
}

// OfCiliumNode are the ranges that Cilium has given a node, of its IPAM modes with ranges.
func OfCiliumNode(n *unstructured.Unstructured) []string {
	out, _, _ := unstructured.NestedStringSlice(n.Object, "spec", "ipam", "podCIDRs")       // absent: another mode
	pools, _, _ := unstructured.NestedSlice(n.Object, "spec", "ipam", "pools", "allocated") // absent: another mode
	for _, p := range pools {
		if pool, ok := p.(map[string]any); ok {
			texts, _, _ := unstructured.NestedStringSlice(pool, "cidrs") // absent: an empty pool
			out = append(out, texts...)
		}
	}
	return out
}

// list reads the objects of a kind that the cluster may not have.
func (c *comparer) list(ctx context.Context, kind schema.GroupVersionKind) ([]unstructured.Unstructured, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind)
	if err := optional(c.live.List(ctx, list)); err != nil {
		return nil, fmt.Errorf("list the %ss: %w", kind.Kind[:len(kind.Kind)-len("List")], err)
	}
	return list.Items, nil
}

func optional(err error) error {
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
