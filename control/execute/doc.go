// Package execute runs the Works of one cluster and reports its status. Execution applies what a Work of namespace
// karmada-es-<cluster> holds to the member and writes the result into the Work's status; Collector writes the Cluster's
// status: readiness, version, API enablements, nodes and resource sums, and renews a pull member's Lease.
//
// pelago-hub runs both for each push member, pelago-agent --roles=execution for its own cluster. It deletes an object
// only if its Work is being deleted, and changes no object without the hub's id, except to adopt one where the template
// asks for it. Taints follow in control/hub/cluster, placement in scheduler.
package execute
