package v1alpha1

// Finalizers of policies: templates and bindings lose the claim before the policy goes.
const (
	FinalizerPropagationPolicy        = "karmada.io/propagation-policy-controller"
	FinalizerClusterPropagationPolicy = "karmada.io/cluster-propagation-policy-controller"
)

// Labels that hold the permanent id of a policy (a UUID that survives backup and restore): on the
// policy itself, on the templates that it has claimed, on their bindings and on the objects in
// members.
const (
	LabelPropagationPolicyID        = "propagationpolicy.karmada.io/permanent-id"
	LabelClusterPropagationPolicyID = "clusterpropagationpolicy.karmada.io/permanent-id"
)

// Annotations that name the policy, next to the labels.
const (
	AnnotationPropagationPolicyNamespace   = "propagationpolicy.karmada.io/namespace"
	AnnotationPropagationPolicyName        = "propagationpolicy.karmada.io/name"
	AnnotationClusterPropagationPolicyName = "clusterpropagationpolicy.karmada.io/name"
)

// ClaimLabels and ClaimAnnotations are what the claim of any policy consists of.
var (
	ClaimLabels      = []string{LabelPropagationPolicyID, LabelClusterPropagationPolicyID}
	ClaimAnnotations = []string{AnnotationPropagationPolicyNamespace, AnnotationPropagationPolicyName, AnnotationClusterPropagationPolicyName}
)

// Annotations that record what was applied.
const (
	// AnnotationAppliedPlacement of a binding is the placement of the last decision, JSON.
	AnnotationAppliedPlacement = "policy.karmada.io/applied-placement"
	// AnnotationAppliedOverrides of a Work lists the OverridePolicies that changed its manifest,
	// JSON, by name.
	AnnotationAppliedOverrides = "policy.karmada.io/applied-overrides"
	// AnnotationAppliedClusterOverrides is the same for ClusterOverridePolicies.
	AnnotationAppliedClusterOverrides = "policy.karmada.io/applied-cluster-overrides"
)

// LabelNamespaceSkipAutoPropagation with the value "true" keeps a Namespace out of the members.
const LabelNamespaceSkipAutoPropagation = "namespace.karmada.io/skip-auto-propagation"

// LabelPropagateNamespace with the value "true" propagates a Namespace to all members, on a hub
// that propagates only such ones.
const LabelPropagateNamespace = "pelago.io/propagate"

// ConditionAccepted of a policy is False if the API server took it but it cannot work; nothing is
// done with it then. The condition is ours: Karmada rejects such objects by webhook.
const ConditionAccepted = "Accepted"

// ConditionRulesSkipped of an override policy is True if objects lack the path of a rule: the rule
// is not applied to them. Only policies that do not select the object explicitly are affected. The
// condition is ours.
const ConditionRulesSkipped = "RulesSkipped"

// ReasonPathMissing of ConditionRulesSkipped: the message lists objects, rules and paths.
const ReasonPathMissing = "PathMissing"

// ConditionResolvedRefs of a policy is False while it names what the hub does not have: a kind that
// is not served or never propagated, a system namespace, a cluster that has not joined. The rest of
// the policy is in effect. It is absent otherwise. The name is Gateway API's.
const ConditionResolvedRefs = "ResolvedRefs"

// ReasonNotFound of ConditionResolvedRefs: the message lists fields and what they name.
const ReasonNotFound = "NotFound"

// Reasons of ConditionAccepted.
const (
	ReasonAccepted = "Accepted"
	// ReasonInvalid: the message lists fields and reasons.
	ReasonInvalid = "Invalid"
)

// EventCollectOverallStatusSucceed is the reason of an Event on a FederatedResourceQuota.
const EventCollectOverallStatusSucceed = "CollectOverallStatusSucceed"

// AnnotationMemberOwned on a policy or a template lists fields (RFC 6901 pointers, separated by
// commas) that are left to the members' own controllers once the object exists there.
const AnnotationMemberOwned = "pelago.io/member-owned"

// AnnotationMembersOnly of a template (APIService, CustomResourceDefinition) is what members have and
// the hub has not, as JSON: there it would call a Service that only members have.
const AnnotationMembersOnly = "pelago.io/members-only"

// MembersOnlyCondition is the name of the match condition that keeps a propagated admission webhook
// from acting at the hub. Members do not get it.
const MembersOnlyCondition = "pelago.io/members-only"

// AnnotationInitContainers with the value "true" on an override policy extends its image overriders
// without predicate to init containers, which Karmada leaves as they are.
const AnnotationInitContainers = "pelago.io/init-containers"

// AnnotationOnNoClusterFit of a policy with the value OnNoClusterFitRemove removes a template from
// all clusters when none fits any more, as Karmada does. Without it running replicas stay, unless
// the affinity selects no cluster at all and names none that has yet to join.
const (
	AnnotationOnNoClusterFit = "pelago.io/on-no-cluster-fit"
	OnNoClusterFitRemove     = "Remove"
)
