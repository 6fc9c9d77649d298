// Package work creates the Works of bindings and of the hub's namespaces: what each cluster is to hold of an object,
// with replicas, overrides and identifying labels. It runs in pelago-hub and is the only writer of the metadata and
// spec of Works and of the finalizer of bindings. It decides nothing about clusters or replicas (control/hub/propagate
// does) and never writes to a member (control/execute does).
package work
