package v1alpha2

// Reasons of Events on Works and on the objects in them.
const (
	EventSyncSucceed            = "SyncSucceed"
	EventSyncFailed             = "SyncFailed"
	EventReflectStatusSucceed   = "ReflectStatusSucceed"
	EventReflectStatusFailed    = "ReflectStatusFailed"
	EventInterpretHealthSucceed = "InterpretHealthSucceed"
	EventInterpretHealthFailed  = "InterpretHealthFailed"
	EventWorkDispatching        = "WorkDispatching"
	// EventWorkOrphaned: the binding of a Work does not exist. It is ours.
	EventWorkOrphaned = "WorkOrphaned"
)

// Reasons of Events on bindings and on their templates.
const (
	EventScheduleBindingSucceed          = "ScheduleBindingSucceed"
	EventScheduleBindingFailed           = "ScheduleBindingFailed"
	EventDescheduleBindingSucceed        = "DescheduleBindingSucceed"
	EventDescheduleBindingFailed         = "DescheduleBindingFailed"
	EventEvictWorkloadFromClusterSucceed = "EvictWorkloadFromClusterSucceed"
	EventEvictWorkloadFromClusterFailed  = "EvictWorkloadFromClusterFailed"
	// EventFailbackAwaited: the template returns to a cluster later. It is ours.
	EventFailbackAwaited = "FailbackAwaited"
	// Of rollouts: a revision begins, is held or stopped, or has reached all clusters. They are ours.
	EventRolloutProgressing         = "RolloutProgressing"
	EventRolloutHeld                = "RolloutHeld"
	EventRolloutStopped             = "RolloutStopped"
	EventRolloutCompleted           = "RolloutCompleted"
	EventSyncWorkSucceed            = "SyncWorkSucceed"
	EventSyncWorkFailed             = "SyncWorkFailed"
	EventCleanupWorkFailed          = "CleanupWorkFailed"
	EventAggregateStatusSucceed     = "AggregateStatusSucceed"
	EventAggregateStatusFailed      = "AggregateStatusFailed"
	EventSyncDependenciesSucceed    = "SyncScheduleResultToDependenciesSucceed"
	EventSyncDependenciesFailed     = "SyncScheduleResultToDependenciesFailed"
	EventDependencyPolicyConflict   = "DependencyPolicyConflict"
	EventApplyOverridePolicySucceed = "ApplyOverridePolicySucceed"
	EventApplyOverridePolicyFailed  = "ApplyOverridePolicyFailed"
)

// Reasons of Events on templates.
const (
	EventApplyPolicySucceed     = "ApplyPolicySucceed"
	EventApplyPolicyFailed      = "ApplyPolicyFailed"
	EventPreemptPolicySucceed   = "PreemptPolicySucceed"
	EventPreemptPolicyFailed    = "PreemptPolicyFailed"
	EventGetDependenciesSucceed = "GetDependenciesSucceed"
	EventGetDependenciesFailed  = "GetDependenciesFailed"
	EventGetReplicasFailed      = "GetReplicasFailed"
	// EventMembersOnly: what the template does in members, it does not do at the hub.
	EventMembersOnly = "MembersOnly"
)
