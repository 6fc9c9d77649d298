package v1alpha1

// FinalizerCluster keeps a Cluster until its execution namespace is gone and no binding names the
// cluster.
const FinalizerCluster = "karmada.io/cluster-controller"

// Names of what belongs to a cluster on the hub.
const (
	// SecretNamespace holds the credentials of push members and the Leases of pull members.
	SecretNamespace = "karmada-cluster"
	// ExecutionNamespacePrefix and the cluster's name make the namespace of its Works.
	ExecutionNamespacePrefix = "karmada-es-"
	// SecretKeyToken and SecretKeyCA are the keys of the Secret that spec.secretRef names.
	SecretKeyToken = "token"
	SecretKeyCA    = "caBundle"
	// NameMaxLength is the longest name of a cluster, in characters.
	NameMaxLength = 48
)

// Taints that follow the condition Ready, and those that administrators set; all with the effect
// NoSchedule.
const (
	// TaintNotReady: Ready is False, or not known yet.
	TaintNotReady = "cluster.karmada.io/not-ready"
	// TaintUnreachable: Ready is Unknown.
	TaintUnreachable = "cluster.karmada.io/unreachable"
	// TaintUnschedulable: a user has cordoned the cluster.
	TaintUnschedulable = "cluster.karmada.io/unschedulable"
	// TaintUnapproved: no administrator of the hub has accepted the cluster. No toleration covers
	// it.
	TaintUnapproved = "pelago.io/unapproved"
)

// ConditionReady reports whether the cluster's API server is healthy.
const ConditionReady = "Ready"

// Reasons of ConditionReady.
const (
	// ReasonClusterReady: True.
	ReasonClusterReady = "ClusterReady"
	// ReasonClusterNotReady: False, the health endpoint answers something else than ok.
	ReasonClusterNotReady = "ClusterNotReady"
	// ReasonClusterNotReachable: False, the health endpoint does not answer.
	ReasonClusterNotReachable = "ClusterNotReachable"
	// ReasonStatusCollectionFailed: False, there is no way to ask (no Secret, an unusable one).
	ReasonStatusCollectionFailed = "StatusCollectionFailed"
	// ReasonClusterStatusNeverUpdated: Unknown, a pull member has never reported.
	ReasonClusterStatusNeverUpdated = "ClusterStatusNeverUpdated"
	// ReasonClusterStatusUnknown: Unknown, the Lease of a pull member has run out.
	ReasonClusterStatusUnknown = "ClusterStatusUnknown"
	// ReasonClusterIDTaken: False, another Cluster has the same spec.id; this one is no member.
	ReasonClusterIDTaken = "ClusterIDTaken"
	// ReasonClusterIDMismatch: False, another cluster than that of spec.id answers at
	// spec.apiEndpoint; nothing is written into it.
	ReasonClusterIDMismatch = "ClusterIDMismatch"
	// ReasonClusterIsHub: False, spec.id is that of the hub itself; this Cluster is no member.
	ReasonClusterIsHub = "ClusterIsHub"
)

// ConditionDataPlaneReachable reports whether the cluster answers the probes of other clusters'
// gateways; absent if no cluster that is ready reports on it (status.network). While it is True,
// workloads leave a cluster that is not Ready only after a longer delay: perhaps only its
// connection to the hub has failed.
const ConditionDataPlaneReachable = "DataPlaneReachable"

// Reasons of ConditionDataPlaneReachable.
const (
	// ReasonPeersReach: True.
	ReasonPeersReach = "PeersReach"
	// ReasonNoPeerReaches, ReasonFewPeersReach (less than half): False.
	ReasonNoPeerReaches = "NoPeerReaches"
	ReasonFewPeersReach = "FewPeersReach"
)

// ConditionRemoved is False on a Cluster that is being deleted, and reports what its deletion waits
// for.
const ConditionRemoved = "Removed"

// Reasons of ConditionRemoved.
const (
	// ReasonWaitingForWorks: the objects in the member are being removed.
	ReasonWaitingForWorks = "WaitingForWorks"
	// ReasonWaitingForCluster: the same, but the cluster cannot be reached.
	ReasonWaitingForCluster = "WaitingForCluster"
	// ReasonWaitingForBindings: bindings still name the cluster.
	ReasonWaitingForBindings = "WaitingForBindings"
)

// ConditionCompleteAPIEnablements reports whether status.apiEnablements lists all that the cluster
// serves.
const ConditionCompleteAPIEnablements = "CompleteAPIEnablements"

// Reasons of ConditionCompleteAPIEnablements.
const (
	// ReasonAPIEnablementsComplete: True.
	ReasonAPIEnablementsComplete = "Complete"
	// ReasonAPIEnablementsPartial: False, discovery of some groups failed.
	ReasonAPIEnablementsPartial = "Partial"
	// ReasonAPIEnablementsEmpty: False, discovery failed.
	ReasonAPIEnablementsEmpty = "Empty"
)

// ConditionServiceDomainNameResolutionReady reports whether cluster DNS works in the member;
// Remedies read it.
const ConditionServiceDomainNameResolutionReady = "ServiceDomainNameResolutionReady"

// Reasons of Events on Clusters.
const (
	EventCreateExecutionSpaceSucceed = "CreateExecutionSpaceSucceed"
	EventCreateExecutionSpaceFailed  = "CreateExecutionSpaceFailed"
	EventRemoveExecutionSpaceSucceed = "RemoveExecutionSpaceSucceed"
	EventRemoveExecutionSpaceFailed  = "RemoveExecutionSpaceFailed"
	EventTaintClusterSucceed         = "TaintClusterSucceed"
	EventTaintClusterFailed          = "TaintClusterFailed"
	// EventClusterRefused: the Cluster is no member, its condition Ready reports why.
	EventClusterRefused = "ClusterRefused"
	// EventRemovalWaits: the condition Removed has changed.
	EventRemovalWaits = "RemovalWaits"
	// EventInvalidResourceModels: spec.resourceModels cannot be used, nodes are not counted by
	// them.
	EventInvalidResourceModels = "InvalidResourceModels"
)
