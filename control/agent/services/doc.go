// Package services implements MCS service discovery (KEP-1645) of one member. Exports publishes the
// cluster's share of each exported Service at the hub, a ServiceContribution and EndpointSlices,
// and sets the ServiceExport's conditions. Ingress gives each exported Service, or pod of a
// headless one, a GlobalIngressIP. Imports turns the contributions of all clusters into
// ServiceImports and EndpointSlices of the member.
//
// Merge computes ports, properties and conflicts of a service from all contributions; every agent
// runs it over the same input, so no object at the hub has two writers. pelago-agent runs the
// controllers. They change only objects that carry this cluster's id at the hub and our labels in
// the member, and delete nothing of other clusters before the hub's cache has synced.
package services
