package v1alpha1

// ConditionAccepted of a customization is False if the API server took it but it cannot work; the kind is interpreted without
// it then. The condition is ours: Karmada rejects such objects by webhook.
const ConditionAccepted = "Accepted"

// Reasons of ConditionAccepted.
const (
	ReasonAccepted = "Accepted"
	// ReasonInvalidScript: a script is no Lua.
	ReasonInvalidScript = "InvalidScript"
	// ReasonConflict: KindRules, or an older customization, have a rule for the same target and operation.
	ReasonConflict = "Conflict"
	// ReasonLimitExceeded: an evaluation of a script was stopped at a bound; the message names the script. The object that it was
	// for stays as it is, and the other scripts are used.
	ReasonLimitExceeded = "LimitExceeded"
	// ReasonNotSupportedYet: nothing acts on a part of the object; the message names the part, or the alternative.
	ReasonNotSupportedYet = "NotSupportedYet"
)
