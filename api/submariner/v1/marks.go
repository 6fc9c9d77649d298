package v1

// What users put on Nodes.
const (
	// LabelGateway with the value "true" makes a node a gateway.
	LabelGateway = "submariner.io/gateway"
	// AnnotationPublicIP is the address at which other clusters reach a gateway behind NAT: sources
	// such as `ipv4:a.b.c.d`, `dns:name`, `lb:service`, `api:host/path`, separated by commas.
	// Without it the ExternalIP of the Node counts.
	AnnotationPublicIP = "gateway.submariner.io/public-ip"
)

// Annotations of Gateways and RouteAgents.
const (
	// AnnotationUpdated is when the node daemon wrote the object last, in seconds since 1970,
	// decimal.
	AnnotationUpdated = "update-timestamp"
	// AnnotationSilentGateways of a RouteAgent lists the gateways of the own cluster that do not
	// answer the node, with commas between.
	AnnotationSilentGateways = "pelago.io/silent-gateways"
	// AnnotationUnreachableClusters of a RouteAgent lists the clusters that no gateway reaches, as
	// the node observes it, with commas between; empty: none. A RouteAgent without it is of a node
	// that no gateway answers, or that does not know yet: it is no witness.
	AnnotationUnreachableClusters = "pelago.io/unreachable-clusters"
	// AnnotationPodsLeftOut of a RouteAgent is the number of pods of the node that are not
	// connected, or not as configured, because of their device; decimal. StatusFailure names them.
	AnnotationPodsLeftOut = "pelago.io/pods-left-out"
)

// Labels and annotations of the GlobalIngressIPs of headless services.
const (
	// LabelServiceRef is the name of the Service.
	LabelServiceRef = "submariner.io/serviceRef"
	// AnnotationPodIP and AnnotationEndpointIP hold the address behind the global one.
	AnnotationPodIP      = "submariner.io/headless-svc-pod-ip"
	AnnotationEndpointIP = "submariner.io/headless-svc-endpoints-ip"
)

// Labels of ServiceImports, contributions and EndpointSlices that speak of a service of the
// clusterset, next to those of the MCS API.
const (
	// LabelSourceNamespace is the namespace of the exported Service.
	LabelSourceNamespace = "lighthouse.submariner.io/sourceNamespace"
	// LabelIsHeadless is "true" or "false" on imported EndpointSlices.
	LabelIsHeadless = "lighthouse.submariner.io/is-headless"
	// ImportedSliceManager is the value of endpointslice.kubernetes.io/managed-by on imported
	// EndpointSlices.
	ImportedSliceManager = "lighthouse-agent.submariner.io"
)

// Annotations by which users decide on the ClusterSetIP of a service.
const (
	// AnnotationUseClusterSetIP of a ServiceExport, "true" or "false", overrides whether the
	// service gets a ClusterSetIP.
	AnnotationUseClusterSetIP = "lighthouse.submariner.io/use-clusterset-ip"
	// AnnotationWeightPrefix followed by the id of a cluster, on a ServiceImport, is the weight of
	// that cluster among those that export the service, decimal.
	AnnotationWeightPrefix = "lighthouse-lb-weight.submariner.io/"
)

// Annotations of a ClusterGlobalEgressIP or GlobalEgressIP, with the values below: how the UDP of
// its pods is translated (RFC 4787). Other protocols always depend on the endpoint.
const (
	// AnnotationNATMapping: with NATEndpointIndependent a pod's address and port show one egress IP
	// and port to all other clusters.
	AnnotationNATMapping = "pelago.io/nat-mapping"
	// AnnotationNATFiltering: with NATEndpointIndependent, which needs such a mapping, any address
	// of an accepted cluster reaches the pod by that egress IP and port, not only those that the
	// pod has sent to.
	AnnotationNATFiltering = "pelago.io/nat-filtering"

	NATEndpointIndependent = "EndpointIndependent"
	NATEndpointDependent   = "AddressAndPortDependent" // the default
)

// ConditionSynced of a ServiceExport is what its condition Ready was called before the MCS API had
// that one; both have the same status.
const ConditionSynced = "Synced"
