package execute

import "fmt"

// OtherCluster is the error of a request to a member if another cluster answers at its address. Who makes the connection finds
// it out; a collector says it in the condition Ready, at once.
type OtherCluster struct {
	Cluster    string // the name of the Cluster
	Want, Have string // UIDs of the namespace kube-system: that of spec.id, and that of the cluster which answers
}

func (e *OtherCluster) Error() string {
	return fmt.Sprintf("another cluster answers at the address of cluster %s: the UID of its namespace kube-system is %s, "+
		"not %s as in spec.id; nothing is written into it: correct spec.apiEndpoint, or delete this Cluster and join the other one", e.Cluster, e.Have, e.Want)
}
