// Package topology holds what agent, node daemon and name server derive alike from API objects:
// which nodes are gateways and what all ready gateways have acknowledged, from which egress IPs a
// pod is translated, which port blocks a node may use, and which remote clusters are dead.
//
// All but the dead-clusters socket, GatewayIndex and WatchReports is pure. That socket (pelago-node
// serves, pelago-dns watches) carries one line of JSON per change, {"dead":["g2"]}, so that a name
// server needs neither the API server nor the network to stop answering with an unreachable
// cluster. Any local process may read it; none can write it.
package topology
