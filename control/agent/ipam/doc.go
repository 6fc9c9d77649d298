// Package ipam allocates a member's global IPs, port blocks and node indexes. Creating an object
// named after the resource is the allocation: GlobalAddress for an address of the GlobalCIDR,
// PortBlock for 256 ports of an egress IP, NodeIndex for a node's number in the overlay header. The
// API server lets one of several writers succeed; Pool is a cache of it.
//
// pelago-agent runs it. It writes GlobalAddresses, the spec of PortBlocks and NodeIndexes, and the
// status of egress and ingress objects; nodes acknowledge through the status of PortBlocks and
// NodeIndexes. A released address rests for AddressRest before it is allocated again.
package ipam
