package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
)

// counted are the kinds that members write in the broker namespace.
var counted = []schema.GroupVersionResource{
	submarinerv1.GroupVersion.WithResource("endpoints"),
	pelagov1alpha1.GroupVersion.WithResource("servicecontributions"),
	discoveryv1.SchemeGroupVersion.WithResource("endpointslices"),
}

// byMember indexes objects by the member that has written them.
const byMember = "member"

// recount is the least time between two counts: a member can exceed its limit by what it writes
// meanwhile.
const recount = 250 * time.Millisecond

// counter counts the objects of each member, and names the members at their limit, for the policy
// pelago-member-count. All members share a namespace, so that a ResourceQuota would bound them
// together, and a policy cannot count.
type counter struct {
	client  client.Client
	live    client.Reader
	objects metadata.Interface
	every   time.Duration // between reads of the ConfigMap

	number *prometheus.GaugeVec
	limit  *prometheus.GaugeVec
}

// SetupObjects adds the counter to the manager; it begins once the hub has a broker.
func SetupObjects(mgr ctrl.Manager, registry prometheus.Registerer) error {
	objects, err := metadata.NewForConfigAndClient(metadata.ConfigFor(mgr.GetConfig()), mgr.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("set up the count of members' objects: %w", err)
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	c := &counter{client: mgr.GetClient(), live: mgr.GetAPIReader(), objects: objects, every: 10 * time.Second,
		number: gauge("pelago_hub_member_objects", "Objects that a member has in the broker namespace.", "member_cluster", "resource"),
		limit:  gauge("pelago_hub_member_objects_limit", "How many a member may have.", "resource"),
	}
	for _, m := range []prometheus.Collector{c.number, c.limit} {
		if err := registry.Register(m); err != nil {
			return fmt.Errorf("register the metrics of members' objects: %w", err)
		}
	}
	if err := mgr.Add(manager.RunnableFunc(c.run)); err != nil {
		return fmt.Errorf("set up the count of members' objects: %w", err)
	}
	return nil
}

// run counts until ctx ends. An error is logged and tried again.
func (c *counter) run(ctx context.Context) error {
	changed := make(chan struct{}, 1)
	signal := func(any) {
		select {
		case changed <- struct{}{}:
		default: // the next count has it
		}
	}
	tick := time.NewTicker(c.every)
	defer tick.Stop()
	var of map[string]toolscache.Indexer // by resource; nil: no broker was found yet
	for {
		set := &corev1.ConfigMap{}
		err := c.live.Get(ctx, client.ObjectKey{Namespace: brokerNamespace, Name: config.ClustersetConfigMap}, set)
		if err == nil && of == nil {
			of, err = c.watch(ctx, signal)
		}
		if err == nil {
			err = c.write(ctx, set, of)
		}
		if client.IgnoreNotFound(err) != nil && ctx.Err() == nil {
			slog.Warn("the objects of members are not counted", "error", err)
		}
		pause := time.NewTimer(recount)
		select {
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-tick.C:
		}
	}
}

// watch starts the caches, which hold names and labels alone.
func (c *counter) watch(ctx context.Context, signal func(any)) (map[string]toolscache.Indexer, error) {
	factory := metadatainformer.NewFilteredSharedInformerFactory(c.objects, 0, brokerNamespace, func(o *metav1.ListOptions) {
		o.LabelSelector = submarinerv1.LabelClusterID
	})
	of := map[string]toolscache.Indexer{}
	for _, gvr := range counted {
		i := factory.ForResource(gvr).Informer()
		err := i.SetTransform(func(obj any) (any, error) {
			if o, ok := obj.(*metav1.PartialObjectMetadata); ok {
				o.ManagedFields, o.Annotations = nil, nil
			}
			return obj, nil
		})
		if err == nil {
			err = i.AddIndexers(toolscache.Indexers{byMember: func(obj any) ([]string, error) {
				return []string{obj.(client.Object).GetLabels()[submarinerv1.LabelClusterID]}, nil
			}})
		}
		if err == nil {
			_, err = i.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: signal, DeleteFunc: signal})
		}
		if err != nil {
			return nil, fmt.Errorf("count %s: %w", gvr.Resource, err)
		}
		of[gvr.Resource] = i.GetIndexer()
	}
	factory.Start(ctx.Done())
	for gvr, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return nil, fmt.Errorf("count %s: %w", gvr.Resource, ctx.Err())
		}
	}
	return of, nil
}

// write sets the metrics and the annotation of the ConfigMap.
func (c *counter) write(ctx context.Context, set *corev1.ConfigMap, of map[string]toolscache.Indexer) error {
	c.number.Reset()
	numbers := map[string]map[string]int{}
	for resource, index := range of {
		numbers[resource] = map[string]int{}
		for _, id := range index.ListIndexFuncValues(byMember) {
			keys, err := index.IndexKeys(byMember, id)
			if err != nil {
				return fmt.Errorf("count %s of cluster %s: %w", resource, id, err)
			}
			numbers[resource][id] = len(keys)
			c.number.WithLabelValues(id, resource).Set(float64(len(keys)))
		}
		c.limit.WithLabelValues(resource).Set(float64(limitOf(resource, set.Data)))
	}
	if want := atLimit(numbers, set.Data); set.Annotations[pelagov1alpha1.AnnotationAtLimit] != want {
		next := set.DeepCopy()
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, pelagov1alpha1.AnnotationAtLimit, want)
		if err := c.client.Patch(ctx, next, client.MergeFrom(set)); err != nil {
			return fmt.Errorf("write which members are at their limit into ConfigMap %s: %w", set.Name, err)
		}
		slog.Info("wrote which members have as many objects as they may have", "members", want)
	}
	return nil
}

// limitOf is how many objects of a resource a member may have; data is that of the ConfigMap
// pelago-clusterset, which deploy-broker has checked.
func limitOf(resource string, data map[string]string) int {
	if resource == "endpoints" {
		return config.MaxMemberEndpoints
	}
	if n, err := strconv.Atoi(data[config.KeySetMemberObjects]); err == nil && n > 0 {
		return n
	}
	return config.DefaultMemberObjects
}

// atLimit is the annotation pelago.io/members-at-limit. numbers: resource → member → objects.
func atLimit(numbers map[string]map[string]int, data map[string]string) string {
	var out []string
	for resource, members := range numbers {
		for id, n := range members {
			if n >= limitOf(resource, data) {
				out = append(out, id+"/"+resource)
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}
