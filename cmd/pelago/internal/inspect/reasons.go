package inspect

import "github.com/pelago-net/pelago/bpf"

// reason is a sentence and what to do about it.
type reason struct{ message, remedy string }

// reasonOf returns the reason of a word: a verdict of the programs, or what is decided outside of
// them. ok is false for a word that only another version has.
func reasonOf(word string) (r reason, ok bool) {
	if v, drop := bpf.ParseVerdict(word); drop {
		r, ok = drops[v]
		return r, ok
	}
	r, ok = reasons[word]
	return r, ok
}

// reasons are decided outside of the programs.
var reasons = map[string]reason{
	// Before the first node.
	"no-import":     {"the cluster has no ServiceImport of that name", "export the service in its cluster (`pelago export service`), see the conditions of its ServiceExport there, and create the namespace in this cluster"},
	"no-backend":    {"the name has no address: no cluster has a ready backend for it", "see `kubectl get endpointslices -l multicluster.kubernetes.io/service-name`, the readiness of the pods, and `pelago show connections`"},
	"unknown-name":  {"the name server has no such name", "use SERVICE.NAMESPACE.svc.clusterset.local or NAMESPACE/SERVICE, or an address"},
	"no-port":       {"the service has no such port", "name a port of `kubectl get serviceimport`"},
	"pod-not-ready": {"the pod does not run", "see `kubectl describe pod`"},
	"own-cluster":   {"the name leads to this cluster's own service", "kube-proxy serves it; for another cluster's use CLUSTER.SERVICE.NAMESPACE.svc.clusterset.local"},
	"shadowed":      {"kube-proxy of the node translates the packet before our programs see it", "remove the address from that Service's externalIPs or load balancer, or give one of the clusters another service CIDR"},
	"policy":        {"a NetworkPolicy drops the packet", "allow the other cluster's addresses by an ipBlock: podSelector and namespaceSelector match pods of the own cluster only"},
	"not-routed":    {"the node's stack does not route the packet into pelago0", "see `ip rule` and `ip route get` on the node: another rule comes first, or pelago-node could not set its own (its log says why)"},
	"gateway-down":  {"the gateway does not answer, and no other gateway of the cluster does", "see `pelago show gateways`: does its node run, does pelago-node run there, and does UDP 4800 pass between the nodes?"},
	"wire-down":     {"no gateway of the other cluster answers", "see `pelago show connections -o wide`: do the other cluster's gateways run, do both have the same cable driver and secret, and do UDP 4500 (WireGuard: 4504, too) and 4490 pass?"},
	"stale-daemon":  {"pelago-node does not keep the tables of the node up to date", "see its log (`kubectl -n pelago-system logs`); delete the pod: what is in the kernel stays"},
	"no-daemon":     {"the tables of a node cannot be read: pelago-node does not run there", "see `kubectl -n pelago-system get pods -o wide`; the programs in its kernel keep working"},
	"unreadable":    {"the tables of a node cannot be read", "the command needs the right to create pods/exec in namespace pelago-system, and pelago-node of its own version"},
	"remote-unseen": {"the path continues in a cluster that is not read", "name its context with --remote-context"},
	"unknown-node":  {"a node on the path has no NodeIndex", "see `kubectl get nodeindices`; pelago-agent makes them"},
	"loop":          {"gateways forward the packet in a loop", "report this as a defect, with -o json"},
	"not-seen":      {"the packet left, and the next node did not see it", "between the two the network drops it: a firewall, the cable, an MTU"},
	"stack":         {"the packet entered the node's stack, and did not leave it", "a policy or firewall of the node drops it: see the counters of its nftables or iptables rules, NetworkPolicies, rp_filter; if it is for a process of the node itself, does that listen?"},
	"no-answer":     {"the pod got the packet and did not answer", "does the process listen on that port, and on the pod's address?"},
	"answer-lost":   {"the pod answered, and the answer did not come back", "trace the other direction"},
	"not-sent":      {"the packet could not be sent", "see the message"},
}

// drops are the verdicts of the programs that drop a packet.
var drops = map[bpf.PelagoVerdict]reason{
	bpf.PelagoVerdictVERDICT_DROP_MALFORMED:       {"the packet is malformed", "see what sends it"},
	bpf.PelagoVerdictVERDICT_DROP_BAD_VERSION:     {"the overlay header has an unknown version", "upgrade the older of the two clusters"},
	bpf.PelagoVerdictVERDICT_DROP_BAD_TOKEN:       {"the token in the overlay header is not the receiver's", "the clusters were joined with different secrets: run `pelago join` again with one broker-info.subm; in one cluster, pelago-overlay-token was replaced: add the old token to it under the key previous"},
	bpf.PelagoVerdictVERDICT_DROP_BAD_TYPE:        {"the overlay header has an unknown type", "upgrade the older of the two clusters"},
	bpf.PelagoVerdictVERDICT_DROP_UNKNOWN_PEER:    {"the receiver does not know the sender's address", "see `kubectl get peers,nodeindices` of the receiving cluster: does it accept the sender, and does NAT change its address?"},
	bpf.PelagoVerdictVERDICT_DROP_SPOOFED_SOURCE:  {"the receiver does not accept the source address from that cluster; or an ICMP error came from a cluster that is no end of its flow", "see `kubectl get peers -o wide` of the receiving cluster: does it accept the sender's cluster, with these ranges?"},
	bpf.PelagoVerdictVERDICT_DROP_UNKNOWN_SOURCE:  {"the source address is no pod of the node", "condition SelfTest of the NodeIndex; Event `NotConnected` of the pod; is it masqueraded?"},
	bpf.PelagoVerdictVERDICT_DROP_NO_ROUTE:        {"no accepted cluster has the destination", "see `kubectl get peers`: is the address in the subnets of one that is accepted?"},
	bpf.PelagoVerdictVERDICT_DROP_NO_GATEWAY:      {"no gateway leads to the destination", "label a node submariner.io/gateway=true in both clusters, and see `pelago show gateways` and `pelago show connections`"},
	bpf.PelagoVerdictVERDICT_DROP_NOT_GATEWAY:     {"a node that is no gateway got a packet from another cluster", "the node's label is new or was removed: see `pelago show endpoints` of the sender"},
	bpf.PelagoVerdictVERDICT_DROP_NOT_OWN:         {"the destination is no address of the cluster", "the service or pod is no longer exported: see `kubectl get globalingressips -A` there"},
	bpf.PelagoVerdictVERDICT_DROP_NOT_EXPORTED:    {"the service is not exported to that cluster", "see the annotation pelago.io/export-to of its ServiceExport, and `pelago export service --to`"},
	bpf.PelagoVerdictVERDICT_DROP_UNKNOWN_BLOCK:   {"no node has the port block of the destination", "the packet is a reply of a flow whose node is gone; open a new connection"},
	bpf.PelagoVerdictVERDICT_DROP_UNKNOWN_NODE:    {"the node has no address", "see `kubectl get nodeindices`; pelago-agent makes them"},
	bpf.PelagoVerdictVERDICT_DROP_NO_SERVICE:      {"no service is exported at that address and port", "see the ports of the Service, and `kubectl get serviceexports -A` in the other cluster"},
	bpf.PelagoVerdictVERDICT_DROP_NO_BACKEND:      {"the exported service has no ready backend", "see the readiness of its pods in the other cluster"},
	bpf.PelagoVerdictVERDICT_DROP_NO_FLOW:         {"the packet belongs to no connection and does not open one", "open a new connection"},
	bpf.PelagoVerdictVERDICT_DROP_NO_EGRESS:       {"the pod has no egress IP, or the node no port block of it", "see `kubectl get clusterglobalegressips,globalegressips -A` and `kubectl get portblocks`; pelago-agent assigns them"},
	bpf.PelagoVerdictVERDICT_DROP_PORTS_EXHAUSTED: {"all ports of the node's blocks are in use towards this destination", "raise numberOfIPs of the egress object, and see which pod has so many connections (`pelago nat list`)"},
	bpf.PelagoVerdictVERDICT_DROP_FLOWS_FULL:      {"the flow table of the node is full", "see `pelago nat list`; the table is sized by the memory of the node"},
	bpf.PelagoVerdictVERDICT_DROP_NO_MEMORY:       {"the kernel has no memory for another entry of the flow table", "see the free memory of the node, and the memory limit of pelago-node's cgroup, to which the maps are charged"},
	bpf.PelagoVerdictVERDICT_DROP_TUPLE_CLASH:     {"another connection has the same addresses and ports", "use another source port"},
	bpf.PelagoVerdictVERDICT_DROP_FRAGMENT:        {"the first fragment was not seen", "lower the MTU of the pod so that its packets are not fragmented: `pelago map dump settings` has that of the path"},
	bpf.PelagoVerdictVERDICT_DROP_PROTOCOL:        {"the protocol is not supported", "use TCP, UDP, ICMP echo, or SCTP between pods that keep their port"},
	bpf.PelagoVerdictVERDICT_DROP_TTL:             {"the time to live (TTL) has expired", "look for a loop, or raise the sender's TTL"},
	bpf.PelagoVerdictVERDICT_DROP_TOO_BIG:         {"the packet is larger than the path allows", "TCP adapts; for other protocols lower the MTU of the pod, or raise that of the network between the gateways (`pelago map dump settings`, NodeIndex status.pathMTU)"},
	bpf.PelagoVerdictVERDICT_DROP_INJECTED:        {"the packet is for the ports of Pelago, and not from its programs", "nothing but pelago-node may send to UDP 4800 and 4500 of nodes"},
	bpf.PelagoVerdictVERDICT_DROP_UNVERIFIED:      {"a packet reached pelago0 without passing our checks", "nothing but pelago-node may send to UDP 4800 of nodes"},
	bpf.PelagoVerdictVERDICT_DROP_NOT_READY:       {"the tables of the node are not complete yet", "see the log of pelago-node there: it waits for the API server"},
	bpf.PelagoVerdictVERDICT_DROP_STALE_PROBE:     {"the reply to a probe is late, repeated or forged", "many of them mean that packets are queued for long: see the CPU time of the gateways, and the round-trip times of `pelago show connections`"},
	bpf.PelagoVerdictVERDICT_DROP_HANDSHAKE:       {"too many handshakes from unknown addresses", "see `pelago show connections -o wide` of the sender: is its address known there?"},
	bpf.PelagoVerdictVERDICT_DROP_INTERNAL:        {"a function of the kernel failed", "see the counters (`pelago nat stats`) and report this as a defect"},
	bpf.PelagoVerdictVERDICT_DROP_QUOTA:           {"a pod, a remote cluster or the hosts outside the cluster have their share of the node's flow table, or the pod's mappings half of the ports", "see `pelago nat list` for the pod with so many flows or mappings"},
}
