package v1alpha1

// FinalizerExecution keeps a Work until its objects are gone from the member.
const FinalizerExecution = "karmada.io/execution-controller"

// LabelWorkID holds the permanent id of a Work, on it and on its objects in the member.
const LabelWorkID = "work.karmada.io/permanent-id"

// Annotations that name the Work on its objects in the member.
const (
	AnnotationWorkNamespace = "work.karmada.io/namespace"
	AnnotationWorkName      = "work.karmada.io/name"
)

// Annotations that only the execution of Works puts on objects in a member; they are ours.
const (
	// AnnotationAppliedHash is the hash of the manifest that was applied last.
	AnnotationAppliedHash = "pelago.io/applied-hash"
	// AnnotationAppliedReferences lists the secrets and imagePullSecrets of a ServiceAccount that the
	// hub wrote, as field/name, separated by commas; others are the member's.
	AnnotationAppliedReferences = "pelago.io/applied-references"
	// AnnotationCreatedNamespace with the value "true" marks a Namespace that we made, which we may
	// therefore delete.
	AnnotationCreatedNamespace = "pelago.io/created-namespace"
)

// AnnotationReleased with the value "true" marks a Work whose binding was deleted while its
// template existed: the next binding takes it over; if the template is deleted before there is one,
// the Work is deleted, too. It is ours.
const AnnotationReleased = "pelago.io/released"

// LabelManaged with the value "true" marks objects in members that come from the hub; LabelSystem
// marks what the hub itself made, such as execution namespaces.
const (
	LabelManaged = "karmada.io/managed"
	LabelSystem  = "karmada.io/system"
)

// AnnotationConflictResolution on a template overrides conflictResolution of its policy; it is
// copied to the object in the member.
const (
	AnnotationConflictResolution = "work.karmada.io/conflict-resolution"
	ConflictResolutionOverwrite  = "overwrite"
	ConflictResolutionAbort      = "abort"
)

// LabelInstruction with the value InstructionSuppressed on a Work keeps the execution controller
// away from it.
const (
	LabelInstruction      = "propagation.karmada.io/instruction"
	InstructionSuppressed = "suppressed"
)

// Condition types of a Work; the last three are known to users but not set.
const (
	ConditionApplied     = "Applied"
	ConditionDispatching = "Dispatching"
	ConditionProgressing = "Progressing"
	ConditionAvailable   = "Available"
	ConditionDegraded    = "Degraded"
)

// Reasons of ConditionApplied: True, False.
const (
	ReasonAppliedSuccessful = "AppliedSuccessful"
	ReasonAppliedFailed     = "AppliedFailed"
)

// Reasons of ConditionDispatching: True, False.
const (
	ReasonDispatching        = "Dispatching"
	ReasonSuspendDispatching = "SuspendDispatching"
)

// Messages of ConditionDispatching and of its events, True and False: those of Karmada, which
// clients compare.
const (
	MessageDispatching        = "Work is being dispatched to member clusters."
	MessageSuspendDispatching = "Work dispatching is in a suspended state."
)

// ConditionInterpreted of a Work is False while a rule of the kind fails on the member's object;
// the message names the rule. It is absent otherwise. On a binding it covers all of its Works, and
// its template.
const ConditionInterpreted = "Interpreted"

// ReasonRuleFailed is the reason of ConditionInterpreted.
const ReasonRuleFailed = "RuleFailed"

// ConditionFieldsDropped of a Work is True while its object lacks fields that the member does not
// know; the message names them. It is ours.
const ConditionFieldsDropped = "FieldsDropped"

// ReasonFieldsDropped is the reason of ConditionFieldsDropped, and of the Event.
const ReasonFieldsDropped = "FieldsDropped"
