package config

import (
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
)

// ClustersetConfigMap is the ConfigMap in the broker namespace of the hub with what all members
// share.
const ClustersetConfigMap = "pelago-clusterset"

// Keys of that ConfigMap by which members find the hub.
const (
	// KeySetHubID is the UID of the hub's namespace kube-system.
	KeySetHubID = "hub-id"
	// KeySetServer is the URL at which the hub wants to be reached; empty: where it was.
	KeySetServer = "broker-url"
	// KeySetCA are the CAs that the certificates of the hub are of, PEM.
	KeySetCA = "broker-ca"
	// KeySetClusterRanges are the ranges in which clusters without globalnet may have pods, services
	// and hosts, comma-separated; read by the policy pelago-clusters-private, and by every member.
	KeySetClusterRanges = "cluster-ranges"
	// KeySetMemberObjects is how many ServiceContributions, and how many EndpointSlices, the hub takes
	// of each member.
	KeySetMemberObjects = "member-objects"
)

// DefaultMemberObjects is KeySetMemberObjects where the ConfigMap has none.
const DefaultMemberObjects = 5_000

// Every agent of a clusterset keeps at most so many ServiceContributions, EndpointSlices and
// Endpoints of each other member. The hub's own limits (deploy-broker --member-objects) are not
// above them.
const (
	MaxMemberObjects   = 20_000 // of each of the first two kinds
	MaxMemberEndpoints = 64
)

// Announcement is how the hub wants to be reached.
type Announcement struct {
	HubID  string
	Server string // https URL; empty: where it was
	CA     []byte // PEM; empty: as before
}

// ParseAnnouncement reads the data of the ConfigMap pelago-clusterset.
func ParseAnnouncement(data map[string]string) (Announcement, error) {
	a := Announcement{HubID: data[KeySetHubID], Server: data[KeySetServer], CA: []byte(data[KeySetCA])}
	var errs []error
	if a.HubID == "" {
		errs = append(errs, fmt.Errorf("key %s is missing", KeySetHubID))
	}
	if a.Server != "" {
		if u, err := url.Parse(a.Server); err != nil || u.Scheme != "https" || u.Host == "" {
			errs = append(errs, fmt.Errorf("key %s: %q is no https URL", KeySetServer, a.Server))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return a, fmt.Errorf("read ConfigMap %s at the hub (written by `pelago deploy-broker`): %w", ClustersetConfigMap, err)
	}
	return a, nil
}

// MergeCA returns the certificates of PEM bundles, each once, in their order.
func MergeCA(bundles ...[]byte) []byte {
	var out []byte
	seen := map[string]bool{}
	for _, rest := range bundles {
		for {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
			if block.Type == "CERTIFICATE" && !seen[string(block.Bytes)] {
				seen[string(block.Bytes)] = true
				out = append(out, pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes})...)
			}
		}
	}
	return out
}
