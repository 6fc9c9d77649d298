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

// LabelManaged with the value "true" marks objects in members that come from the hub; LabelSystem marks what the hub itself
// made, such as execution namespaces.
const (
	LabelManaged = "karmada.io/managed"
	LabelSystem  = "karmada.io/system"
)

// AnnotationConflictResolution on a template overrides conflictResolution of its policy; it is copied to the object in the
// member.
const (
	AnnotationConflictResolution = "work.karmada.io/conflict-resolution"
	ConflictResolutionOverwrite  = "overwrite"
	ConflictResolutionAbort      = "abort"
)

// LabelInstruction with the value InstructionSuppressed on a Work keeps the execution controller away from it.
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
