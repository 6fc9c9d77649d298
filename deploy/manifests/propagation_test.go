package manifests

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/deploy"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// as is the config of a ServiceAccount.
func as(cfg *rest.Config, namespace, account string) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.Impersonate.UserName = "system:serviceaccount:" + namespace + ":" + account
	cfg.Impersonate.Groups = []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"}
	return cfg
}

// relabel sets a label; "" removes it.
func relabel(c client.Client, obj client.Object, label, value string) error {
	text := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, label, value)
	if value == "" {
		text = fmt.Sprintf(`{"metadata":{"labels":{%q:null}}}`, label)
	}
	return c.Patch(context.Background(), obj.DeepCopyObject().(client.Object), client.RawPatch(types.MergePatchType, []byte(text)))
}

func TestPermanentIDs(t *testing.T) {
	cfg := server.Config(t)
	install(t, cfg, MemberOptions{})
	schemes := []func(*runtime.Scheme) error{policyv1alpha1.AddToScheme, workv1alpha1.AddToScheme, workv1alpha2.AddToScheme}
	c := apiserver.Connect(t, cfg, schemes...)
	hub := apiserver.Connect(t, as(cfg, SystemNamespace, HubName), schemes...)
	selector := []policyv1alpha1.ResourceSelector{{APIVersion: "apps/v1", Kind: "Deployment"}}
	spec := workv1alpha2.ResourceBindingSpec{Resource: workv1alpha2.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment",
		Name: "web"}}
	meta := metav1.ObjectMeta{Name: "web", Namespace: "default"}
	for label, obj := range map[string]client.Object{
		policyv1alpha1.LabelPropagationPolicyID: &policyv1alpha1.PropagationPolicy{ObjectMeta: meta,
			Spec: policyv1alpha1.PropagationSpec{ResourceSelectors: selector}},
		policyv1alpha1.LabelClusterPropagationPolicyID: &policyv1alpha1.ClusterPropagationPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "web"},
			Spec:       policyv1alpha1.PropagationSpec{ResourceSelectors: selector}},
		workv1alpha2.LabelBindingID:        &workv1alpha2.ResourceBinding{ObjectMeta: meta, Spec: spec},
		workv1alpha2.LabelClusterBindingID: &workv1alpha2.ClusterResourceBinding{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: spec},
		workv1alpha1.LabelWorkID:           &workv1alpha1.Work{ObjectMeta: meta},
	} {
		t.Run(label, func(t *testing.T) {
			c.Make(obj)
			t.Cleanup(func() { c.Remove(obj) })
			if err := relabel(c, obj, label, "one"); err != nil {
				t.Errorf("a first id: %v", err)
			}
			if err := relabel(c, obj, "team", "a"); err != nil {
				t.Errorf("another label: %v", err)
			}
			for _, value := range []string{"two", ""} {
				if err := relabel(c, obj, label, value); !refusedBy(err, "pelago-permanent-ids") || !strings.Contains(err.Error(), label) {
					t.Errorf("id one becomes %q: %v, want a refusal that names the label", value, err)
				}
			}
			if err := relabel(hub, obj, label, "two"); err != nil {
				t.Errorf("pelago-hub changes the id: %v", err)
			}
		})
	}
}

func TestDeletionProtection(t *testing.T) {
	cfg := server.Config(t)
	install(t, cfg, MemberOptions{})
	c := apiserver.Connect(t, cfg)
	hub := apiserver.Connect(t, as(cfg, SystemNamespace, HubName), workv1alpha1.AddToScheme)
	const label = workv1alpha2.LabelDeletionProtected
	for name, obj := range map[string]client.Object{
		"ConfigMap":   &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept", Namespace: "default"}},
		"Namespace":   &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kept"}},
		"ClusterRole": &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "kept"}},
	} {
		t.Run(name, func(t *testing.T) {
			obj.SetLabels(map[string]string{label: "Always"})
			c.Make(obj)
			if err := c.Delete(t.Context(), obj); !refusedBy(err, "pelago-deletion-protected") || !strings.Contains(err.Error(), "This resource is protected") || !strings.Contains(err.Error(),
				"remove the label "+label) {
				t.Errorf("deletion: %v, want a refusal that names the label", err)
			}
			if name == "ConfigMap" {
				if err := c.DeleteAllOf(t.Context(), obj, client.InNamespace("default")); !refusedBy(err, "pelago-deletion-protected") {
					t.Errorf("deletion of all: %v, want a refusal", err)
				}
			}
			if err := relabel(c, obj, label, "Never"); err != nil {
				t.Fatal(err)
			}
			if err := c.Delete(t.Context(), obj); err != nil {
				t.Errorf("deletion of what is not protected any more: %v", err)
			}
		})
	}
	// Objects of the hub itself are no exception.
	work := &workv1alpha1.Work{ObjectMeta: metav1.ObjectMeta{Name: "kept", Namespace: "default",
		Labels: map[string]string{label: "Always"}}}
	hub.Make(work)
	if err := hub.Delete(t.Context(), work); !refusedBy(err, "pelago-deletion-protected") {
		t.Errorf("pelago-hub deletes a protected Work: %v", err)
	}
	if err := relabel(hub, work, label, ""); err != nil {
		t.Fatal(err)
	}
	hub.Remove(work)
}

// Nobody gets rights on an API server on which admission policies do nothing.
func TestNoRightsWithoutPolicies(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Flags("--disable-admission-plugins=ValidatingAdmissionPolicy,ServiceAccount"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := Propagation(ctx, open(t, cfg), PropagationOptions{}, func(format string, args ...any) {
		t.Logf(format, args...)
		if strings.Contains(format, "canary") {
			time.AfterFunc(5*time.Second, cancel)
		}
	})
	if err == nil || !strings.Contains(err.Error(), "runs the ValidatingAdmissionPolicy plugin") {
		t.Errorf("error %v, want one about the plugin", err)
	}
	err = open(t, cfg).Get(t.Context(), client.ObjectKey{Name: HubName}, &rbacv1.ClusterRole{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("ClusterRole %s: %v, want none", HubName, err)
	}
}

// Those who may edit a namespace do not choose its clusters; the verb bind on clusters is the right to.
func TestNamespaceClusters(t *testing.T) {
	cfg := server.Config(t)
	install(t, cfg, MemberOptions{})
	c := apiserver.Connect(t, cfg)
	role := func(name string, rules ...rbacv1.PolicyRule) {
		rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"namespaces", "namespaces/status"},
			Verbs: []string{"create", "patch"}})
		c.Make(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules},
			&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
				RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
				Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: name}}})
	}
	role("tenant")
	role("platform", rbacv1.PolicyRule{APIGroups: []string{"cluster.karmada.io"}, Resources: []string{"clusters"}, Verbs: []string{"bind"}})
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Annotations: map[string]string{policyv1alpha1.AnnotationClusters: "m1"}}}
	c.Make(ns)
	merge := func(text string) client.Patch { return client.RawPatch(types.MergePatchType, []byte(text)) }
	wider := merge(`{"metadata":{"annotations":{"pelago.io/clusters":"m1,m2"}}}`)
	tenant := apiserver.Connect(t, as(cfg, "default", "tenant"))
	platform := apiserver.Connect(t, as(cfg, "default", "platform"))
	await.True(t, "the tenant may edit the namespace", func() bool {
		return tenant.Patch(t.Context(), ns.DeepCopy(), merge(`{"metadata":{"labels":{"a":"b"}}}`)) == nil
	})
	other := ns.DeepCopy()
	other.ObjectMeta = metav1.ObjectMeta{Name: "bank", Annotations: ns.Annotations}
	for name, err := range map[string]error{
		"a change":               tenant.Patch(t.Context(), ns.DeepCopy(), wider),
		"the removal":            tenant.Patch(t.Context(), ns.DeepCopy(), merge(`{"metadata":{"annotations":null}}`)),
		"a change by status":     tenant.Status().Patch(t.Context(), ns.DeepCopy(), wider),
		"a namespace of its own": tenant.Create(t.Context(), other),
	} {
		if !refusedBy(err, "pelago-namespace-clusters") {
			t.Errorf("%s: %v, want a refusal by pelago-namespace-clusters", name, err)
		}
	}
	await.True(t, "who has the verb bind changes it", func() bool {
		return platform.Patch(t.Context(), ns.DeepCopy(), wider) == nil
	})
}

// A newer version upgrades what an older one has installed; an older one leaves it alone.
func TestPropagationUpgrade(t *testing.T) {
	cfg := apiserver.Start(t)
	c := open(t, cfg)
	var said []string
	install := func() {
		t.Helper()
		said = nil
		err := Propagation(t.Context(), open(t, cfg), PropagationOptions{}, func(format string, args ...any) {
			said = append(said,
				fmt.Sprintf(format, args...))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	install()
	const name = "works.work.karmada.io"
	crd := func() *apiextensionsv1.CustomResourceDefinition {
		t.Helper()
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := c.Get(t.Context(), client.ObjectKey{Name: name}, crd); err != nil {
			t.Fatal(err)
		}
		return crd
	}
	former := func(revision int) {
		t.Helper()
		have := crd()
		have.Labels[LabelCRDRevision] = fmt.Sprint(revision)
		have.Spec.Names.ShortNames = []string{"oldwork"}
		if err := c.Update(t.Context(), have); err != nil {
			t.Fatal(err)
		}
	}
	former(crdRevision - 1)
	install()
	if have := crd(); have.Labels[LabelCRDRevision] != fmt.Sprint(crdRevision) || len(have.Spec.Names.ShortNames) == 1 &&
		have.Spec.Names.ShortNames[0] == "oldwork" {
		t.Errorf("an older definition stays: %v, short names %v", have.Labels, have.Spec.Names.ShortNames)
	}
	former(crdRevision + 1)
	install()
	if have := crd(); have.Labels[LabelCRDRevision] != fmt.Sprint(crdRevision+1) || have.Spec.Names.ShortNames[0] != "oldwork" {
		t.Errorf("a newer definition was overwritten: %v, short names %v", have.Labels, have.Spec.Names.ShortNames)
	}
	if text := strings.Join(said, "\n"); !strings.Contains(text, "CRD "+name+" is kept as it is") {
		t.Errorf("the user is not told: %s", text)
	}
}

// What a member's credential can do with the kinds of propagation: make its own Cluster in pull
// mode, and nothing to Works but report.
func TestMemberWorkloads(t *testing.T) {
	cfg := server.Config(t)
	install(t, cfg, MemberOptions{})
	c := apiserver.Connect(t, cfg)
	registered := func(id, uid, index, cidr string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "submariner.io/v1", "kind": "Cluster",
			"metadata": map[string]any{"name": id, "namespace": BrokerNamespace, "labels": map[string]any{"submariner-io/clusterID": id},
				"annotations": map[string]any{"pelago.io/cluster-uid": uid, "pelago.io/cluster-index": index}},
			"spec": map[string]any{"cluster_id": id, "global_cidr": []any{cidr}, "cluster_cidr": []any{}, "service_cidr": []any{}}}}
	}
	networkOnly := registered("g4", "uid-4", "4", "120.4.0.0/24")
	networkOnly.SetAnnotations(map[string]string{"pelago.io/cluster-uid": "uid-4", "pelago.io/cluster-index": "4", "pelago.io/network-only": "true"})
	c.Make(registered("g1", "uid-1", "1", "120.1.0.0/24"), registered("g2", "uid-2", "2", "120.2.0.0/24"), networkOnly)
	cluster := func(id string, spec map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster",
			"metadata": map[string]any{"name": id}, "spec": spec}}
	}
	unapproved := map[string]any{"key": "pelago.io/unapproved", "effect": "NoSchedule"}
	pull := func(uid string) map[string]any {
		return map[string]any{"syncMode": "Pull", "id": uid, "taints": []any{unapproved}}
	}
	with := func(field string, value any) *unstructured.Unstructured {
		u := cluster("g1", pull("uid-1"))
		if err := unstructured.SetNestedField(u.Object, value, strings.Split(field, ".")...); err != nil {
			t.Fatal(err)
		}
		return u
	}
	taint := func(change map[string]any) []any {
		t := maps.Clone(unapproved)
		maps.Copy(t, change)
		return []any{t}
	}
	g1 := apiserver.Connect(t, as(cfg, BrokerNamespace, "cluster-g1"))
	// The policy compares with Clusters that it sees a moment after they were made.
	await.True(t, "a cluster that is not the registered one is refused", func() bool {
		return refusedBy(g1.Create(t.Context(), cluster("g1", pull("uid-3")), client.DryRunAll), "pelago-member-clusters-uid")
	})
	for name, tt := range map[string]struct {
		account string
		cluster *unstructured.Unstructured
		policy  string
	}{
		"another's name":         {"cluster-g1", cluster("g2", pull("uid-2")), "pelago-member-clusters"},
		"a name that nobody has": {"cluster-g1", cluster("g3", pull("uid-3")), "pelago-member-clusters"},
		"push mode": {"cluster-g1", cluster("g1", map[string]any{"syncMode": "Push", "id": "uid-1"}),
			"pelago-member-clusters"},
		"no UID":        {"cluster-g3", cluster("g3", map[string]any{"syncMode": "Pull", "taints": []any{unapproved}}), "pelago-member-clusters"},
		"another's UID": {"cluster-g1", cluster("g1", pull("uid-2")), "pelago-member-clusters-uid"},
		"network only":  {"cluster-g4", cluster("g4", pull("uid-4")), "pelago-member-clusters-uid"},
		"labels":        {"cluster-g1", with("metadata.labels", map[string]any{"env": "prod"}), "pelago-member-clusters"},
		"annotations":   {"cluster-g1", with("metadata.annotations", map[string]any{"a": "b"}), "pelago-member-clusters"},
		"finalizers":    {"cluster-g1", with("metadata.finalizers", []any{"example.com/x"}), "pelago-member-clusters"},
		"an owner": {"cluster-g1", with("metadata.ownerReferences", []any{map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
			"name": "x", "uid": "x"}}), "pelago-member-clusters"},
		"a Secret": {"cluster-g1", with("spec.secretRef", map[string]any{"namespace": "default", "name": "x"}), "pelago-member-clusters"},
		"a Secret for impersonation": {"cluster-g1", with("spec.impersonatorSecretRef", map[string]any{"namespace": "default", "name": "x"}),
			"pelago-member-clusters"},
		"an API endpoint": {"cluster-g1", with("spec.apiEndpoint", "https://192.0.2.1"), "pelago-member-clusters"},
		"no check of its certificate": {"cluster-g1", with("spec.insecureSkipTLSVerification", true),
			"pelago-member-clusters"},
		"a proxy":                     {"cluster-g1", with("spec.proxyURL", "http://192.0.2.1"), "pelago-member-clusters"},
		"a header":                    {"cluster-g1", with("spec.proxyHeader", map[string]any{"a": "b"}), "pelago-member-clusters"},
		"a provider":                  {"cluster-g1", with("spec.provider", "x"), "pelago-member-clusters"},
		"a region":                    {"cluster-g1", with("spec.region", "eu"), "pelago-member-clusters"},
		"a zone":                      {"cluster-g1", with("spec.zone", "a"), "pelago-member-clusters"},
		"zones":                       {"cluster-g1", with("spec.zones", []any{"a"}), "pelago-member-clusters"},
		"resource models":             {"cluster-g1", with("spec.resourceModels", []any{}), "pelago-member-clusters"},
		"no taint":                    {"cluster-g1", with("spec.taints", []any{}), "pelago-member-clusters-unapproved"},
		"another taint":               {"cluster-g1", with("spec.taints", taint(map[string]any{"key": "x"})), "pelago-member-clusters-unapproved"},
		"another effect":              {"cluster-g1", with("spec.taints", taint(map[string]any{"effect": "NoExecute"})), "pelago-member-clusters-unapproved"},
		"a taint's value":             {"cluster-g1", with("spec.taints", taint(map[string]any{"value": "x"})), "pelago-member-clusters-unapproved"},
		"one more taint":              {"cluster-g1", with("spec.taints", append(taint(nil), map[string]any{"key": "x", "effect": "NoSchedule"})), "pelago-member-clusters-unapproved"},
		"the registration credential": {RegistrarAccount, cluster("g1", pull("uid-1")), "pelago-member-clusters"},
		"the default account":         {"default", cluster("g1", pull("uid-1")), "pelago-member-clusters"},
	} {
		t.Run(name, func(t *testing.T) {
			err := apiserver.Connect(t, as(cfg, BrokerNamespace, tt.account)).Create(t.Context(), tt.cluster)
			if !refusedBy(err, tt.policy) {
				t.Errorf("%v, want a refusal by %s", err, tt.policy)
			}
		})
	}
	own := cluster("g1", pull("uid-1"))
	if err := g1.Create(t.Context(), own); err != nil {
		t.Fatalf("the member makes its Cluster: %v", err)
	}
	// It cannot accept itself, and the status subresource changes neither spec nor labels.
	accept := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"env":"prod"}},"spec":{"taints":null,"region":"eu"}}`))
	bare := cluster("g1", pull("uid-1"))
	bare.SetResourceVersion(own.GetResourceVersion())
	for name, err := range map[string]error{
		"patch": g1.Patch(t.Context(), own.DeepCopy(), accept), "update": g1.Update(t.Context(), bare), "delete": g1.Delete(t.Context(), own.DeepCopy()),
		"apply":             g1.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(cluster("g1", pull("uid-1"))), client.FieldOwner("test")),
		"delete collection": g1.DeleteAllOf(t.Context(), own.DeepCopy()),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s of its Cluster: %v, want 403", name, err)
		}
	}
	c.Make(cluster("g2", map[string]any{"syncMode": "Push"}))
	if err := g1.Get(t.Context(), client.ObjectKey{Name: "g2"}, cluster("g2", nil)); !apierrors.IsForbidden(err) {
		t.Errorf("the member reads another's Cluster: %v", err)
	}
	if err := g1.List(t.Context(), &corev1.SecretList{}, client.InNamespace("karmada-cluster")); !apierrors.IsForbidden(err) {
		t.Errorf("the member lists the Secrets of push members: %v", err)
	}
	t.Run("works", func(t *testing.T) { memberWorks(t, c, cfg) })
	// Now RBAC lets it write Clusters, as if pelago-hub had been careless.
	for name, err := range map[string]error{
		"patch": g1.Patch(t.Context(), own.DeepCopy(), accept), "delete": g1.Delete(t.Context(), own.DeepCopy()),
		"delete collection": g1.DeleteAllOf(t.Context(), own.DeepCopy()),
	} {
		if !refusedBy(err, "pelago-member-clusters") {
			t.Errorf("%s of its Cluster: %v, want a refusal by pelago-member-clusters", name, err)
		}
	}
	if err := g1.Status().Patch(t.Context(), own.DeepCopy(), accept); err != nil {
		t.Errorf("the member writes its status: %v", err)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(own), own); err != nil {
		t.Fatal(err)
	}
	taints, _, _ := unstructured.NestedSlice(own.Object, "spec", "taints")
	region, _, _ := unstructured.NestedString(own.Object, "spec", "region")
	if len(taints) != 1 || region != "" || len(own.GetLabels()) > 0 {
		t.Errorf("by its status it changed its Cluster: taints %v, region %q, labels %v", taints, region, own.GetLabels())
	}
	t.Run("auto-accept", func(t *testing.T) {
		c.Remove(own)
		cm := &corev1.ConfigMap{}
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: BrokerNamespace, Name: "pelago-clusterset"}, cm); err != nil {
			t.Fatal(err)
		}
		cm.Data = map[string]string{"auto-accept": "true"}
		if err := c.Update(t.Context(), cm); err != nil {
			t.Fatal(err)
		}
		await.True(t, "a member creates its Cluster without the taint", func() bool {
			return g1.Create(t.Context(), with("spec.taints", []any{}), client.DryRunAll) == nil
		})
		labelled := with("metadata.labels", map[string]any{"env": "prod"})
		unstructured.RemoveNestedField(labelled.Object, "spec", "taints")
		if err := g1.Create(t.Context(), labelled); !refusedBy(err, "pelago-member-clusters") {
			t.Errorf("labels: %v, want a refusal by pelago-member-clusters", err)
		}
		if err := Hub(t.Context(), open(t, cfg), t.Logf); err != nil {
			t.Errorf("the canary is accepted: %v", err)
		}
	})
}

// A field that Cluster gets is one that a member cannot set, unless the policy is changed with it.
func TestMemberSetsListedFieldsOfItsClusterOnly(t *testing.T) {
	policy, err := deploy.Files.ReadFile("hub/policies/member-workloads.yaml")
	if err != nil {
		t.Fatal(err)
	}
	spec := reflect.TypeFor[clusterv1alpha1.ClusterSpec]()
	for i := range spec.NumField() {
		name, _, _ := strings.Cut(spec.Field(i).Tag.Get("json"), ",")
		if !slices.Contains([]string{"id", "syncMode", "taints"}, name) && !strings.Contains(string(policy), "!has(object.spec."+name+")") {
			t.Errorf("spec.%s of a Cluster can be set by a member: add it to the policy pelago-member-clusters", name)
		}
	}
}

// memberWorks gives member g1 all rights on Works that RBAC can give, as if pelago-hub had been
// careless.
func memberWorks(t *testing.T, c *apiserver.Cluster, cfg *rest.Config) {
	c.Make(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "careless"}, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{"work.karmada.io", "cluster.karmada.io"}, Resources: []string{"*"}, Verbs: []string{"*"}}}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "careless"},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "careless"},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: BrokerNamespace, Name: "cluster-g1"}}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "karmada-es-g1"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "karmada-es-g2"}})
	hub := apiserver.Connect(t, cfg, workv1alpha1.AddToScheme)
	g1 := apiserver.Connect(t, as(cfg, BrokerNamespace, "cluster-g1"), workv1alpha1.AddToScheme)
	work := func(namespace string) *workv1alpha1.Work {
		return &workv1alpha1.Work{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: namespace,
			Finalizers: []string{"karmada.io/execution-controller"},
			Labels:     map[string]string{"a": "b"}}}
	}
	own, others := work("karmada-es-g1"), work("karmada-es-g2")
	hub.Make(own, others)
	await.True(t, "RBAC lets the member write Works", func() bool {
		return !strings.Contains(fmt.Sprint(relabel(g1, own, "a", "c")), "cannot patch resource")
	})
	patch := func(w *workv1alpha1.Work, text string) error {
		return g1.Patch(t.Context(), w.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(text)))
	}
	status := func(w *workv1alpha1.Work) error {
		return g1.Status().Patch(t.Context(), w.DeepCopy(), client.RawPatch(types.MergePatchType,
			[]byte(`{"status":{"conditions":[{"type":"Applied","status":"True","reason":"AppliedSuccessful","message":"",`+
				`"lastTransitionTime":"2000-01-01T00:00:00Z"}]}}`)))
	}
	if err := status(own); err != nil {
		t.Errorf("the member reports: %v", err)
	}
	for name, err := range map[string]error{
		"report on another's": status(others),
		"spec":                patch(own, `{"spec":{"suspendDispatching":true}}`),
		"labels":              relabel(g1, own, "a", "c"),
		"annotations":         patch(own, `{"metadata":{"annotations":{"a":"b"}}}`),
		"owner": patch(own,
			`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"x","uid":"x"}]}}`),
		"another finalizer":      patch(own, `{"metadata":{"finalizers":["karmada.io/execution-controller","example.com/x"]}}`),
		"finalizer of another's": patch(others, `{"metadata":{"finalizers":null}}`),
		"a Work of its own": g1.Create(t.Context(), &workv1alpha1.Work{ObjectMeta: metav1.ObjectMeta{Name: "mine",
			Namespace: "karmada-es-g1"}}),
		"deletion":        g1.Delete(t.Context(), own),
		"deletion of all": g1.DeleteAllOf(t.Context(), own, client.InNamespace("karmada-es-g1")),
	} {
		if !refusedBy(err, "pelago-member-works") {
			t.Errorf("%s: %v, want a refusal by pelago-member-works", name, err)
		}
	}
	for name, patch := range map[string]string{
		"g2": `{"status":{"kubernetesVersion":"v0"}}`,
	} {
		err := g1.Status().Patch(t.Context(),
			&unstructured.Unstructured{Object: map[string]any{"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster",
				"metadata": map[string]any{"name": name}}}, client.RawPatch(types.MergePatchType, []byte(patch)))
		if !refusedBy(err, "pelago-member-clusters") {
			t.Errorf("status of Cluster %s: %v, want a refusal", name, err)
		}
	}
	for what, finalizers := range map[string]string{"takes its finalizer away": `null`, "adds it": `["karmada.io/execution-controller"]`} {
		if err := patch(own, `{"metadata":{"finalizers":`+finalizers+`}}`); err != nil {
			t.Errorf("the member %s: %v", what, err)
		}
	}
}
