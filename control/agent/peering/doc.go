// Package peering exchanges gateways with the other clusters of the clusterset. Six controllers:
// publish writes this cluster's Endpoints at the hub; mirror copies all Clusters and Endpoints into
// the member; accept validates the copies and makes a Peer of each remote cluster for the node
// daemons; balance points a load balancer at this cluster's gateways; token renews the member's
// credential in Secret submariner-broker-secret; identity writes the ClusterProperties.
//
// accept reads the copies, not the hub, so that known peers stay in use while the hub is
// unreachable, also across a restart. pelago-agent runs it. It writes only this cluster's Endpoints
// at the hub and only objects with our labels in the member, besides the Secret, and deletes no
// copy, Endpoint or Peer before the hub's cache has synced.
package peering
