package execute

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	configv1alpha1 "github.com/pelago-net/pelago/api/config/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	"github.com/pelago-net/pelago/control/kinds"
)

// TestImmutable: an error is one of a change in place only if each of its causes is.
func TestImmutable(t *testing.T) {
	path, kind := field.NewPath("spec", "x"), schema.GroupKind{Kind: "X"}
	change, invalid := field.Invalid(path, 1, "field is immutable"), field.Invalid(path, 1, "must be greater than zero")
	for name, tt := range map[string]struct {
		err  error
		want bool
	}{
		"none":               {nil, false},
		"no answer":          {errors.New("field is immutable"), false},
		"an immutable field": {apierrors.NewInvalid(kind, "a", field.ErrorList{change}), true},
		"an invalid one":     {apierrors.NewInvalid(kind, "a", field.ErrorList{invalid}), false},
		"both":               {apierrors.NewInvalid(kind, "a", field.ErrorList{change, invalid}), false},
		"an address":         {apierrors.NewInvalid(kind, "a", field.ErrorList{field.Invalid(path, "None", "may not change once set")}), true},
		"a role":             {apierrors.NewInvalid(kind, "a", field.ErrorList{field.Invalid(path, "a", "cannot change roleRef")}), true},
		"a stateful set":     {apierrors.NewInvalid(kind, "a", field.ErrorList{field.Forbidden(path, "updates to statefulset spec for fields other than 'replicas' are forbidden")}), true},
		"a pod":              {apierrors.NewInvalid(kind, "a", field.ErrorList{field.Forbidden(path, "pod updates may not change fields other than `spec.containers[*].image`")}), true},
		"a conflict":         {apierrors.NewConflict(schema.GroupResource{}, "a", errors.New("immutable")), false},
	} {
		if got := immutable(tt.err); got != tt.want {
			t.Errorf("%s: %t, want %t", name, got, tt.want)
		}
	}
}

// TestRecreated: an object whose template was replaced by one that it cannot become is deleted and
// created again; with the same template, or where deletion loses data, it stays.
func TestRecreated(t *testing.T) {
	const (
		secret     = `{apiVersion: v1, kind: Secret, metadata: {name: x, namespace: NS, annotations: {resourcetemplate.karmada.io/uid: UID}}, type: TYPE}`
		service    = `{apiVersion: v1, kind: Service, metadata: {name: x, namespace: NS, annotations: {resourcetemplate.karmada.io/uid: UID}}, spec: {IP, selector: {a: b}, ports: [{port: 80}]}}`
		deployment = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: x, namespace: NS, annotations: {resourcetemplate.karmada.io/uid: UID}},
			spec: {selector: {matchLabels: {a: LABEL}}, template: {metadata: {labels: {a: LABEL}}, spec: {containers: [{name: c, image: i}]}}}}`
		role = `{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: x, namespace: NS, annotations: {resourcetemplate.karmada.io/uid: UID}},
			roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: LABEL}}`
		claim = `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: x, namespace: NS, annotations: {resourcetemplate.karmada.io/uid: UID}},
			spec: {accessModes: [MODE], resources: {requests: {storage: 1Gi}}}}`
	)
	with := func(manifest string, values ...string) string {
		return strings.NewReplacer(values...).Replace(manifest)
	}
	preserve := func(w *workv1alpha1.Work) { w.Spec.PreserveResourcesOnDeletion = ptr.To(true) }
	for _, tt := range []struct {
		name          string
		before, after string
		change        func(*workv1alpha1.Work)
		refused       []string // nil: it is created again
	}{
		{"Secret of another type", with(secret, "TYPE", "Opaque", "UID", "u1"), with(secret, "TYPE", "example.com/x", "UID", "u2"), nil, nil},
		{"Deployment with another selector", with(deployment, "LABEL", "b", "UID", "u1"), with(deployment, "LABEL", "c", "UID", "u2"), nil, nil},
		{"RoleBinding of another role", with(role, "LABEL", "b", "UID", "u1"), with(role, "LABEL", "c", "UID", "u2"), nil, nil},
		{"Service that is headless no more", with(service, "IP", "clusterIP: None", "UID", "u1"), with(service, "IP", "type: ClusterIP", "UID", "u2"), nil, nil},
		{"Service that becomes headless", with(service, "IP", "type: ClusterIP", "UID", "u1"), with(service, "IP", "clusterIP: None", "UID", "u2"), nil, nil},
		{"the same template", with(deployment, "LABEL", "b", "UID", "u1"), with(deployment, "LABEL", "c", "UID", "u1"), nil, []string{"immutable", "delete the object in the cluster"}},
		{"the same template of a headless Service", with(service, "IP", "clusterIP: None", "UID", "u1"), with(service, "IP", "type: ClusterIP", "UID", "u1"), nil, []string{"spec.clusterIP is None"}},
		{"preserved on deletion", with(secret, "TYPE", "Opaque", "UID", "u1"), with(secret, "TYPE", "example.com/x", "UID", "u2"), preserve, []string{"immutable"}},
		{"a claim", with(claim, "MODE", "ReadWriteOnce", "UID", "u1"), with(claim, "MODE", "ReadWriteMany", "UID", "u2"), nil, []string{"immutable"}},
		{"an object that is invalid by itself", with(deployment, "LABEL", "b", "UID", "u1"),
			with(deployment, "LABEL", "c", "UID", "u2", "image: i", `image: ""`), nil, []string{"image"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, server.Config(t))
			l.run()
			l.work("w", tt.before, func(w *workv1alpha1.Work) {
				if tt.change != nil {
					tt.change(w)
				}
			})
			l.applied("w")
			was := l.there(tt.before)
			l.manifest("w", tt.after)
			if tt.refused != nil {
				l.failed("w", tt.refused...)
				if is := l.there(tt.before); is.GetUID() != was.GetUID() {
					t.Error("it was created again")
				}
				return
			}
			l.applied("w")
			is := l.there(tt.after)
			if is.GetUID() == was.GetUID() {
				t.Error("it is the former object")
			}
			if is.GetKind() == "Service" && (value(is, "spec", "clusterIP") == corev1.ClusterIPNone) != strings.Contains(tt.after, "None") {
				t.Errorf("clusterIP %s", value(is, "spec", "clusterIP"))
			}
			l.heard("deleted in the cluster", "template was replaced")
		})
	}
}

// TestRecreatedWhenGone: an object whose finalizers delay the deletion is waited for.
func TestRecreatedWhenGone(t *testing.T) {
	const secret = `{apiVersion: v1, kind: Secret, metadata: {name: x, namespace: NS, annotations: {resourcetemplate.karmada.io/uid: u1}}, type: Opaque}`
	l := newLab(t, server.Config(t))
	l.run()
	l.work("w", secret)
	l.applied("w")
	was := l.patch(secret, "member", `{"metadata": {"finalizers": ["example.com/wait"]}}`)
	next := strings.NewReplacer("u1", "u2", "Opaque", "example.com/x").Replace(secret)
	l.manifest("w", next)
	l.failed("w", "deleted to be made anew", "example.com/wait")
	l.patch(secret, "member", `{"metadata": {"finalizers": null}}`)
	l.applied("w")
	if is := l.there(next); is.GetUID() == was.GetUID() {
		t.Error("it is the former object")
	}
}

// TestFilledIn: a hub that no longer sends what its API server had filled in leaves the member's
// object as it is, also where the field cannot change.
func TestFilledIn(t *testing.T) {
	for name, tt := range map[string]struct {
		before, after string
		field         []string
	}{
		"a storage class": {
			`{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: x, namespace: NS}, spec: {storageClassName: silver, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`,
			`{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: x, namespace: NS, annotations: {pelago.io/member-owned: /spec/storageClassName}}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`,
			[]string{"spec"},
		},
		"ports": {
			`{apiVersion: v1, kind: Service, metadata: {name: x, namespace: NS}, spec: {type: NodePort, selector: {a: b}, ipFamilies: [IPv4], ipFamilyPolicy: SingleStack, ports: [{name: a, port: 80, nodePort: 31999}, {name: b, port: 81, nodePort: 31998}]}}`,
			`{apiVersion: v1, kind: Service, metadata: {name: x, namespace: NS, annotations: {pelago.io/member-owned: "/spec/ipFamilies,/spec/ipFamilyPolicy,/spec/ports/0/nodePort,/spec/ports/1/nodePort"}}, spec: {type: NodePort, selector: {a: b}, ports: [{name: a, port: 80}, {name: b, port: 81}]}}`,
			[]string{"spec"},
		},
		"a class of Ingresses": {
			`{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: x, namespace: NS}, spec: {ingressClassName: silver, defaultBackend: {service: {name: x, port: {number: 80}}}}}`,
			`{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: x, namespace: NS, annotations: {pelago.io/member-owned: /spec/ingressClassName}}, spec: {defaultBackend: {service: {name: x, port: {number: 80}}}}}`,
			[]string{"spec"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, server.Config(t))
			l.run()
			l.work("w", tt.before)
			l.applied("w")
			was := l.there(tt.before)
			l.manifest("w", tt.after)
			l.applied("w")
			is := l.there(tt.after)
			if value(was, tt.field...) != value(is, tt.field...) || was.GetUID() != is.GetUID() {
				t.Errorf("%s, then %s", value(was, tt.field...), value(is, tt.field...))
			}
		})
	}
}

// TestReferencesOfAccounts: a pull Secret that the hub no longer names leaves the member; the
// member's own stays.
func TestReferencesOfAccounts(t *testing.T) {
	const account = `{apiVersion: v1, kind: ServiceAccount, metadata: {name: x, namespace: NS}, imagePullSecrets: [{name: old}, {name: new}], secrets: [{name: old-key}, {name: new-key}]}`
	l := newLab(t, server.Config(t))
	l.run()
	l.work("w", account)
	l.applied("w")
	l.patch(account, "member", `{"imagePullSecrets": [{"name": "old"}, {"name": "new"}, {"name": "member"}], "secrets": [{"name": "old-key"}, {"name": "new-key"}, {"name": "member-key"}]}`)
	names := func() string {
		u := l.there(account)
		var out []string
		for _, f := range []string{"imagePullSecrets", "secrets"} {
			list, _, err := unstructured.NestedSlice(u.Object, f)
			if err != nil {
				t.Fatal(err)
			}
			for _, of := range list {
				out = append(out, of.(map[string]any)["name"].(string))
			}
		}
		return strings.Join(out, " ")
	}
	for _, tt := range []struct{ manifest, want string }{
		{strings.NewReplacer("{name: old}, ", "", "{name: old-key}, ", "").Replace(account), "new member new-key member-key"},
		{`{apiVersion: v1, kind: ServiceAccount, metadata: {name: x, namespace: NS}}`, "member member-key"},
	} {
		l.manifest("w", tt.manifest)
		l.applied("w")
		if got := names(); got != tt.want {
			t.Errorf("%s, want %s", got, tt.want)
		}
	}
}

// TestRetainTheObservedObject: a retention that returns what it observed, as scripts for Karmada
// do.
func TestRetainTheObservedObject(t *testing.T) {
	l := newLab(t, server.Config(t))
	c := configv1alpha1.ResourceInterpreterCustomization{ObjectMeta: metav1.ObjectMeta{Name: "keep"}}
	c.Spec.Target = configv1alpha1.CustomizationTarget{APIVersion: "v1", Kind: "ConfigMap"}
	c.Spec.Customizations.Retention = &configv1alpha1.Script{LuaScript: `function Retain(desired, observed)
  if observed.metadata.annotations ~= nil and observed.metadata.annotations["example.com/keep"] == "true" then return observed end
  return desired
end`}
	custom := kinds.NewCustom()
	if verdicts := custom.SetScripts([]configv1alpha1.ResourceInterpreterCustomization{c}); len(verdicts) > 0 {
		t.Fatal(verdicts)
	}
	custom.Set(nil)
	l.run(func(o *Options) { o.Interpreter = custom.Interpreter() })
	l.work("w", configMap)
	l.applied("w")
	l.patch(configMap, "member", `{"metadata": {"annotations": {"example.com/keep": "true"}}, "data": {"own": "x"}}`)
	edited := func(value string) string {
		u := l.object(configMap)
		if err := unstructured.SetNestedField(u.Object, value, "data", "more"); err != nil {
			t.Fatal(err)
		}
		raw, err := u.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	l.manifest("w", edited("1"))
	l.applied("w")
	if u := l.there(configMap); value(u, "data", "own") != "x" || value(u, "data", "more") != "-" {
		t.Errorf("data %s", value(u, "data"))
	}
	l.patch(configMap, "member", `{"metadata": {"annotations": {"example.com/keep": null}}}`)
	l.manifest("w", edited("2"))
	l.applied("w")
	if u := l.there(configMap); value(u, "data", "more") != "2" {
		t.Errorf("data %s", value(u, "data"))
	}
}
