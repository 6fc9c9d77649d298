// Package policy holds what the hub knows of policies: the controller that gives propagation policies their permanent
// id and finalizer and all policies the condition Accepted; Match, which objects a resource selector selects and how
// precisely; and ApplyOverrides, what override policies make of a template for one cluster.
//
// Match and ApplyOverrides are pure. The controller neither claims nor releases templates (control/hub/propagate does).
package policy
