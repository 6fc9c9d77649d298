package v1alpha1

// The API that pelago-hub serves at the hub's API server (aggregated): requests to a member, at
// /apis/proxy.pelago.io/v1alpha1/clusters/<name>/proxy/<path>. It has no objects.
const (
	// ProxyGroup and ProxyVersion are those of the APIService.
	ProxyGroup   = "proxy.pelago.io"
	ProxyVersion = "v1alpha1"

	// ProxyUpgrade is the protocol that the agent of a pull member switches to at the subresource
	// attach: yamux, with streams that the hub opens, each for HTTP/1.1 requests to the member's
	// API server.
	ProxyUpgrade = "pelago-tunnel"
	// ProxyReplicaHeader names the replica of pelago-hub that a tunnel leads to, in its answer.
	ProxyReplicaHeader = "Pelago-Replica"
	// ProxyExceptParameter lists, separated by commas, the replicas that an agent has tunnels to.
	// They refuse a further one (409).
	ProxyExceptParameter = "except"
)

// ProxyPath is the path of a subresource of a cluster: proxy or attach.
func ProxyPath(cluster, subresource string) string {
	return "/apis/" + ProxyGroup + "/" + ProxyVersion + "/clusters/" + cluster + "/" + subresource
}
