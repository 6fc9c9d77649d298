package policy

import (
	"testing"

	"pgregory.net/rapid"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

func TestParseImage(t *testing.T) {
	for ref, want := range map[string]image{
		"nginx":                                {"", "nginx", ""},
		"nginx:1.27":                           {"", "nginx", ":1.27"},
		"library/nginx":                        {"", "library/nginx", ""},
		"localhost/nginx:1":                    {"localhost", "nginx", ":1"},
		"registry.example/team/app":            {"registry.example", "team/app", ""},
		"registry.example:5000/team/app:v1":    {"registry.example:5000", "team/app", ":v1"},
		"registry:5000/app@sha256:0123":        {"registry:5000", "app", "@sha256:0123"},
		"registry.example/app:v1@sha256:01234": {"registry.example", "app", ":v1@sha256:01234"},
		"":                                     {},
	} {
		if got := parseImage(ref); got != want {
			t.Errorf("%q: %+v, want %+v", ref, got, want)
		}
	}
}

func TestImageRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ref := rapid.StringMatching(`([a-z]{1,5}(\.[a-z]{2,3}|:[0-9]{2,4})/)?[a-z]{1,6}(/[a-z]{1,6})?(:[a-z0-9.]{1,8}|@sha256:[0-9a-f]{8})?`).Draw(t, "reference")
		if got := parseImage(ref).String(); got != ref {
			t.Fatalf("%q became %q", ref, got)
		}
	})
}

func TestChangeImage(t *testing.T) {
	const ref = "registry.example/team/app:v1"
	for _, c := range []struct {
		ref       string
		component policyv1alpha1.ImageComponent
		operator  policyv1alpha1.OverriderOperator
		value     string
		want      string
	}{
		{ref, policyv1alpha1.Registry, policyv1alpha1.OverriderOpReplace, "mirror:5000", "mirror:5000/team/app:v1"},
		{ref, policyv1alpha1.Registry, policyv1alpha1.OverriderOpAdd, ":5000", "registry.example:5000/team/app:v1"},
		{ref, policyv1alpha1.Registry, policyv1alpha1.OverriderOpRemove, "", "team/app:v1"},
		{"nginx", policyv1alpha1.Registry, policyv1alpha1.OverriderOpAdd, "mirror.example", "mirror.example/nginx"},
		{ref, policyv1alpha1.Repository, policyv1alpha1.OverriderOpReplace, "other", "registry.example/other:v1"},
		{ref, policyv1alpha1.Repository, policyv1alpha1.OverriderOpAdd, "-arm", "registry.example/team/app-arm:v1"},
		{ref, policyv1alpha1.Tag, policyv1alpha1.OverriderOpReplace, "v2", "registry.example/team/app:v2"},
		{ref, policyv1alpha1.Tag, policyv1alpha1.OverriderOpAdd, "-alpine", "registry.example/team/app:v1-alpine"},
		{ref, policyv1alpha1.Tag, policyv1alpha1.OverriderOpRemove, "", "registry.example/team/app"},
		{ref, policyv1alpha1.Tag, policyv1alpha1.OverriderOpReplace, "sha256:0123", "registry.example/team/app@sha256:0123"},
		{"nginx", policyv1alpha1.Tag, policyv1alpha1.OverriderOpAdd, "1.27", "nginx:1.27"},
		{"nginx@sha256:0123", policyv1alpha1.Tag, policyv1alpha1.OverriderOpReplace, "1.27", "nginx:1.27"},
		{"nginx:1@sha256:0123", policyv1alpha1.Tag, policyv1alpha1.OverriderOpReplace, "1.27", "nginx:1.27"},
		{"nginx:1@sha256:0123", policyv1alpha1.Tag, policyv1alpha1.OverriderOpAdd, "-alpine", "nginx:1-alpine"},
		{"nginx:1@sha256:0123", policyv1alpha1.Tag, policyv1alpha1.OverriderOpRemove, "", "nginx"},
		{"nginx:1@sha256:0123", policyv1alpha1.Repository, policyv1alpha1.OverriderOpAdd, "-arm", "nginx-arm:1@sha256:0123"},
	} {
		o := policyv1alpha1.ImageOverrider{Component: c.component, Operator: c.operator, Value: c.value}
		if got := changeImage(c.ref, o); got != c.want {
			t.Errorf("%s: %s %s %q: %s, want %s", c.ref, c.operator, c.component, c.value, got, c.want)
		}
	}
}
