package kinds

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// Kinds that make an API server call a Service.
var (
	validatingWebhooks = schema.GroupKind{Group: "admissionregistration.k8s.io", Kind: "ValidatingWebhookConfiguration"}
	mutatingWebhooks   = schema.GroupKind{Group: "admissionregistration.k8s.io", Kind: "MutatingWebhookConfiguration"}
	apiServices        = schema.GroupKind{Group: "apiregistration.k8s.io", Kind: "APIService"}
	definitions        = schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}
)

// setAside is the value of AnnotationMembersOnly: what Inert has taken from a template.
type setAside struct {
	// Spec are the fields of an APIService that lead to its Service.
	Spec map[string]any `json:"spec,omitempty"`
	// Served are the versions of a CRD that the hub does not serve, and Versions is the hash of
	// spec.versions without them: with another one the user has written the list.
	Served   []string `json:"served,omitempty"`
	Versions string   `json:"versions,omitempty"`
}

// toService are the fields of an APIService that a local one must not have.
var toService = []string{"service", "caBundle", "insecureSkipTLSVerify"}

// Inert changes a template that would make the hub's API server call a Service, which exists in
// members only, and returns what has changed in words; "": nothing. It can be repeated, also after
// its user has written the template again. ForMembers undoes it.
//
//   - An admission webhook gets a match condition that never holds.
//   - An APIService becomes a local one, for which the aggregator calls nothing.
//   - Of a CRD with a conversion webhook only the stored version is served: no object is converted.
func Inert(t *unstructured.Unstructured) (string, error) {
	var what string
	var err error
	switch t.GroupVersionKind().GroupKind() {
	case validatingWebhooks, mutatingWebhooks:
		what, err = inertWebhooks(t)
	case apiServices:
		what, err = inertAPIService(t)
	case definitions:
		what, err = inertDefinition(t)
	}
	if err != nil {
		return "", failed("keep the hub from calling the Service of", t, err)
	}
	return what, nil
}

// ForMembers gives an object that was made of a template what Inert has changed.
func ForMembers(obj *unstructured.Unstructured) error {
	switch obj.GroupVersionKind().GroupKind() {
	case validatingWebhooks, mutatingWebhooks:
		all, _ := obj.Object["webhooks"].([]any) // else there are none
		for _, w := range all {
			if m, ok := w.(map[string]any); ok {
				setNever(m, false)
			}
		}
		return nil
	case apiServices, definitions:
	default:
		return nil
	}
	aside, err := readAside(obj)
	if err != nil {
		return failed("give members the Service of", obj, err)
	}
	writeAside(obj, setAside{}) // an empty one is removed
	spec, ok := obj.Object["spec"].(map[string]any)
	if !ok {
		return nil
	}
	if _, there := spec["service"]; !there {
		for field, value := range aside.Spec {
			spec[field] = value
		}
	}
	if aside.Versions != "" && aside.Versions == versionsHash(spec) {
		serve(spec, aside.Served, true)
	}
	return nil
}

func inertWebhooks(t *unstructured.Unstructured) (string, error) {
	all, _, err := unstructured.NestedSlice(t.Object, "webhooks")
	if err != nil {
		return "", err
	}
	var names []string
	changed := false
	for _, w := range all {
		m, ok := w.(map[string]any)
		if !ok {
			continue
		}
		of := callsService(m)
		if setNever(m, of) {
			changed = true
			if of {
				names = append(names, nameOf(m))
			}
		}
	}
	if !changed {
		return "", nil
	}
	t.Object["webhooks"] = all
	if len(names) == 0 {
		return "its webhooks have URLs: they lack the match condition " + policyv1alpha1.MembersOnlyCondition, nil
	}
	return fmt.Sprintf("its webhooks act in members only: %s have the match condition %s",
		strings.Join(names, ", "), policyv1alpha1.MembersOnlyCondition), nil
}

// callsService reports whether a webhook, of admission or of a conversion, is a Service.
func callsService(webhook map[string]any) bool {
	service, found, err := unstructured.NestedMap(webhook, "clientConfig", "service")
	return err == nil && found && service != nil
}

// setNever sets or removes the match condition that never holds. It returns false if that was so
// before.
func setNever(webhook map[string]any, set bool) bool {
	have, _ := webhook["matchConditions"].([]any) // else there are none
	never := map[string]any{"name": policyv1alpha1.MembersOnlyCondition, "expression": "false"}
	out := slices.Clone(have)
	out = slices.DeleteFunc(out, func(c any) bool { return nameOf(c) == policyv1alpha1.MembersOnlyCondition })
	if set {
		i := slices.IndexFunc(have, func(c any) bool { return nameOf(c) == policyv1alpha1.MembersOnlyCondition })
		if i >= 0 {
			if m, _ := have[i].(map[string]any); m["expression"] == never["expression"] { // nil has no name
				return false
			}
		}
		out = append(out, never)
	} else if len(out) == len(have) {
		return false
	}
	if len(out) == 0 {
		delete(webhook, "matchConditions")
	} else {
		webhook["matchConditions"] = out
	}
	return true
}

func inertAPIService(t *unstructured.Unstructured) (string, error) {
	spec, found, err := unstructured.NestedMap(t.Object, "spec")
	if err != nil || !found || spec["service"] == nil {
		return "", err
	}
	aside := setAside{Spec: map[string]any{}}
	for _, field := range toService {
		if value, ok := spec[field]; ok {
			aside.Spec[field] = value
			delete(spec, field)
		}
	}
	t.Object["spec"] = spec
	writeAside(t, aside)
	return "its API is served in members only: the hub has it without its Service, and may show the group as stale " +
		"until its API server restarts; write these fields into the annotation " +
		policyv1alpha1.AnnotationMembersOnly + " instead to avoid that", nil
}

func inertDefinition(t *unstructured.Unstructured) (string, error) {
	spec, found, err := unstructured.NestedMap(t.Object, "spec")
	if err != nil || !found {
		return "", err
	}
	before, err := readAside(t)
	if err != nil {
		return "", err
	}
	ours := before.Versions != "" && before.Versions == versionsHash(spec)
	conversion, _, err := unstructured.NestedMap(spec, "conversion", "webhook")
	if err != nil {
		return "", err
	}
	var what string
	aside := setAside{}
	switch {
	case callsService(conversion) && ours:
		return "", nil
	case callsService(conversion):
		if aside.Served = otherServed(spec); len(aside.Served) > 0 {
			serve(spec, aside.Served, false)
			aside.Versions = versionsHash(spec)
			what = fmt.Sprintf("the versions %s are served in members only, as their conversion webhook is there: "+
				"apply manifests in the stored version", strings.Join(aside.Served, ", "))
		}
	case ours:
		serve(spec, before.Served, true)
		what = "all of its versions are served again: it has no conversion webhook in members"
	}
	if what == "" && before.Versions != "" {
		what = "its versions are served as it has them"
	}
	if what != "" {
		t.Object["spec"] = spec
		writeAside(t, aside)
	}
	return what, nil
}

// otherServed are the versions of a CRD that are served and not stored.
func otherServed(spec map[string]any) (names []string) {
	all, _ := spec["versions"].([]any) // the API server has validated it
	for _, v := range all {
		m, _ := v.(map[string]any) // likewise
		if m["served"] == true && m["storage"] != true {
			names = append(names, nameOf(m))
		}
	}
	return names
}

// serve sets whether versions of a CRD are served.
func serve(spec map[string]any, names []string, is bool) {
	all, _ := spec["versions"].([]any) // the API server has validated it
	for _, v := range all {
		if m, ok := v.(map[string]any); ok && slices.Contains(names, nameOf(m)) {
			m["served"] = is
		}
	}
}

func versionsHash(spec map[string]any) string {
	raw, err := json.Marshal(spec["versions"]) // keys are sorted
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:8])
}

func readAside(obj *unstructured.Unstructured) (a setAside, err error) {
	if text := obj.GetAnnotations()[policyv1alpha1.AnnotationMembersOnly]; text != "" {
		if err := json.Unmarshal([]byte(text), &a); err != nil {
			return a, fmt.Errorf("annotation %s: %w: remove it and apply the object again",
				policyv1alpha1.AnnotationMembersOnly, err)
		}
	}
	return a, nil
}

func writeAside(obj *unstructured.Unstructured, a setAside) {
	annotations := obj.GetAnnotations()
	raw, err := json.Marshal(a)
	if err != nil || string(raw) == "{}" {
		delete(annotations, policyv1alpha1.AnnotationMembersOnly)
	} else {
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[policyv1alpha1.AnnotationMembersOnly] = string(raw)
	}
	if len(annotations) == 0 {
		annotations = nil
	}
	obj.SetAnnotations(annotations)
}
