package policy

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

func TestAccept(t *testing.T) {
	var status policyv1alpha1.PolicyStatus
	words := func() string {
		c := meta.FindStatusCondition(status.Conditions, "Accepted")
		return string(c.Status) + " " + c.Reason + " " + c.Message
	}
	bad := field.ErrorList{
		field.Invalid(field.NewPath("spec", "resourceSelectors").Index(0).Child("namespace"), "other", "must be the policy's"),
		field.Required(field.NewPath("spec", "x"), "say it"),
	}
	for i, step := range []struct {
		found      field.ErrorList
		generation int64
		changed    bool
		want       string
	}{
		{nil, 1, true, "True Accepted "},
		{nil, 1, false, "True Accepted "},
		{nil, 2, true, "True Accepted "}, // it is said of the new generation
		{bad, 3, true, `False Invalid spec.resourceSelectors[0].namespace: Invalid value: "other": must be the policy's; spec.x: Required value: say it`},
		{bad, 3, false, `False Invalid spec.resourceSelectors[0].namespace: Invalid value: "other": must be the policy's; spec.x: Required value: say it`},
		{nil, 4, true, "True Accepted "},
	} {
		if got := accept(&status, step.generation, step.found); got != step.changed {
			t.Errorf("step %d: changed %v", i, got)
		}
		if diff := cmp.Diff(step.want, words()); diff != "" {
			t.Errorf("step %d: -want +got\n%s", i, diff)
		}
	}
	long := field.ErrorList{field.Required(field.NewPath("x"), strings.Repeat("é", longestMessage))}
	if got := message(long); len(got) > longestMessage || !strings.HasSuffix(got, "é") {
		t.Errorf("a message of %d bytes, which ends with %q", len(got), got[len(got)-2:])
	}
}

func TestKindsOf(t *testing.T) {
	got := kindsOf([]policyv1alpha1.ResourceSelector{
		{APIVersion: "apps/v1", Kind: "Deployment", Name: "a"}, {APIVersion: "v1", Kind: "Pod"}, {APIVersion: "apps/v1", Kind: "Deployment", Name: "b"}})
	want := []schema.GroupVersionKind{{Group: "apps", Version: "v1", Kind: "Deployment"}, {Version: "v1", Kind: "Pod"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}
