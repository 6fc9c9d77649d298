// Package clusterdns is the clusterset's DNS in a member. TableController computes the name
// server's table from the member's API: ServiceImports name the services, EndpointSlices the
// addresses of each source cluster; cmd/pelago-dns runs it. It writes nothing, and keeps the last
// table while the API server is unreachable.
//
// The forwarders make a cluster's CoreDNS forward the clusterset's zones to pelago-dns: a block
// between two marker comments at the head of a Corefile, or an entry of OpenShift's DNS operator.
// pelago-agent runs them. They change nothing outside their block and leave a Corefile alone that
// they cannot patch safely, since cluster DNS depends on it.
package clusterdns
