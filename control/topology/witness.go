package topology

import (
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

// ReportLife is the age at which the RouteAgent of a node counts as left behind by a daemon that
// does not run any more. A daemon writes its RouteAgent when something changes, and at the latest
// every 5 to 6 minutes.
const ReportLife = 12 * time.Minute

// Report is what the daemon of one node observes of gateways and clusters.
type Report struct {
	Node string
	// Witness: a gateway answers the node, or there is none that could. Without an answer the fault
	// may be the node's own, such as a closed UDP port 4800, so that it has no verdict on clusters.
	Witness bool
	// Unreachable are the clusters that no gateway reaches; Silent are the gateways of the own
	// cluster that do not answer the node.
	Unreachable, Silent []string
}

// ReportOf reads a RouteAgent, of which the metadata suffices; ok is false if it is left behind.
func ReportOf(agent metav1.Object, now time.Time) (r Report, ok bool) {
	annotations := agent.GetAnnotations()
	seconds, err := strconv.ParseInt(annotations[submarinerv1.AnnotationUpdated], 10, 64)
	if err != nil || now.Sub(time.Unix(seconds, 0)) > ReportLife {
		return Report{}, false
	}
	r = Report{Node: agent.GetName(), Silent: listed(annotations[submarinerv1.AnnotationSilentGateways])}
	text, witness := annotations[submarinerv1.AnnotationUnreachableClusters]
	r.Witness, r.Unreachable = witness, listed(text)
	return r, true
}

func listed(text string) []string {
	return slices.DeleteFunc(strings.Split(text, ","), func(s string) bool { return s == "" })
}

// SameReport reports whether two versions of a RouteAgent are the same report.
func SameReport(was, is metav1.Object) bool {
	a, b := was.GetAnnotations(), is.GetAnnotations()
	before, witnessed := a[submarinerv1.AnnotationUnreachableClusters]
	after, witnesses := b[submarinerv1.AnnotationUnreachableClusters]
	return witnessed == witnesses && before == after &&
		a[submarinerv1.AnnotationSilentGateways] == b[submarinerv1.AnnotationSilentGateways]
}

// Majority returns the clusters that are unreachable by the reports of more than half of the
// witnesses, sorted. Where the votes are equal, the former verdict stands. known is false without a
// witness: then the whole former verdict stands, as a lack of information proves nothing.
func Majority(reports []Report, former []string) (unreachable []string, known bool) {
	witnesses, votes := 0, map[string]int{}
	for _, r := range reports {
		if !r.Witness {
			continue
		}
		witnesses++
		for _, id := range r.Unreachable {
			votes[id]++
		}
	}
	unreachable = []string{}
	for id, n := range votes {
		if 2*n > witnesses || 2*n == witnesses && slices.Contains(former, id) {
			unreachable = append(unreachable, id)
		}
	}
	slices.Sort(unreachable)
	return unreachable, witnesses > 0
}

// Silent returns the gateways of the own cluster that answer no witness. What a gateway reports of
// itself does not count.
func Silent(reports []Report) map[string]bool {
	witnesses, votes := map[string]bool{}, map[string]int{}
	for _, r := range reports {
		if !r.Witness {
			continue
		}
		witnesses[r.Node] = true
		for _, gateway := range r.Silent {
			if gateway != r.Node {
				votes[gateway]++
			}
		}
	}
	out := map[string]bool{}
	for gateway, n := range votes {
		others := len(witnesses)
		if witnesses[gateway] {
			others--
		}
		if n == others {
			out[gateway] = true
		}
	}
	return out
}

// NodeReady reports whether the node's kubelet renews its lease. A node without the condition
// counts as ready.
func NodeReady(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return true
}
