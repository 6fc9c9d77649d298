// Package dns is the clusterset's name server: it answers clusterset.local and
// the custom domains from one plain value, the Table.
//
// It owns the rules of the answers (which cluster, which record, which rcode),
// their wire form and the sockets. control/agent/clusterdns builds the Table from API
// objects and cmd/pelago-dns runs both. This package never talks to the
// Kubernetes API, never resolves anything for others and never takes a lock
// while it answers: a query reads one immutable index that Set swaps in whole.
package dns

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	miekg "github.com/miekg/dns"
)

// Mode is the clusterset-wide rule set that `pelago deploy-broker` wrote.
type Mode string

const (
	// ModeSubmariner answers the local cluster's address first, else one remote
	// cluster's in turn, and serves <cluster>.<service>….
	ModeSubmariner Mode = "submariner"
	// ModeMCS follows the Multicluster DNS specification 1.0.0 (KEP-1645): the
	// clusterset IP always, and no records at <cluster>.<service>….
	ModeMCS Mode = "mcs"
)

// ParseMode parses a mode from a flag or an object.
func ParseMode(s string) (Mode, error) {
	switch m := Mode(s); m {
	case ModeSubmariner, ModeMCS:
		return m, nil
	}
	return "", fmt.Errorf("parse mode %q: want %q or %q, as the broker's clusterset has it", s, ModeSubmariner, ModeMCS)
}

// ServiceType is how clients reach a service.
type ServiceType string

const (
	// ClusterSetIP is one address for the service, or one per cluster.
	ClusterSetIP ServiceType = "ClusterSetIP"
	// Headless has one address per pod.
	Headless ServiceType = "Headless"
)

// DefaultTTL is the time a resolver may keep an answer. Five seconds bound how
// long a dead cluster still gets connections.
const DefaultTTL = 5 * time.Second

// Table is the data that the server answers from, as plain values. It must not
// be changed after Handler.Set.
type Table struct {
	Mode Mode
	// LocalCluster is the id of the cluster that this server answers for.
	LocalCluster string
	// Zones are the served domains, such as clusterset.local; see ParseZone.
	// Those below in-addr.arpa and ip6.arpa answer PTR, with names in the first of
	// the others; see ReverseZones.
	Zones []string
	// TTL of every answer in whole seconds; 0 means DefaultTTL.
	TTL      time.Duration
	Services []Service
}

// Service is one imported service. Namespace, name, port names, cluster ids
// and hostnames are RFC 1123 labels.
type Service struct {
	Namespace, Name string
	Type            ServiceType
	// IPs are the clusterset IPs, at most one per family; empty without them.
	IPs []netip.Addr
	// ClientIP: a client is to keep its cluster (sessionAffinity).
	ClientIP bool
	// Weighted: addresses of clusters are given by Cluster.Weight, without ClusterSetIP, and not
	// the local cluster's first.
	Weighted bool
	// Ports are the merged ports of the import.
	Ports    []Port
	Clusters []Cluster
}

// Port of a service. An unnamed port appears in the SRV answer for the service
// itself only.
type Port struct {
	Name     string
	Protocol string // tcp, udp or sctp, in lower case
	Number   uint16
}

// Cluster is what one source cluster contributes to a service. For a headless service, a cluster is
// listed once for each set of ports, with the endpoints that have those ports.
type Cluster struct {
	ID string
	// Weight of the cluster among the ready ones if the service is Weighted.
	Weight int
	// Ports that this cluster serves; those of the service if no entry of the cluster has any.
	Ports []Port
	// Endpoints of a ClusterSetIP service are the cluster's addresses for it
	// (ClusterIP or global ingress IP), of a headless service its pods.
	Endpoints []Endpoint
}

// Endpoint is one address with its state.
type Endpoint struct {
	// Hostname of the pod; empty means its address with dashes. Unused by
	// ClusterSetIP services.
	Hostname string
	IP       netip.Addr
	Ready    bool
}

// ParseZone returns the canonical form of a domain: lower case, fully
// qualified. The root is invalid.
func ParseZone(s string) (string, error) {
	z := strings.ToLower(strings.TrimSpace(s))
	if strings.Trim(z, ".") == "" {
		return "", fmt.Errorf("parse zone %q: empty; name a domain such as clusterset.local", s)
	}
	z = miekg.Fqdn(z)
	for label := range strings.SplitSeq(strings.TrimSuffix(z, "."), ".") {
		if !isLabel(label) {
			return "", fmt.Errorf("parse zone %q: %q is not a DNS label (1–63 of a–z, 0–9, -)", s, label)
		}
	}
	if _, ok := miekg.IsDomainName(z); !ok {
		return "", fmt.Errorf("parse zone %q: longer than a domain name may be (255 octets)", s)
	}
	return z, nil
}

func isLabel(s string) bool {
	if len(s) == 0 || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// hostname is the endpoint's label below its cluster. Without a hostname it is
// the address with dashes, as the MCS conformance suite expects.
func (e Endpoint) hostname() string {
	if e.Hostname != "" {
		return e.Hostname
	}
	return strings.NewReplacer(".", "-", ":", "-").Replace(e.IP.String())
}

// equal reports whether both services give the same answers.
func (s Service) equal(o Service) bool {
	return s.Namespace == o.Namespace && s.Name == o.Name && s.Type == o.Type && s.ClientIP == o.ClientIP && s.Weighted == o.Weighted &&
		slices.Equal(s.IPs, o.IPs) && slices.Equal(s.Ports, o.Ports) &&
		slices.EqualFunc(s.Clusters, o.Clusters, func(a, b Cluster) bool {
			return a.ID == b.ID && a.Weight == b.Weight && slices.Equal(a.Ports, b.Ports) && slices.Equal(a.Endpoints, b.Endpoints)
		})
}
