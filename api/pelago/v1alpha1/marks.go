package v1alpha1

import corev1 "k8s.io/api/core/v1"

// Labels and annotations of the agent's objects in a member, for kinds that others create objects
// of as well. Objects without them are neither changed nor deleted.
const (
	// LabelManagedBy has the value ManagedBy.
	LabelManagedBy = "app.kubernetes.io/managed-by"
	ManagedBy      = "pelago"
	// AnnotationHubID is the id of the clusterset: the UID of the hub's namespace kube-system. A
	// user sets it on that namespace itself to declare that this hub replaces the hub with that id.
	AnnotationHubID = "pelago.io/hub-id"
)

// AnnotationDrained with the value "true" takes a gateway node out of service, as a cordon does.
// Written by `pelago gateway drain`.
const AnnotationDrained = "pelago.io/gateway-drained"

// AnnotationGatewayKept with the value "true" marks a node whose gateway label Pelago has set (`pelago
// join --gateways`): only such a label is ever removed by the agent.
const AnnotationGatewayKept = "pelago.io/gateway-kept"

// AnnotationExportTo of a ServiceExport restricts the clusters to which the service is exported: a
// comma list of cluster ids, or a selector over the labels that the administrator of the hub gave
// to clusters (PeerSpec.Labels).
const AnnotationExportTo = "pelago.io/export-to"

// AnnotationMinLocalBackends of a ServiceExport is the number of ready backends, from 1 on, below
// which a cluster does not take all connections of its own clients: the missing part of them goes
// to other clusters. The oldest export decides for all clusters, whose ServiceImports have it.
const AnnotationMinLocalBackends = "pelago.io/min-local-backends"

// AnnotationPrefer of a ServiceExport is how connections that leave their cluster are divided among
// the others: PreferWeighted (default) or PreferNearest. The oldest export decides, as above.
const AnnotationPrefer = "pelago.io/prefer"

// Values of AnnotationPrefer.
const (
	PreferWeighted = "weighted" // by ready backends
	PreferNearest  = "nearest"  // to the one with the shortest round-trip time
)

// AnnotationNearest of a ServiceImport with PreferNearest lists the other clusters by the
// round-trip times that the gateways of this one measure, the nearest first, separated by commas.
// Those about as near keep their order.
const AnnotationNearest = "pelago.io/nearest-clusters"

// LabelDatapath of a Namespace or Node sets how packets of its pods get to other clusters and back:
// strict, hybrid or fast.
const LabelDatapath = "pelago.io/datapath"

// AnnotationRotateKeys of a gateway node makes its wire rotate all keys, once for each value: an
// RFC 3339 time. Written by `pelago gateway rotate-keys`; status.keyRotation of the NodeIndex shows
// the progress.
const AnnotationRotateKeys = "pelago.io/rotate-keys"

// Annotations of a Cluster. The admission policies at the hub read all but the last.
const (
	// AnnotationClusterUID is the UID of the cluster's namespace kube-system: which cluster it
	// really is. Written by `pelago join`.
	AnnotationClusterUID = "pelago.io/cluster-uid"
	// AnnotationClusterIndex is the cluster's index in the clusterset, decimal, from 1. Written by
	// `pelago join`.
	AnnotationClusterIndex = "pelago.io/cluster-index"
	// AnnotationFabricCIDR is the cluster's share of the clusterset's fabric, a /18. Written by
	// `pelago join`.
	AnnotationFabricCIDR = "pelago.io/fabric-cidr"
	// AnnotationNetworkOnly with the value "true": the cluster has joined with --network-only and
	// cannot register for workloads. Written by `pelago join`; a member cannot change it.
	AnnotationNetworkOnly = "pelago.io/network-only"
	// AnnotationWorkloadsOnly with the value "true": the cluster has joined with --workloads-only.
	// It has no ranges, and the others have no Peer for it.
	AnnotationWorkloadsOnly = "pelago.io/workloads-only"
	// AnnotationUnapproved with the value "true": no administrator of the hub has accepted the cluster,
	// and no other one connects to it. Written by `pelago join`, removed by `pelago clusters accept`;
	// the registration credential cannot. The taint of that name does the same for workloads.
	AnnotationUnapproved = "pelago.io/unapproved"
	// AnnotationAtLimit on the ConfigMap pelago-clusterset has, comma-separated, <cluster
	// id>/<resource> of each kind of which a member has as many objects as it may have; pelago-hub
	// writes it, the policy pelago-member-count reads it.
	AnnotationAtLimit = "pelago.io/members-at-limit"
	// AnnotationNeeded lists, separated by commas, addresses of a cluster's API server and name
	// servers: the hub refuses ranges of others that contain one. Written by `pelago join`.
	AnnotationNeeded = "pelago.io/needed-addresses"
	// AnnotationHubProblem of a Lease cluster-<id> at the hub: why the cluster does not use the
	// address that the hub announces; empty: it does. Written by the agent.
	AnnotationHubProblem = "pelago.io/hub-problem"
	// AnnotationClusterRanges are the ranges in which clusters without globalnet may have pods,
	// services and hosts, comma-separated, of the hub's ConfigMap pelago-clusterset. Written by the
	// agent on the copy of its own Cluster; one at the hub has no effect.
	AnnotationClusterRanges = "pelago.io/cluster-ranges"
	// AnnotationJoinedAt is when the Cluster was made at the hub, RFC 3339. Written by the agent on
	// its copies, which have a creation time of their own.
	AnnotationJoinedAt = "pelago.io/joined-at"
)

// Labels of the EndpointSlices that describe exported services, at the hub and in members.
const (
	// ExportedSliceManager is the value of endpointslice.kubernetes.io/managed-by at the hub;
	// slices there without it are not read.
	ExportedSliceManager = "pelago.io"
	// LabelProxyName with the value ProxyName keeps kube-proxy away from a slice.
	LabelProxyName = "service.kubernetes.io/service-proxy-name"
	ProxyName      = "pelago"
)

// AnnotationReadyBackends of an EndpointSlice of an exported service, at the hub and in members, is
// how many ready backends its cluster has, decimal; above 8 rounded down to three significant bits.
// Without it the number is unknown.
const AnnotationReadyBackends = "pelago.io/ready-backends"

// AnnotationUnreachable of an imported EndpointSlice: no gateway reaches its cluster, so no
// endpoint is ready. The value lists the indexes of those that would be ready otherwise, separated
// by commas.
const AnnotationUnreachable = "pelago.io/unreachable"

// AnnotationUnreachableSince of a Peer: since when no gateway reaches the cluster, RFC 3339. Written
// by the agent, for the one after it.
const AnnotationUnreachableSince = "pelago.io/unreachable-since"

// ConditionClusterSetIP of a ServiceExport reports whether the service has a ClusterSetIP, and
// which.
const ConditionClusterSetIP = "ClusterSetIP"

// Reasons of ConditionClusterSetIP.
const (
	ReasonAllocated      = "Allocated"
	ReasonAwaitingClaim  = "AwaitingClaim"  // an older export of another cluster claims one
	ReasonExhausted      = "RangeExhausted" // no address of the cluster's range is free
	ReasonNoClusterSetIP = "NoClusterSetIP" // the service cannot have one
)

// SecretTypeRegistration is the type of the Secrets cluster-<id>.registration at the hub, to which
// a member's tokens are bound. The admission policies there read it.
const SecretTypeRegistration corev1.SecretType = "pelago.io/registration"
