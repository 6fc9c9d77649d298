package peering

import (
	"maps"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/hubclient"
	"github.com/pelago-net/pelago/control/kube"
)

// clusterCopies are the member's copies of the Clusters that take part in the network. An
// annotation keeps the time at which each of them joined, because a copy has a creation timestamp
// of its own; that of the own cluster has the allowed ranges as well, also while the hub is away.
func (o Options) clusterCopies(clusters []submarinerv1.Cluster, allowed string) []*submarinerv1.Cluster {
	var out []*submarinerv1.Cluster
	for i := range clusters {
		if !hubclient.InNetwork(&clusters[i]) {
			continue
		}
		c := &submarinerv1.Cluster{ObjectMeta: o.copyMeta(&clusters[i]), Spec: clusters[i].Spec}
		if delete(c.Annotations, v1alpha1.AnnotationClusterRanges); clusters[i].Spec.ClusterID == o.ClusterID {
			c.Annotations[v1alpha1.AnnotationClusterRanges] = allowed
		}
		c.Annotations[v1alpha1.AnnotationJoinedAt] = clusters[i].CreationTimestamp.UTC().Format(time.RFC3339)
		out = append(out, c)
	}
	return out
}

// copyCluster replaces the labels as well: exports select clusters by them, so a label that was
// removed at the hub must not stay. Nor must the annotation that the administrator removes.
func copyCluster(dst, src *submarinerv1.Cluster) {
	dst.Spec, dst.Labels = src.Spec, src.Labels
	if !unapproved(src) {
		delete(dst.Annotations, v1alpha1.AnnotationUnapproved)
	}
}

// unapproved reports whether no administrator of the hub has accepted the cluster.
func unapproved(c *submarinerv1.Cluster) bool {
	return c.Annotations[v1alpha1.AnnotationUnapproved] == "true"
}

// endpointCopies are the hub's Endpoints as they are kept in the member.
func (o Options) endpointCopies(endpoints []submarinerv1.Endpoint) []*submarinerv1.Endpoint {
	var out []*submarinerv1.Endpoint
	for i := range endpoints {
		out = append(out, &submarinerv1.Endpoint{ObjectMeta: o.copyMeta(&endpoints[i]), Spec: endpoints[i].Spec})
	}
	return out
}

// copyMeta keeps name, labels and our own annotations.
func (o Options) copyMeta(obj client.Object) metav1.ObjectMeta {
	m := metav1.ObjectMeta{
		Namespace: o.SystemNamespace, Name: obj.GetName(),
		Labels: maps.Clone(obj.GetLabels()), Annotations: maps.Clone(obj.GetAnnotations()),
	}
	maps.DeleteFunc(m.Annotations, func(key, _ string) bool { return !strings.HasPrefix(key, v1alpha1.GroupVersion.Group+"/") })
	holder := &submarinerv1.Cluster{ObjectMeta: m}
	kube.Owner{HubID: o.HubID}.Mark(holder)
	return holder.ObjectMeta
}
