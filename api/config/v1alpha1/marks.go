package v1alpha1

// ConditionAccepted of a customization is False if the API server took it but it cannot work; the kind is interpreted without
// it then. The condition is ours: the predecessor refused such objects by webhook.
const ConditionAccepted = "Accepted"

// Reasons of ConditionAccepted.
const (
	ReasonAccepted = "Accepted"
	// ReasonInvalidScript: a script is no Lua.
	ReasonInvalidScript = "InvalidScript"
	// ReasonConflict: an older customization has a rule for the same target and operation.
	ReasonConflict = "Conflict"
	// ReasonNotSupportedYet: Lua is not run yet; the message says how to write the same as KindRules.
	ReasonNotSupportedYet = "NotSupportedYet"
)
