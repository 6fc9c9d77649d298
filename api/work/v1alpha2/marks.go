package v1alpha2

// Finalizers of bindings: Works go before their binding does.
const (
	FinalizerBinding        = "karmada.io/binding-controller"
	FinalizerClusterBinding = "karmada.io/cluster-resource-binding-controller"
)

// Labels that hold the permanent id of a binding, on it, on its Works and on the objects in
// members.
const (
	LabelBindingID        = "resourcebinding.karmada.io/permanent-id"
	LabelClusterBindingID = "clusterresourcebinding.karmada.io/permanent-id"
)

// Annotations that name the binding, on its Works and on the objects in members.
const (
	AnnotationBindingNamespace   = "resourcebinding.karmada.io/namespace"
	AnnotationBindingName        = "resourcebinding.karmada.io/name"
	AnnotationClusterBindingName = "clusterresourcebinding.karmada.io/name"
)

// Marks of dependencies.
const (
	// AnnotationDependencies of a binding lists the dependents of its template, JSON.
	AnnotationDependencies = "resourcebinding.karmada.io/dependencies"
	// LabelDependedByPrefix followed by a hash is the label with which a dependent's binding refers
	// to a binding that requires it.
	LabelDependedByPrefix = "resourcebinding.karmada.io/depended-by-"
)

// Annotations of the object in a member that speak of its template.
const (
	AnnotationTemplateUID        = "resourcetemplate.karmada.io/uid"
	AnnotationTemplateGeneration = "resourcetemplate.karmada.io/generation"
	// AnnotationManagedLabels and AnnotationManagedAnnotations list the keys that come from the
	// template, sorted and separated by commas. A listed key that is no longer desired is removed
	// from the object; any other key belongs to the member.
	AnnotationManagedLabels      = "resourcetemplate.karmada.io/managed-labels"
	AnnotationManagedAnnotations = "resourcetemplate.karmada.io/managed-annotations"
)

// What users put on templates.
const (
	// LabelRetainReplicas with the value "true" leaves the number of replicas to the member.
	LabelRetainReplicas = "resourcetemplate.karmada.io/retain-replicas"
	// AnnotationRetainReplicasBy names the HorizontalPodAutoscaler for which pelago-hub has set
	// that label, and takes it off again.
	AnnotationRetainReplicasBy = "pelago.io/retain-replicas-by"
	// LabelDeletionProtected with the value DeletionProtectedAlways refuses deletion.
	LabelDeletionProtected  = "resourcetemplate.karmada.io/deletion-protected"
	DeletionProtectedAlways = "Always"
	// LabelClaimedBy names the kind that looks after an object; policies ignore it then.
	LabelClaimedBy = "resourcetemplate.karmada.io/claimed-by"
)

// ConditionScheduled of a binding reports whether there is a decision for its present spec.
const ConditionScheduled = "Scheduled"

// Reasons of ConditionScheduled; the first is True, the others False.
const (
	ReasonSuccess = "Success"
	// ReasonSchedulerError: any other error, such as an invalid placement; retried.
	ReasonSchedulerError = "SchedulerError"
	// ReasonNoClusterFit: no cluster passes the filters.
	ReasonNoClusterFit = "NoClusterFit"
	// ReasonUnschedulable: clusters pass, but have no room.
	ReasonUnschedulable = "Unschedulable"
	ReasonQuotaExceeded = "QuotaExceeded"
)

// ConditionFullyApplied of a binding is True if exactly the wanted clusters hold the object.
const ConditionFullyApplied = "FullyApplied"

// Reasons of ConditionFullyApplied: True, False.
const (
	ReasonFullyAppliedSuccess = "FullyAppliedSuccess"
	ReasonFullyAppliedFailed  = "FullyAppliedFailed"
)

// ConditionFailover is False, with reason Held, on a binding whose template stays in a cluster that
// it should leave; the message reports why. It is ours, and absent otherwise.
const (
	ConditionFailover = "Failover"
	ReasonHeld        = "Held"
)

// ConditionFailback is False, with reason Awaited, on a binding whose template is to return to a
// cluster that it has left; the message reports until when. It is ours, and absent otherwise.
const (
	ConditionFailback = "Failback"
	ReasonAwaited     = "Awaited"
)

// ConditionRollout is False on a binding while a revision of its template has not reached all
// clusters, or is held; the message reports where. It is ours, and absent otherwise.
const (
	ConditionRollout         = "Rollout"
	ReasonRolloutProgressing = "Progressing"
	ReasonRolloutStopped     = "Stopped"
	// ReasonRolloutInvalidOrder: a selector of the order matches no Cluster.
	ReasonRolloutInvalidOrder = "InvalidOrder"
)

// Reasons and producers of eviction tasks.
const (
	EvictionReasonTaintUntolerated   = "TaintUntolerated"
	EvictionReasonApplicationFailure = "ApplicationFailure"
	EvictionProducerTaintManager     = "TaintManager"
	// EvictionReasonClusterFailure: the cluster has not been ready for a while. This reason and
	// producer are ours.
	EvictionReasonClusterFailure = "ClusterFailure"
	// EvictionReasonNearerCluster: by the policy's annotation pelago.io/near another cluster is to
	// be used.
	EvictionReasonNearerCluster = "NearerCluster"
	// EvictionReasonNotOpen: the namespace must not use the cluster any longer
	// (policyv1alpha1.AnnotationClusters).
	EvictionReasonNotOpen = "ClusterNotOpen"
	// EvictionReasonFailback: by the policy's annotation pelago.io/failback replicas return to a
	// cluster that they had left.
	EvictionReasonFailback = "Failback"
	EvictionProducerHub    = "PelagoHub"
)
