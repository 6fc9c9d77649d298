package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
)

// Keys of the ConfigMap submariner-globalnet-info.
const (
	keyEnabled  = "globalnetEnabled"
	keyRange    = "globalnetCidrRange"
	keySize     = "globalnetClusterSize"
	keyClusters = "clusterinfo"
	keyVIPRange = "clustersetIPCIDRRange"
)

// Limits of a cluster's share.
const (
	// MinClusterSize is the smallest number of addresses of a GlobalCIDR: the 8 of the cluster's
	// egress and some more.
	MinClusterSize = 16
	// MaxClusterIndex is the largest number of a cluster: the fabric has addresses for so many.
	MaxClusterIndex = config.MaxFabricCluster
	// clusterSetIPBits is the prefix length of a cluster's range of ClusterSetIPs unless join gives
	// another: 4096 addresses.
	clusterSetIPBits = 20
)

// Book is the allocation of each cluster. It is the content of the ConfigMap
// submariner-globalnet-info and changes only by compare-and-swap (Claim, Release).
type Book struct {
	// Globalnet: clusters get ranges.
	Globalnet bool
	// Range is what GlobalCIDRs are taken from: IPv4, masked; not valid without globalnet.
	Range netip.Prefix
	// ClusterSize is the default number of addresses of a GlobalCIDR, a power of two.
	ClusterSize uint64
	// ClusterSetIPs is what the clusters' ranges of ClusterSetIPs are taken from: IPv4, masked; not
	// valid in the book of a release that had none.
	ClusterSetIPs netip.Prefix
	// Clusters is in the order of allocation.
	Clusters []Entry
}

// Entry is the share of one cluster. The first two fields are Submariner's.
type Entry struct {
	ClusterID string `json:"cluster_id"`
	// GlobalCIDR is empty without globalnet.
	GlobalCIDR []netip.Prefix `json:"global_cidr"`
	// ClusterIndex is the cluster's number in the clusterset, 1–MaxClusterIndex.
	ClusterIndex int `json:"cluster_index"`
	// ClusterUID is the UID of the cluster's namespace kube-system.
	ClusterUID string `json:"cluster_uid"`
	// ClusterSetIPCIDR is empty where the book had no range of ClusterSetIPs when the cluster
	// joined.
	ClusterSetIPCIDR []netip.Prefix `json:"clusterset_ip_cidr,omitempty"`
	// CableDriver is the one with which the cluster has joined; empty in the entry of a release
	// that did not record it.
	CableDriver string `json:"cable_driver,omitempty"`
	// WorkloadsOnly: the cluster takes no part in the network, and has no ranges.
	WorkloadsOnly bool `json:"workloads_only,omitempty"`
}

// NewBook makes an empty book. With globalnet, size is rounded up to a power of two and must leave
// room for at least two clusters.
func NewBook(globalnet bool, cidr netip.Prefix, size uint64) (Book, error) {
	if !globalnet {
		return Book{}, nil
	}
	if !cidr.IsValid() || !cidr.Addr().Is4() {
		return Book{}, fmt.Errorf("globalnet range %s is no IPv4 range", cidr)
	}
	if cidr != cidr.Masked() {
		return Book{}, fmt.Errorf("globalnet range %s has host bits: write %s", cidr, cidr.Masked())
	}
	if err := config.CheckRange(cidr); err != nil {
		return Book{}, fmt.Errorf("globalnet %w: choose another range", err)
	}
	rounded, err := roundSize(size)
	if err != nil {
		return Book{}, err
	}
	if half := addresses(cidr) / 2; rounded > half {
		return Book{}, fmt.Errorf("globalnet cluster size %d is more than half of the range %s: at most %d", rounded, cidr, half)
	}
	return Book{Globalnet: true, Range: cidr, ClusterSize: rounded}, nil
}

// WithClusterSetIPs returns the book with the range that ClusterSetIPs are taken from. It has room
// for at least two clusters.
func (b Book) WithClusterSetIPs(cidr netip.Prefix) (Book, error) {
	switch {
	case !cidr.IsValid() || !cidr.Addr().Is4():
		return Book{}, fmt.Errorf("range %s of ClusterSetIPs is no IPv4 range", cidr)
	case cidr != cidr.Masked():
		return Book{}, fmt.Errorf("range %s of ClusterSetIPs has host bits: write %s", cidr, cidr.Masked())
	case cidr.Bits() >= clusterSetIPBits:
		return Book{}, fmt.Errorf("range %s of ClusterSetIPs has no room for two clusters, each of which gets a /%d: choose a larger one", cidr, clusterSetIPBits)
	case b.Globalnet && cidr.Overlaps(b.Range):
		return Book{}, fmt.Errorf("range %s of ClusterSetIPs overlaps the globalnet range %s: choose another with spec.clustersetIPCIDRRange", cidr, b.Range)
	}
	if err := config.CheckRange(cidr); err != nil {
		return Book{}, fmt.Errorf("range of ClusterSetIPs: %w: choose another with spec.clustersetIPCIDRRange", err)
	}
	b.ClusterSetIPs = cidr
	return b, nil
}

// roundSize rounds a number of addresses up to a power of two.
func roundSize(size uint64) (uint64, error) {
	if size < MinClusterSize || size > 1<<31 {
		return 0, fmt.Errorf("globalnet cluster size %d is not between %d and %d addresses", size, MinClusterSize, 1<<31)
	}
	return 1 << bits.Len64(size-1), nil
}

// addresses is the number of addresses of an IPv4 range.
func addresses(p netip.Prefix) uint64 { return 1 << (32 - p.Bits()) }

// ParseBook reads the ConfigMap's data.
func ParseBook(data map[string]string) (Book, error) {
	var b Book
	var errs []error
	fail := func(key string, err error) {
		errs = append(errs, fmt.Errorf("key %s: %w", key, err))
	}
	enabled, err := strconv.ParseBool(data[keyEnabled])
	if err != nil {
		fail(keyEnabled, fmt.Errorf("%q is neither true nor false", data[keyEnabled]))
	}
	if enabled {
		cidr, errRange := parseRange(data[keyRange])
		size, errSize := strconv.ParseUint(data[keySize], 10, 64)
		if err := errors.Join(errRange, errSize); err != nil {
			fail(keyRange+", "+keySize, err)
		} else if b, err = NewBook(true, cidr, size); err != nil {
			fail(keyRange+", "+keySize, err)
		}
	}
	if text := data[keyVIPRange]; text != "" {
		cidr, err := parseRange(text)
		if err == nil {
			b, err = b.WithClusterSetIPs(cidr)
		}
		if err != nil {
			fail(keyVIPRange, err)
		}
	}
	if text := data[keyClusters]; text != "" {
		if err := json.Unmarshal([]byte(text), &b.Clusters); err != nil {
			fail(keyClusters, err)
		}
	}
	if len(errs) > 0 {
		return Book{}, fmt.Errorf("read ConfigMap %s: %w", AllocationConfigMap, errors.Join(errs...))
	}
	return b, nil
}

// parseRange reads "120.0.0.0/8", in quotes or not, or a JSON list of one.
func parseRange(text string) (netip.Prefix, error) {
	return netip.ParsePrefix(strings.Trim(strings.TrimSpace(text), `[]" `))
}

// Data is the inverse of ParseBook.
func (b Book) Data() (map[string]string, error) {
	clusters := b.Clusters
	if clusters == nil {
		clusters = []Entry{}
	}
	text, err := json.Marshal(clusters)
	if err != nil {
		return nil, fmt.Errorf("write ConfigMap %s: %w", AllocationConfigMap, err)
	}
	data := map[string]string{keyEnabled: strconv.FormatBool(b.Globalnet), keyClusters: string(text)}
	if b.Globalnet {
		data[keyRange] = b.Range.String()
		data[keySize] = strconv.FormatUint(b.ClusterSize, 10)
	}
	if b.ClusterSetIPs.IsValid() {
		data[keyVIPRange] = b.ClusterSetIPs.String()
	}
	return data, nil
}

// Claim enters the cluster in the book at the hub and returns its share. Of two clusters that claim
// at the same time each sees the other's entry (compare-and-swap by resourceVersion).
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

// checkRanges refuses a cluster that has addresses of another's pods or services: without globalnet
// they are routed as they are. Only the other cluster can check whether these ranges contain
// addresses of its nodes (control/agent/peering).
func checkRanges(ctx context.Context, hub client.Client, namespace string, r Request) error {
	list := &submarinerv1.ClusterList{}
	if err := hub.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return fmt.Errorf("list the Clusters at the hub: %w", err)
	}
	own := r.own()
	for i := range list.Items {
		other := &list.Items[i]
		if other.Name == r.ClusterID {
			continue
		}
		ranges, err := rangesOf(other)
		if err != nil {
			return err
		}
		for _, a := range neededBy(other) {
			local := r.local()
			if i := slices.IndexFunc(local, func(r namedRange) bool { return r.Contains(a) }); i >= 0 {
				return local[i].refuse("this cluster's range %s contains %s, the address of the API server, a name server or a node of cluster %q: "+
					"give other ranges, or use a clusterset with globalnet (`pelago deploy-broker --globalnet`, before clusters join)", local[i], a, other.Name)
			}
		}
		for _, taken := range ranges {
			if i := slices.IndexFunc(own, func(r namedRange) bool { return taken.Overlaps(r.Prefix) }); i >= 0 {
				return own[i].refuse("this cluster's range %s overlaps %s of cluster %q: the clusterset needs globalnet for that "+
					"(`pelago deploy-broker --globalnet`, before clusters join)", own[i], taken, other.Name)
			}
		}
	}
	return nil
}

// neededBy are the addresses that a Cluster at the hub says it needs.
func neededBy(c *submarinerv1.Cluster) (out []netip.Addr) {
	for _, text := range strings.Split(c.Annotations[pelagov1alpha1.AnnotationNeeded], ",") {
		if a, err := netip.ParseAddr(text); err == nil {
			out = append(out, a)
		}
	}
	return out
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

// Ranges are what the clusters' GlobalCIDRs and ranges of ClusterSetIPs are taken from; not valid
// if the book has none.
func Ranges(ctx context.Context, hub client.Client, namespace string) (global, clustersetIPs netip.Prefix, err error) {
	_, b, err := readBook(ctx, hub, namespace)
	return b.Range, b.ClusterSetIPs, err
}

// Registered reports whether a cluster has an entry in the book of the hub, which goes last when a
// cluster is removed.
func Registered(ctx context.Context, hub client.Client, clusterID string) (bool, error) {
	_, book, _, err := Former(ctx, hub)
	if err != nil {
		return false, fmt.Errorf("read the clusters of the hub: %w", err)
	}
	return slices.ContainsFunc(book.Clusters, func(e Entry) bool { return e.ClusterID == clusterID }), nil
}

// Release removes the cluster from the book at the hub.
func Release(ctx context.Context, hub client.Client, namespace, clusterID string) error {
	return changeBook(ctx, hub, namespace, func(b Book) (Book, error) { return b.Release(clusterID), nil })
}

// changeBook applies a change to the newest book, and retries on conflicts with other writers.
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
		if reflect.DeepEqual(want.Clusters, have.Clusters) {
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
