// Package coredns makes a cluster's CoreDNS forward the clusterset's zones to pelago-dns: a block between two marker
// comments at the head of the Corefile. pelago-agent runs the controller. It changes no byte outside its block and
// leaves a Corefile alone that it cannot patch safely, since cluster DNS depends on it.
package coredns
