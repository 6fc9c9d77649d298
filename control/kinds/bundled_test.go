package kinds

import (
	"testing"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
)

func TestBundledRulesCompile(t *testing.T) {
	all, err := readBundled()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[pelagov1alpha1.RuledKind]string{}
	for _, r := range all {
		if r.APIVersion != pelagov1alpha1.GroupVersion.String() || r.Kind != "KindRules" || r.Name == "" {
			t.Errorf("%s %s %q are no KindRules that a user can apply", r.APIVersion, r.Kind, r.Name)
		}
		for _, k := range r.Spec.Kinds {
			if other, twice := seen[k]; twice {
				t.Errorf("%s and %s have rules for %v", other, r.Name, k)
			}
			seen[k] = r.Name
		}
		_, errs := compileRules(r.Name, r.Spec.Rules)
		for _, err := range errs {
			t.Error(err)
		}
	}
	if len(seen) < 30 {
		t.Errorf("rules for %d kinds only", len(seen))
	}
}
