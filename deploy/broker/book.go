package broker

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"strconv"
	"strings"

	"github.com/pelago-net/pelago/control/config"
)

// Keys of the ConfigMap submariner-globalnet-info.
const (
	keyEnabled  = "globalnetEnabled"
	keyRange    = "globalnetCidrRange"
	keySize     = "globalnetClusterSize"
	keyClusters = "clusterinfo"
)

// Limits of a cluster's share.
const (
	// MinClusterSize is the smallest number of addresses of a GlobalCIDR: the 8 of the cluster's egress and some more.
	MinClusterSize = 16
	// MaxClusterIndex is the largest number of a cluster: the fabric has addresses for so many.
	MaxClusterIndex = config.MaxFabricCluster
)

// Book says what was given to which cluster. It is the content of the ConfigMap submariner-globalnet-info and changes
// only by compare-and-swap (Claim, Release).
type Book struct {
	// Globalnet says whether clusters get ranges at all.
	Globalnet bool
	// Range is what GlobalCIDRs are taken from: IPv4, masked; not valid without globalnet.
	Range netip.Prefix
	// ClusterSize is the default number of addresses of a GlobalCIDR, a power of two.
	ClusterSize uint64
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
}

// NewBook makes an empty book. With globalnet, size is rounded up to a power of two and must leave room for at least
// two clusters.
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
	return data, nil
}
