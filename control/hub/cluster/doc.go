// Package cluster manages the life of a member at the hub: finalizer, execution namespace, rights and Leases of pull
// members, taints by condition, refusal of a cluster that joins twice, removal in order. For each push member it
// resolves endpoint and credential and runs what executes its Works and collects its status.
//
// It runs in pelago-hub and writes to no member. It never removes the finalizer of a Work: control/execute does, or
// Abandon for a cluster that an administrator gives up.
package cluster
