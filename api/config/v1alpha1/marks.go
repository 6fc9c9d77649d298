package v1alpha1

// ConditionAccepted of a customization is False if the API server accepted the object but it cannot
// work. On a conflict the kind is interpreted without it; otherwise its operations fail, and
// objects stay as they are. Karmada rejects such objects by webhook instead.
const ConditionAccepted = "Accepted"

// Reasons of ConditionAccepted.
const (
	ReasonAccepted = "Accepted"
	// ReasonInvalidScript: a script is no Lua.
	ReasonInvalidScript = "InvalidScript"
	// ReasonInvalidWebhook: a webhook cannot be called as it is configured. Objects that it is for
	// keep what they have.
	ReasonInvalidWebhook = "InvalidWebhook"
	// ReasonConflict: KindRules, or an older customization, have a rule for the same target and
	// operation.
	ReasonConflict = "Conflict"
	// ReasonLimitExceeded: an evaluation of a script was stopped because it exceeded a limit; the
	// message names the script. The evaluated object stays unchanged, and the other scripts remain
	// in use.
	ReasonLimitExceeded = "LimitExceeded"
	// ReasonNotSupportedYet: nothing acts on a part of the object; the message names the part, or
	// the alternative.
	ReasonNotSupportedYet = "NotSupportedYet"
)
