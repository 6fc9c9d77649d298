package api_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	searchv1alpha1 "github.com/pelago-net/pelago/api/search/v1alpha1"
	"github.com/pelago-net/pelago/test/apiserver"
)

// served is what users see of a kind before they open an object.
type served struct {
	Version, Kind, Scope, ShortNames, Categories string
	// of `kubectl get`; those of `-o wide` in brackets
	Columns string
}

// Each kind is served in exactly one version, under the short names and with the columns that users
// know. ResourceRegistry has a second one, for pelago-hub, with the same schema.
func TestKindsAsUsersSeeThem(t *testing.T) {
	policy := "NAME CONFLICT-RESOLUTION PRIORITY AGE"
	binding := "NAME SCHEDULED FULLYAPPLIED AGE"
	want := map[string]served{
		"clusters.cluster.karmada.io": {"v1alpha1", "Cluster", "Cluster", "", "karmada-io",
			"NAME VERSION MODE READY AGE [ZONES] [REGION] [PROVIDER] [API-ENDPOINT] [PROXY-URL]"},
		"propagationpolicies.policy.karmada.io":                      {"v1alpha1", "PropagationPolicy", "Namespaced", "pp", "karmada-io", policy},
		"clusterpropagationpolicies.policy.karmada.io":               {"v1alpha1", "ClusterPropagationPolicy", "Cluster", "cpp", "karmada-io", policy},
		"overridepolicies.policy.karmada.io":                         {"v1alpha1", "OverridePolicy", "Namespaced", "op", "karmada-io", "NAME AGE"},
		"clusteroverridepolicies.policy.karmada.io":                  {"v1alpha1", "ClusterOverridePolicy", "Cluster", "cop", "karmada-io", "NAME AGE"},
		"resourcebindings.work.karmada.io":                           {"v1alpha2", "ResourceBinding", "Namespaced", "rb", "karmada-io", binding},
		"clusterresourcebindings.work.karmada.io":                    {"v1alpha2", "ClusterResourceBinding", "Cluster", "crb", "karmada-io", binding},
		"works.work.karmada.io":                                      {"v1alpha1", "Work", "Namespaced", "wk", "karmada-io", "NAME APPLIED AGE"},
		"clustertaintpolicies.policy.karmada.io":                     {"v1alpha1", "ClusterTaintPolicy", "Cluster", "", "karmada-io", "NAME AGE"},
		"federatedresourcequotas.policy.karmada.io":                  {"v1alpha1", "FederatedResourceQuota", "Namespaced", "", "karmada-io", "NAME OVERALL OVERALL_USED AGE"},
		"federatedhpas.autoscaling.karmada.io":                       {"v1alpha1", "FederatedHPA", "Namespaced", "fhpa", "karmada-io", "NAME REFERENCE-KIND REFERENCE-NAME MINPODS MAXPODS REPLICAS AGE"},
		"cronfederatedhpas.autoscaling.karmada.io":                   {"v1alpha1", "CronFederatedHPA", "Namespaced", "cronfhpa", "karmada-io", "NAME REFERENCE-KIND REFERENCE-NAME AGE"},
		"multiclusterservices.networking.karmada.io":                 {"v1alpha1", "MultiClusterService", "Namespaced", "mcs", "karmada-io", "NAME AGE"},
		"multiclusteringresses.networking.karmada.io":                {"v1alpha1", "MultiClusterIngress", "Namespaced", "mci", "karmada-io", "NAME AGE"},
		"resourceregistries.search.karmada.io":                       {"v1alpha1", "ResourceRegistry", "Cluster", "rr", "karmada-io", "NAME AGE"},
		"remedies.remedy.karmada.io":                                 {"v1alpha1", "Remedy", "Cluster", "", "karmada-io", "NAME AGE"},
		"resourceinterpreterwebhookconfigurations.config.karmada.io": {"v1alpha1", "ResourceInterpreterWebhookConfiguration", "Cluster", "", "karmada-io", "NAME AGE"},
		"workloadrebalancers.apps.karmada.io":                        {"v1alpha1", "WorkloadRebalancer", "Cluster", "", "karmada-io", "NAME AGE"},
		"resourceinterpretercustomizations.config.karmada.io":        {"v1alpha1", "ResourceInterpreterCustomization", "Cluster", "ric", "karmada-io", "NAME TARGET-API-VERSION TARGET-KIND AGE"},
	}
	got := map[string]served{}
	c := connect(t)
	for name := range want {
		crd := definition(t, c, name)
		versions := []string{crd.Spec.Versions[0].Name}
		if name == "resourceregistries.search.karmada.io" {
			versions = append(versions, searchv1alpha1.Stored.Version)
		}
		for i, v := range crd.Spec.Versions {
			if i >= len(versions) || v.Name != versions[i] || v.Storage != (i == 0) || !equality.Semantic.DeepEqual(v.Schema, crd.Spec.Versions[0].Schema) {
				t.Errorf("%s has version %s, want only %v with one schema", name, v.Name, versions)
			}
		}
		version := crd.Spec.Versions[0]
		got[name] = served{version.Name, crd.Spec.Names.Kind, string(crd.Spec.Scope), strings.Join(crd.Spec.Names.ShortNames, " "),
			strings.Join(crd.Spec.Names.Categories, " "), columns(t, c, crd)}
		if version.Subresources == nil || version.Subresources.Status == nil {
			t.Errorf("%s has no status subresource", name)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// The definitions are structural, established, and small enough for the annotation of `kubectl
// apply`.
func TestDefinitionsStayWithinTheLimitsOfAnAPIServer(t *testing.T) {
	const annotationLimit = 256 << 10
	c := connect(t)
	crds := new(apiextensionsv1.CustomResourceDefinitionList)
	list(t, c, crds)
	total := 0
	for _, crd := range crds.Items {
		conditions := map[apiextensionsv1.CustomResourceDefinitionConditionType]apiextensionsv1.ConditionStatus{}
		for _, condition := range crd.Status.Conditions {
			conditions[condition.Type] = condition.Status
		}
		want := map[apiextensionsv1.CustomResourceDefinitionConditionType]apiextensionsv1.ConditionStatus{"Established": "True", "NamesAccepted": "True"}
		// a group of Kubernetes itself names the approval of its API
		if strings.HasSuffix(crd.Spec.Group, ".k8s.io") {
			want["KubernetesAPIApprovalPolicyConformant"] = "True"
		}
		if diff := cmp.Diff(want, conditions); diff != "" {
			t.Errorf("%s: conditions -want +got:\n%s", crd.Name, diff)
		}
		text, err := json.Marshal(crd.Spec)
		if err != nil {
			t.Fatal(err)
		}
		if len(text) > annotationLimit {
			t.Errorf("%s: %d bytes, more than an annotation may have", crd.Name, len(text))
		}
		total += len(text)
	}
	t.Logf("%d definitions, %d KiB", len(crds.Items), total>>10)
}

func definition(t *testing.T, c *apiserver.Cluster, name string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crds := new(apiextensionsv1.CustomResourceDefinitionList)
	list(t, c, crds, client.MatchingFields{"metadata.name": name})
	if len(crds.Items) != 1 {
		t.Fatalf("%s is not installed", name)
	}
	return &crds.Items[0]
}

func list(t *testing.T, c *apiserver.Cluster, crds *apiextensionsv1.CustomResourceDefinitionList, opts ...client.ListOption) {
	t.Helper()
	if err := apiextensionsv1.AddToScheme(c.Scheme()); err != nil {
		t.Fatal(err)
	}
	if err := c.List(t.Context(), crds, opts...); err != nil {
		t.Fatal(err)
	}
}

// columns requests the table that `kubectl get` prints; kubectl writes the headings in capitals.
func columns(t *testing.T, c *apiserver.Cluster, crd *apiextensionsv1.CustomResourceDefinition) string {
	t.Helper()
	k, err := kubernetes.NewForConfig(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	text, err := k.RESTClient().Get().AbsPath("/apis", crd.Spec.Group, crd.Spec.Versions[0].Name, crd.Spec.Names.Plural).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	table := new(metav1.Table)
	if err := json.Unmarshal(text, table); err != nil {
		t.Fatal(err)
	}
	var headings []string
	for _, column := range table.ColumnDefinitions {
		heading := strings.ToUpper(column.Name)
		if column.Priority > 0 {
			heading = "[" + heading + "]"
		}
		headings = append(headings, heading)
	}
	return strings.Join(headings, " ")
}
