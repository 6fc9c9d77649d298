package broker

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

// contention is how long and how often a writer of the book tries: with 255 clusters that join at once everybody gets
// through.
var contention = wait.Backoff{Duration: 10 * time.Millisecond, Factor: 1.5, Jitter: 1, Steps: 60, Cap: time.Second}

// Claim enters the cluster in the book at the hub and returns its share. Of two clusters that claim at the same time
// each sees the other's entry (compare-and-swap by resourceVersion).
func Claim(ctx context.Context, hub client.Client, namespace string, r Request) (Entry, error) {
	var entry Entry
	err := changeBook(ctx, hub, namespace, func(b Book) (next Book, err error) {
		if !b.Globalnet {
			if err := checkRanges(ctx, hub, namespace, r); err != nil {
				return b, err
			}
		}
		entry, next, err = b.Allocate(r)
		return next, err
	})
	return entry, err
}

// checkRanges refuses a cluster that has addresses of another's pods or services: without globalnet they are routed as
// they are. Only the other cluster can check whether these ranges contain addresses of its nodes (control/agent/peering).
func checkRanges(ctx context.Context, hub client.Client, namespace string, r Request) error {
	list := &submarinerv1.ClusterList{}
	if err := hub.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return fmt.Errorf("list the Clusters at the hub: %w", err)
	}
	own := slices.Concat(r.Local, single(r.Nodes))
	for i := range list.Items {
		other := &list.Items[i]
		if other.Name == r.ClusterID {
			continue
		}
		ranges, err := rangesOf(other)
		if err != nil {
			return err
		}
		for _, taken := range ranges {
			if i := slices.IndexFunc(own, taken.Overlaps); i >= 0 {
				return fmt.Errorf("this cluster's range %s overlaps %s of cluster %q: the clusterset needs globalnet for that "+
					"(`pelago deploy-broker --globalnet`, before clusters join)", own[i], taken, other.Name)
			}
		}
	}
	return nil
}

// rangesOf are all ranges that a Cluster at the hub has.
func rangesOf(c *submarinerv1.Cluster) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range slices.Concat(c.Spec.GlobalCIDR, c.Spec.ClusterCIDR, c.Spec.ServiceCIDR) {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("read the ranges of Cluster %s at the hub: %w", c.Name, err)
		}
		out = append(out, p)
	}
	return out, nil
}

// Release removes the cluster from the book at the hub.
func Release(ctx context.Context, hub client.Client, namespace, clusterID string) error {
	return changeBook(ctx, hub, namespace, func(b Book) (Book, error) { return b.Release(clusterID), nil })
}

// changeBook applies a change to the newest book, and again whenever somebody else was faster.
func changeBook(ctx context.Context, hub client.Client, namespace string, change func(Book) (Book, error)) error {
	return retry.OnError(contention, apierrors.IsConflict, func() error {
		cm, have, err := readBook(ctx, hub, namespace)
		if err != nil {
			return err
		}
		want, err := change(have)
		if err != nil {
			return err
		}
		if len(want.Clusters) == len(have.Clusters) {
			return nil
		}
		data, err := want.Data()
		if err != nil {
			return err
		}
		cm.Data[keyClusters] = data[keyClusters]
		return wrap(hub.Update(ctx, cm), "update ConfigMap %s at the hub", AllocationConfigMap)
	})
}

func readBook(ctx context.Context, hub client.Client, namespace string) (*corev1.ConfigMap, Book, error) {
	cm := &corev1.ConfigMap{}
	if err := hub.Get(ctx, client.ObjectKey{Namespace: namespace, Name: AllocationConfigMap}, cm); err != nil {
		return nil, Book{}, fmt.Errorf("get ConfigMap %s/%s at the hub: %w", namespace, AllocationConfigMap, err)
	}
	b, err := ParseBook(cm.Data)
	return cm, b, err
}
