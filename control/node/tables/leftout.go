package tables

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// LeftOut is a pod that does not get what it is to have, because of its device.
type LeftOut struct {
	Pod types.NamespacedName
	UID types.UID
	// Connected: the pod reaches other clusters all the same.
	Connected bool
	// Reason is a message for an operator.
	Reason string
}

// leaveOut records a pod. One that is being deleted may have lost its device.
func (b *builder) leaveOut(p *corev1.Pod, connected bool, reason string) {
	if p.DeletionTimestamp == nil {
		b.out.LeftOut = append(b.out.LeftOut, LeftOut{named(p.Namespace, p.Name), p.UID, connected, reason})
	}
}

// DescribeLeftOut returns a sentence with the number of pods and the names of the first ones; empty
// for none.
func DescribeLeftOut(pods []LeftOut) string {
	const named = 3
	if len(pods) == 0 {
		return ""
	}
	var names []string
	for i, p := range pods {
		if i == named {
			names = append(names, fmt.Sprintf("and %d more", len(pods)-named))
			break
		}
		names = append(names, fmt.Sprintf("%s (%s)", p.Pod, p.Reason))
	}
	return fmt.Sprintf("pods of this node that are left out (%d): %s", len(pods), strings.Join(names, "; "))
}
