package ipam

import (
	"fmt"
	"net/netip"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/topology"
)

// refusal is why an object gets no addresses whatever the pool has.
type refusal struct{ reason, message string }

// supply is the pool at the moment of the decision.
type supply struct {
	cidr string
	size int
}

// pendingBlocks are the nodes whose blocks of a pool are all pending: its pods there have no ports.
type pendingBlocks struct {
	nodes []string // sorted
	// gateways are those that have not acknowledged one of the blocks, sorted; empty with blocks
	// pending: there is none in service, or the blocks become active now.
	gateways []string
	// elsewhere: another node has an active block.
	elsewhere bool
}

// egressCondition is the condition of an egress object with count requested addresses, of which it
// has those of have.
func egressCondition(refused *refusal, count int, have []netip.Addr, b pendingBlocks, s supply) metav1.Condition {
	switch {
	case refused != nil:
		return notAllocated(refused.reason, refused.message)
	case count == 0:
		return notAllocated(submarinerv1.ReasonZeroInput, "the number of IPs is 0: these pods have no egress to other clusters")
	case len(have) < count:
		return notAllocated(submarinerv1.ReasonIPPoolAllocationFailed, s.exhausted(count, len(have)))
	case len(b.nodes) > 0:
		c := notAllocated(submarinerv1.ReasonAwaitingGateways,
			fmt.Sprintf("the addresses are allocated, but pods on %s have no ports yet: their port blocks are pending until %s",
				names(b.nodes), awaited(b.gateways, "them")))
		if b.elsewhere {
			c.Status = metav1.ConditionTrue
		}
		return c
	}
	return allocated()
}

// awaited describes what an object waits for, by the gateways that have not acknowledged it.
func awaited(gateways []string, object string) string {
	if len(gateways) == 0 {
		return "this cluster has a ready gateway: label a node submariner.io/gateway=true, or see pelago show gateways"
	}
	return fmt.Sprintf("gateway %s has %s in its tables: see pelago show gateways", names(gateways), object)
}

// mostNames bounds the names in a message.
const mostNames = 5

func names(all []string) string {
	if more := len(all) - mostNames; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:mostNames], ", "), more)
	}
	return strings.Join(all, ", ")
}

// ingressCondition is the condition of a GlobalIngressIP. An announced address stays announced: a
// gateway that joins later adds it to its tables before it becomes ready.
func ingressCondition(have []netip.Addr, shown string, was *metav1.Condition, gateways topology.Gateways, of types.UID, s supply) metav1.Condition {
	if len(have) == 0 {
		return notAllocated(submarinerv1.ReasonIPPoolAllocationFailed, s.exhausted(1, 0))
	}
	announced := was != nil && was.Status == metav1.ConditionTrue && shown == have[0].String()
	switch {
	case announced || gateways.Have(of):
		return allocated()
	case len(gateways) == 0:
		return notAllocated(submarinerv1.ReasonAwaitingGateways,
			"the address is allocated, but this cluster has no ready gateway: label a node submariner.io/gateway=true, or see pelago show gateways")
	}
	return notAllocated(submarinerv1.ReasonAwaitingGateways,
		"the address is allocated and gets used once "+awaited(gateways.Missing(of), "it"))
}

// natCondition is the condition of an egress object's NAT behaviour; nil if its annotations set
// none.
func natCondition(annotations map[string]string) *metav1.Condition {
	_, mapping := annotations[submarinerv1.AnnotationNATMapping]
	_, filtering := annotations[submarinerv1.AnnotationNATFiltering]
	if !mapping && !filtering {
		return nil
	}
	c := &metav1.Condition{Type: submarinerv1.ConditionNATBehavior, Status: metav1.ConditionTrue, Reason: submarinerv1.ReasonNATBehaviorSet}
	nat, err := topology.ParseNATBehavior(annotations)
	if c.Message = nat.String(); err != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, submarinerv1.ReasonInvalidInput, fmt.Sprintf("%v; until then %s", err, nat)
	}
	return c
}

// exhausted is the message of an allocation that failed: the shortage and its remedies.
func (s supply) exhausted(count, have int) string {
	return fmt.Sprintf("%d of %d addresses are allocated, the GlobalCIDR %s has %d and not enough of them are free: "+
		"delete ServiceExports or egress IPs that are not needed (an address is free again %d s later), or join with a larger --globalnet-cidr",
		have, count, s.cidr, s.size, int(AddressRest.Seconds()))
}

func allocated() metav1.Condition {
	return metav1.Condition{
		Type: submarinerv1.ConditionAllocated, Status: metav1.ConditionTrue,
		Reason: submarinerv1.ReasonSuccess, Message: "Allocated global IP(s)",
	}
}

func notAllocated(reason, message string) metav1.Condition {
	return metav1.Condition{Type: submarinerv1.ConditionAllocated, Status: metav1.ConditionFalse, Reason: reason, Message: message}
}
