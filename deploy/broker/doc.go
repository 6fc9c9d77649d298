// Package broker is the hub's side of a clusterset: the file broker-info.subm, the book of what was allocated to which
// cluster, and the registration of members.
//
// It is used by the command line tool, with the rights of whoever runs it: deploy-broker as the hub's administrator,
// join with the registration credential, unjoin as the administrator again. Members never call it. Decisions (Book) are
// pure; everything else is one or few requests to the hub's API server.
package broker

// Objects in the broker namespace.
const (
	// AllocationConfigMap holds the Book.
	AllocationConfigMap = "submariner-globalnet-info"
	// ClustersetConfigMap holds what all members share.
	ClustersetConfigMap = "pelago-clusterset"
	// PSKSecret holds the clusterset's key for IPsec, under the key "psk".
	PSKSecret = "submariner-ipsec-psk"
)
