package api_test

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// defaults are all fields that an API server adds, by the end of their path.
var defaults = map[string]any{
	"spec.priority":                           int64(0),
	"spec.preemption":                         "Never",
	"spec.schedulerName":                      "default-scheduler",
	"spec.conflictResolution":                 "Abort",
	"application.purgeMode":                   "Gracefully",
	"cluster.purgeMode":                       "Gracefully",
	"decisionConditions.tolerationSeconds":    int64(300),
	"replicaScheduling.replicaSchedulingType": "Divided",
	"rules[0].suspend":                        false,
	"rules[0].successfulHistoryLimit":         int64(3),
	"rules[0].failedHistoryLimit":             int64(3),
}

// Every manifest is taken under strict validation and comes back with all its fields, from the
// server and through the Go types, and with nothing more but the defaults.
func TestAcceptedManifestsKeepEveryField(t *testing.T) {
	c := connect(t)
	added := map[string]bool{}
	for _, want := range manifests(t, "../../api/examples/*/*.yaml", "testdata/accepted/*.yaml") {
		t.Run(want.GetKind()+" "+want.GetName(), func(t *testing.T) {
			got := want.DeepCopy()
			if err := c.Create(t.Context(), got, &client.CreateOptions{FieldValidation: metav1.FieldValidationStrict}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Remove(got) })
			if status, ok := want.Object["status"]; ok {
				got.Object["status"] = status
				if err := c.Status().Update(t.Context(), got, &client.SubResourceUpdateOptions{UpdateOptions: client.UpdateOptions{FieldValidation: metav1.FieldValidationStrict}}); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(want), got); err != nil {
				t.Fatal(err)
			}
			for _, part := range []string{"spec", "status"} {
				wanted, given := want.Object[part], got.Object[part]
				if wanted == nil {
					continue
				}
				for _, path := range missing(part, wanted, given, reflect.DeepEqual) {
					t.Errorf("lost or changed by the server: %s", path)
				}
				for _, path := range missing(part, given, wanted, reflect.DeepEqual) {
					if !isDefault(path) {
						t.Errorf("added by the server: %s", path)
					}
					added[path] = true
				}
				for _, path := range missing(part, given, typed(t, got).Object[part], alike) {
					t.Errorf("lost or changed by the Go type: %s", path)
				}
			}
		})
	}
	for end := range defaults {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(added)), func(path string) bool { return strings.Contains(path, end+" ") }) {
			t.Errorf("no manifest shows the default of %s", end)
		}
	}
}

// typed sends an object through its Go type.
func typed(t *testing.T, u *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range kinds {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	obj, err := scheme.New(u.GroupVersionKind())
	if err != nil {
		t.Fatal(err)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, obj, true); err != nil {
		t.Fatal(err)
	}
	out, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		t.Fatal(err)
	}
	return &unstructured.Unstructured{Object: out}
}

func isDefault(line string) bool {
	path, value, _ := strings.Cut(line, " = ")
	for end, v := range defaults {
		if strings.HasSuffix(path, end) && value == fmt.Sprint(v) {
			return true
		}
	}
	return false
}

// alike compares leaves as a Go type gives them back: zero values are left out, a number may have
// become another type.
func alike(want, have any) bool {
	return have == nil && reflect.ValueOf(want).IsZero() || fmt.Sprint(want) == fmt.Sprint(have)
}

// missing lists the leaves of want, as "path = value", that have is without or has with a value
// that is not the same.
func missing(path string, want, have any, same func(want, have any) bool) []string {
	var lines []string
	switch want := want.(type) {
	case map[string]any:
		given, ok := have.(map[string]any)
		if have != nil && !ok {
			return []string{fmt.Sprintf("%s = %v", path, want)}
		}
		for _, key := range slices.Sorted(maps.Keys(want)) {
			lines = append(lines, missing(path+"."+key, want[key], given[key], same)...)
		}
		return lines
	case []any:
		given, _ := have.([]any) // nil: it is no list, so all is missing
		if len(want) != len(given) {
			return []string{fmt.Sprintf("%s = %v", path, want)}
		}
		for i := range want {
			lines = append(lines, missing(fmt.Sprintf("%s[%d]", path, i), want[i], given[i], same)...)
		}
		return lines
	}
	if !same(want, have) {
		lines = append(lines, fmt.Sprintf("%s = %v", path, want))
	}
	return lines
}

// The manifests show every field of spec and status. Fields that are Kubernetes' own stand for
// themselves; a binding's copy of placement and failover is shown by policies.
func TestAcceptedManifestsShowEveryField(t *testing.T) {
	shown := map[string]bool{}
	for _, m := range manifests(t, "../../api/examples/*/*.yaml", "testdata/accepted/*.yaml") {
		walk(family(m.GetKind())+" spec", m.Object["spec"], shown)
		walk(family(m.GetKind())+" status", m.Object["status"], shown)
	}
	c := connect(t)
	crds := new(apiextensionsv1.CustomResourceDefinitionList)
	list(t, c, crds)
	fields := 0
	for _, crd := range crds.Items {
		if !strings.HasSuffix(crd.Spec.Group, "karmada.io") {
			continue
		}
		root := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
		for _, part := range []string{"spec", "status"} {
			schema := root.Properties[part]
			for _, path := range properties(family(crd.Spec.Names.Kind)+" "+part, &schema) {
				fields++
				if !shown[path] {
					t.Errorf("no manifest has %s", path)
				}
			}
		}
	}
	t.Logf("%d fields", fields)
}

// family is the kind without the prefix of kinds that have no namespace: both have the same spec.
func family(kind string) string {
	if kind == "Cluster" {
		return kind
	}
	return strings.TrimPrefix(kind, "Cluster")
}

func walk(path string, value any, shown map[string]bool) {
	shown[path] = true
	switch value := value.(type) {
	case map[string]any:
		for key, v := range value {
			walk(path+"."+key, v, shown)
		}
	case []any:
		for _, v := range value {
			walk(path+"[]", v, shown)
		}
	}
}

var foreign = regexp.MustCompile(`\.(labelSelector|conditions|hardNodeAffinity|tolerations|metrics|behavior|currentMetrics|loadBalancer)$|MultiClusterIngress spec$|Binding spec\.(placement|failover)$`)

func properties(path string, schema *apiextensionsv1.JSONSchemaProps) []string {
	paths := []string{path}
	if foreign.MatchString(path) {
		return paths
	}
	for name, property := range schema.Properties {
		paths = append(paths, properties(path+"."+name, &property)...)
	}
	if schema.Items != nil && schema.Items.Schema != nil {
		paths = append(paths, properties(path+"[]", schema.Items.Schema)...)
	}
	return paths
}
