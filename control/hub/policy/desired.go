package policy

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// longestMessage is that of a condition's message, in bytes.
const longestMessage = 32768

// accept sets the condition Accepted from the result of Validate. It reports whether that changed anything.
func accept(status *policyv1alpha1.PolicyStatus, generation int64, found field.ErrorList) (changed bool) {
	c := metav1.Condition{
		Type: policyv1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: policyv1alpha1.ReasonAccepted,
		ObservedGeneration: generation,
	}
	if len(found) > 0 {
		c.Status, c.Reason = metav1.ConditionFalse, policyv1alpha1.ReasonInvalid
		c.Message = message(found)
	}
	return meta.SetStatusCondition(&status.Conditions, c)
}

// message lists fields and reasons.
func message(found field.ErrorList) string {
	var parts []string
	for _, err := range found {
		parts = append(parts, err.Error())
	}
	return clip(strings.Join(parts, "; "))
}

// clip cuts a text to the length that a condition's message may have.
func clip(text string) string {
	if len(text) > longestMessage {
		text = strings.ToValidUTF8(text[:longestMessage], "")
	}
	return text
}

// kindsOf are the kinds that selectors name, each once.
func kindsOf(selectors []policyv1alpha1.ResourceSelector) []schema.GroupVersionKind {
	var out []schema.GroupVersionKind
	seen := map[schema.GroupVersionKind]bool{}
	for _, s := range selectors {
		gvk := schema.FromAPIVersionAndKind(s.APIVersion, s.Kind)
		if !seen[gvk] {
			seen[gvk] = true
			out = append(out, gvk)
		}
	}
	return out
}
