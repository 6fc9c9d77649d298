package v1alpha1

// ClaimedByMultiClusterService is the value of the label resourcetemplate.karmada.io/claimed-by of
// a Service that a MultiClusterService places: policies ignore it.
const ClaimedByMultiClusterService = "MultiClusterService"

// Condition types of a MultiClusterService of type CrossCluster, with their reasons.
const (
	// ConditionServiceApplied: the Works of its clusters are written.
	ConditionServiceApplied     = "ServiceApplied"
	ReasonServiceAppliedSucceed = "ServiceAppliedSucceed"
	ReasonServiceAppliedFailed  = "ServiceAppliedFailed"
	// ConditionEndpointSliceDispatched: all objects of the service exist in its providers and
	// consumers.
	ConditionEndpointSliceDispatched     = "EndpointSliceDispatched"
	ReasonEndpointSliceDispatchedSucceed = "EndpointSliceDispatchedSucceed"
	ReasonEndpointSliceDispatchedFailed  = "EndpointSliceDispatchedFailed"
)

// Reasons of Events on MultiClusterServices.
const (
	EventSyncServiceSucceed           = "SyncServiceSucceed"
	EventSyncServiceFailed            = "SyncServiceFailed"
	EventDispatchEndpointSliceSucceed = "DispatchEndpointSliceSucceed"
	EventDispatchEndpointSliceFailed  = "DispatchEndpointSliceFailed"
	EventClusterNotFound              = "ClusterNotFound"
)
