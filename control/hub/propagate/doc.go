// Package propagate creates the ResourceBinding or ClusterResourceBinding of each template that a policy selects,
// including the scheduling decision. It runs in pelago-hub and is the only writer of the claim labels on templates and
// of spec and metadata of bindings. One reconcile belongs to one template and computes its whole binding, so start,
// crash and event take the same path.
//
// Capacity is its memory of decisions: clusters, and what was decided but is not in their reports yet. Decisions are
// computed in parallel from immutable snapshots and committed serially against the assumed sums.
package propagate
