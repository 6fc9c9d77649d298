// Package coredns makes a cluster's CoreDNS forward the clusterset's zones to pelago-dns: a block between two marker
// comments at the head of a Corefile, or an entry of OpenShift's DNS operator. pelago-agent runs the controllers. They change
// nothing outside their block and leave a Corefile alone that they cannot patch safely, since cluster DNS depends on it.
package coredns
