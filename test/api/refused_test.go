package api_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pelago-net/pelago/test/apiserver"
)

// refusal is an entry of testdata/refused.yaml. The spec is given whole, or as the one part that
// matters.
type refusal struct {
	Want, Kind, Name string
	Before, Spec     map[string]any
	Placement        map[string]any // of a policy that selects Pods
	Failover         map[string]any // of a policy that selects Pods and propagates dependents
	Overriders       map[string]any // of the only rule
	Long             string         // a text field of the spec that is Length characters long
	Length           int
}

func (r refusal) object(spec map[string]any) *unstructured.Unstructured {
	version := map[string]string{
		"PlacementScore": "pelago.io/v1alpha1",
		"Cluster":        "cluster.karmada.io/v1alpha1", "Work": "work.karmada.io/v1alpha1", "ResourceInterpreterCustomization": "config.karmada.io/v1alpha1",
		"WorkloadRebalancer": "apps.karmada.io/v1alpha1",
		"ResourceBinding":    "work.karmada.io/v1alpha2", "ClusterResourceBinding": "work.karmada.io/v1alpha2",
	}[r.Kind]
	if version == "" {
		version = "policy.karmada.io/v1alpha1"
	}
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": version, "kind": r.Kind, "spec": spec}}
	u.SetName(r.Name)
	if !strings.HasPrefix(r.Kind, "Cluster") && !slices.Contains(clusterScoped, r.Kind) {
		u.SetNamespace("default")
	}
	return u
}

// clusterScoped are the kinds without namespace whose names do not begin with Cluster.
var clusterScoped = []string{"ResourceInterpreterCustomization", "WorkloadRebalancer"}

// spec is the spec that is refused.
func (r refusal) spec() map[string]any {
	pods := []any{map[string]any{"apiVersion": "v1", "kind": "Pod"}}
	switch {
	case r.Placement != nil:
		return map[string]any{"resourceSelectors": pods, "placement": r.Placement}
	case r.Failover != nil:
		return map[string]any{"resourceSelectors": pods, "propagateDeps": true, "failover": r.Failover}
	case r.Overriders != nil:
		return map[string]any{"overrideRules": []any{map[string]any{"overriders": r.Overriders}}}
	case r.Long != "":
		r.Spec[r.Long] = strings.Repeat("a", r.Length)
	}
	return r.Spec
}

// refused reads testdata/refused.yaml; each entry has a name.
func refused(t *testing.T) []refusal {
	t.Helper()
	text, err := os.ReadFile("testdata/refused.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var all []refusal
	if err := yaml.UnmarshalStrict(text, &all); err != nil {
		t.Fatal(err)
	}
	for i := range all {
		if all[i].Name == "" {
			all[i].Name = fmt.Sprintf("refused-%d", i)
		}
	}
	return all
}

// invalidValue matches what an answer gives before the message of a rule in CEL: the value, which
// newer releases of Kubernetes give of scalars, or the name of its type.
var invalidValue = regexp.MustCompile(`(Invalid value: )(?:"(?:[^"\\]|\\.)*"|[-.\w]+): `)

// says reports whether an answer gives a reason, which names the value or does not.
func says(answer, reason string) bool {
	return strings.Contains(answer, reason) || strings.Contains(invalidValue.ReplaceAllString(answer, "$1"), reason)
}

func TestRefusedManifestsSayWhy(t *testing.T) {
	c := connect(t)
	refusals := refused(t)
	var answers strings.Builder
	asked := 0
	for _, r := range refusals {
		t.Run(r.Kind+" "+r.Want, func(t *testing.T) {
			err := refuse(t, c, r)
			if err == nil {
				t.Fatal("it was accepted")
			}
			if answer := err.Error(); !says(answer, r.Want) {
				t.Errorf("refused with\n%s\nwant\n%s", answer, r.Want)
			}
			answers.WriteString(err.Error())
			asked++
		})
	}
	if asked < len(refusals) {
		return // only some of them were run
	}
	// Every rule is seen to refuse something.
	crds := new(apiextensionsv1.CustomResourceDefinitionList)
	list(t, c, crds)
	for _, crd := range crds.Items {
		if !strings.HasSuffix(crd.Spec.Group, "karmada.io") {
			continue
		}
		for _, message := range messages(crd.Spec.Versions[0].Schema.OpenAPIV3Schema) {
			if !strings.Contains(answers.String(), message) {
				t.Errorf("%s: no manifest is refused with %q", crd.Name, message)
			}
		}
	}
}

// messages collects the messages of all CEL rules below a schema.
func messages(schema *apiextensionsv1.JSONSchemaProps) []string {
	if schema == nil {
		return nil
	}
	var all []string
	for _, rule := range schema.XValidations {
		all = append(all, rule.Message)
	}
	for _, property := range schema.Properties {
		all = append(all, messages(&property)...)
	}
	if schema.Items != nil {
		all = append(all, messages(schema.Items.Schema)...)
	}
	if schema.AdditionalProperties != nil {
		all = append(all, messages(schema.AdditionalProperties.Schema)...)
	}
	return all
}

// refuse sends the manifest; it returns the answer and leaves nothing behind.
func refuse(t *testing.T, c *apiserver.Cluster, r refusal) error {
	t.Helper()
	obj := r.object(r.spec())
	if r.Before == nil {
		err := c.Create(t.Context(), obj, &client.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
		if err == nil {
			c.Remove(obj)
		}
		return err
	}
	before := r.object(r.Before)
	c.Make(before)
	t.Cleanup(func() { c.Remove(before) })
	obj.SetResourceVersion(before.GetResourceVersion())
	return c.Update(t.Context(), obj)
}

// Clients of Karmada, whose API server does not validate status, write conditions of Clusters
// without a reason. All else is validated.
func TestConditionsOfClusters(t *testing.T) {
	c := connect(t)
	cluster := refusal{Kind: "Cluster", Name: "conditions"}.object(map[string]any{"syncMode": "Pull"})
	c.Make(cluster)
	defer c.Remove(cluster)
	for patch, want := range map[string]string{
		`"status": "False", "reason": "", "message": ""`:    "",
		`"status": "False", "message": ""`:                  "",
		`"status": "False", "reason": "a b", "message": ""`: `status.conditions[0].reason: Invalid value: "a b"`,
		`"status": "No", "message": ""`:                     `status.conditions[0].status: Unsupported value: "No"`,
		`"message": ""`:                                     "status.conditions[0].status: Required value",
		`"status": "False"`:                                 "status.conditions[0].message: Required value",
	} {
		text := `{"status": {"conditions": [{"type": "NetworkReady", "lastTransitionTime": "2026-11-21T10:00:00Z", ` + patch + `}]}}`
		err := c.Status().Patch(t.Context(), cluster.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(text)))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", patch, err, want)
		}
	}
}
