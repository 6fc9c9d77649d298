package kinds

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1alpha1 "github.com/pelago-net/pelago/api/config/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
)

// Bytes that an API server takes.
const (
	rulesMaxMessage = 32768
	maxEvent        = 1024
)

// accepted is the condition of KindRules.
func accepted(v Verdict, generation int64) metav1.Condition {
	c := metav1.Condition{
		Type: pelagov1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: pelagov1alpha1.ReasonAccepted,
		Message: "all rules compile and are used", ObservedGeneration: generation,
	}
	var problems []string
	for _, err := range v.Invalid {
		problems = append(problems, err.Error())
		c.Status, c.Reason = metav1.ConditionFalse, pelagov1alpha1.ReasonInvalidExpression
	}
	for _, conflict := range v.Conflicts {
		problems = append(problems, conflict)
		if c.Status == metav1.ConditionTrue {
			c.Status, c.Reason = metav1.ConditionFalse, pelagov1alpha1.ReasonConflict
		}
	}
	if len(problems) > 0 {
		c.Message = clipMessage(strings.Join(problems, "; "), rulesMaxMessage)
	}
	return c
}

// notRun is the condition of a customization in Lua: what takes the place of each of its scripts.
func notRun(c *configv1alpha1.ResourceInterpreterCustomization) metav1.Condition {
	is, rules := c.Spec.Customizations, []string{}
	for _, x := range []struct {
		script        *configv1alpha1.Script
		field, become string
	}{
		{is.Retention, "retention", "rules.retain"},
		{is.ReplicaResource, "replicaResource", "rules.replicas and rules.requirements"},
		{is.ComponentResource, "componentResource", "nothing yet"},
		{is.ReplicaRevision, "replicaRevision", "rules.revise"},
		{is.StatusReflection, "statusReflection", "rules.reflect"},
		{is.StatusAggregation, "statusAggregation", "rules.aggregate"},
		{is.HealthInterpretation, "healthInterpretation", "rules.healthy"},
		{is.DependencyInterpretation, "dependencyInterpretation", "rules.dependencies"},
	} {
		if x.script != nil {
			rules = append(rules, x.field+" becomes "+x.become)
		}
	}
	return metav1.Condition{
		Type: configv1alpha1.ConditionAccepted, Status: metav1.ConditionFalse, Reason: configv1alpha1.ReasonNotSupportedYet,
		Message: fmt.Sprintf("Lua scripts are not run yet: %s %s is read and changed without them. Write them in CEL, as KindRules "+
			"(pelago.io/v1alpha1) for this kind: %s; `kubectl explain kindrules.spec.rules` says what each gives",
			c.Spec.Target.APIVersion, c.Spec.Target.Kind, strings.Join(rules, ", ")),
		ObservedGeneration: c.Generation,
	}
}

// clip shortens a text to n bytes.
func clipMessage(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n-len("…")], "") + "…"
}
