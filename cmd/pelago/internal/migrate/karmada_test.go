package migrate

import (
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/test/apiserver"
)

func TestKarmada(t *testing.T) {
	config := apiserver.Start(t, apiserver.HubControllers())
	c, err := manifests.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	create := func(objects ...client.Object) {
		t.Helper()
		for _, o := range objects {
			if err := c.Create(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
	}
	hook := func(config, name string) *admissionregistrationv1.ValidatingWebhookConfiguration {
		return &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: config}, Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: name, SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: ptr.To("https://localhost/")}}}}
	}
	service := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": "v1beta1.custom.metrics.k8s.io"},
		"spec": map[string]any{"group": "custom.metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": int64(2000), "versionPriority": int64(10), "insecureSkipTLSVerify": true,
			"service": map[string]any{"namespace": "karmada-system", "name": "karmada-metrics-adapter"}}}}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "karmada-system", Name: "karmada-scheduler"}, Spec: coordinationv1.LeaseSpec{
		// by its holder's clock
		HolderIdentity: ptr.To("x"), LeaseDurationSeconds: ptr.To[int32](15), RenewTime: ptr.To(metav1.NewMicroTime(time.Now().Add(-time.Hour)))}}
	stopped := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "karmada-system", Name: "karmada-scheduler"}, Spec: appsv1.DeploymentSpec{
		Replicas: ptr.To[int32](2), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}}}
	argo := func(name, server string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{argoCluster: argoClusterValue}}, Data: map[string][]byte{"server": []byte(server)}}
	}
	create(argo("by-karmada", "https://karmada:5443/apis/cluster.karmada.io/v1alpha1/clusters/m1/proxy"), argo("by-itself", "https://m2:6443"))
	create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "karmada-system"}}, hook("validating-config", "work.karmada.io"), hook("theirs", "theirs.example.org"), service, lease, stopped)

	contexts := clientcmdapi.Config{Contexts: map[string]*clientcmdapi.Context{"m1": {Cluster: "m1"}, "m2": {Cluster: "m2"}, "none": {}},
		Clusters: map[string]*clientcmdapi.Cluster{"m1": {Server: "https://karmada:5443/apis/cluster.karmada.io/v1alpha1/clusters/m1/proxy"}, "m2": {Server: "https://m2:6443"}}}
	k := &Karmada{Hub: c, Kubeconfig: contexts, Namespace: "karmada-system", Timeout: time.Second, Progress: func(string, ...any) {}}
	stop := apiserver.Renew(t, c, lease)
	removed := func(want bool) {
		t.Helper()
		found, err := k.registered(t.Context())
		if err != nil || (len(found) == 0) != want {
			t.Errorf("registrations %d, %v; want removed: %t", len(found), err, want)
		}
	}
	if err := k.Back(t.Context()); err == nil || !strings.Contains(err.Error(), "was not migrated") {
		t.Errorf("back without a migration: %v", err)
	}
	if err := k.Forward(t.Context(), true); err == nil || !strings.Contains(err.Error(), "karmada-scheduler of Karmada still renew") {
		t.Errorf("while a controller is alive: %v", err)
	}
	removed(false)

	steps, err := k.Plan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, s := range steps {
		all = append(all, s.Action+" "+s.Object)
	}
	if got, want := strings.Join(all, ", "), "stop karmada-scheduler, remove ValidatingWebhookConfiguration validating-config, "+
		"remove APIService v1beta1.custom.metrics.k8s.io, install hub of Pelago, lose Secret default/by-karmada, "+
		"change context m1 of the kubeconfig"; got != want {
		t.Errorf("plan %s, want %s", got, want)
	}

	stop()
	if err := c.Delete(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	if err := k.Forward(t.Context(), false); err == nil || !strings.Contains(err.Error(), "by-karmada: Argo CD does not reach the cluster") {
		t.Errorf("with a loss and without force: %v", err)
	}
	if err := c.Delete(t.Context(), argo("by-karmada", "")); err != nil {
		t.Fatal(err)
	}
	for range 2 { // again: nothing is lost of what was kept
		if err := k.Forward(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		removed(true)
	}
	if err := c.Get(t.Context(), client.ObjectKey{Name: "theirs"}, &admissionregistrationv1.ValidatingWebhookConfiguration{}); err != nil {
		t.Errorf("a webhook that is not Karmada's: %v", err)
	}

	hub := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: manifests.SystemNamespace, Name: manifests.HubName}, Spec: lease.Spec}
	create(hub)
	stop = apiserver.Renew(t, c, hub)
	if err := k.Back(t.Context()); err == nil || !strings.Contains(err.Error(), "pelago-hub runs") {
		t.Errorf("back while pelago-hub runs: %v", err)
	}
	stop()
	if err := c.Delete(t.Context(), hub); err != nil {
		t.Fatal(err)
	}
	search := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": "v1alpha1.search.example.com"},
		"spec": map[string]any{"group": "search.example.com", "version": "v1alpha1", "groupPriorityMinimum": int64(1000), "versionPriority": int64(200), "insecureSkipTLSVerify": true,
			"service": map[string]any{"namespace": manifests.SystemNamespace, "name": manifests.HubName}}}}
	create(search)
	if err := k.Back(t.Context()); err != nil {
		t.Fatal(err)
	}
	removed(false)
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(search), search); !apierrors.IsNotFound(err) {
		t.Errorf("the APIService of pelago-hub: %v, want NotFound", err)
	}

	// No controller of Deployments runs here: the wait ends, and what is noted stays for the next
	// attempt.
	k.Host = c
	for range 2 {
		if err := k.scale(t.Context(), controllers, false); err != nil && !strings.Contains(err.Error(), "run the command again") {
			t.Fatal(err)
		}
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(stopped), stopped); err != nil || *stopped.Spec.Replicas != 0 || stopped.Annotations[AnnotationReplicas] != "2" {
		t.Errorf("stopped with %d replicas, annotations %v, %v", *stopped.Spec.Replicas, stopped.Annotations, err)
	}
	if err := k.scale(t.Context(), controllers, true); err == nil || !strings.Contains(err.Error(), "wait for 2 replicas") {
		t.Errorf("start: %v", err)
	}
}

// Each object that means something else in Pelago, or nothing, and some that mean the same.
func TestFindings(t *testing.T) {
	for name, tt := range map[string]struct{ object, want string }{
		"MultiClusterIngress": {"{apiVersion: networking.karmada.io/v1alpha1, kind: MultiClusterIngress}", "lose nothing acts on this kind"},
		"MultiClusterService for load balancers": {
			"{apiVersion: networking.karmada.io/v1alpha1, kind: MultiClusterService, spec: {types: [CrossCluster, LoadBalancer]}}", "lose type LoadBalancer"},
		"MultiClusterService": {"{apiVersion: networking.karmada.io/v1alpha1, kind: MultiClusterService, spec: {types: [CrossCluster]}}", ""},
		"ResourceRegistry with OpenSearch": {
			"{apiVersion: search.karmada.io/v1alpha1, kind: ResourceRegistry, spec: {backendStore: {openSearch: {addresses: [a]}}}}", "lose backendStore.openSearch"},
		"ResourceRegistry": {"{apiVersion: search.karmada.io/v1alpha1, kind: ResourceRegistry, spec: {}}", ""},
		"OverridePolicy that grants": {
			`{apiVersion: policy.karmada.io/v1alpha1, kind: OverridePolicy, spec: {resourceSelectors: [{apiVersion: rbac.authorization.k8s.io/v1, kind: Role}],
				overrideRules: [{overriders: {plaintext: [{path: /rules/0/verbs/-, operator: add, value: delete}]}}]}}`, "lose it changes what a Role"},
		"OverridePolicy of all kinds that grants, in the former form": {
			"{apiVersion: policy.karmada.io/v1alpha1, kind: OverridePolicy, spec: {overriders: {plaintext: [{path: /subjects/0/name, operator: replace, value: a}]}}}", "lose it changes what a Role"},
		"OverridePolicy of labels of Roles": {
			`{apiVersion: policy.karmada.io/v1alpha1, kind: OverridePolicy, spec: {resourceSelectors: [{apiVersion: rbac.authorization.k8s.io/v1, kind: Role}],
				overrideRules: [{overriders: {labelsOverrider: [{operator: add, value: {a: b}}]}}]}}`, ""},
		"PropagationPolicy for ServiceImports": {
			"{apiVersion: policy.karmada.io/v1alpha1, kind: PropagationPolicy, spec: {resourceSelectors: [{apiVersion: multicluster.x-k8s.io/v1alpha1, kind: ServiceImport}]}}", "lose it selects ServiceImports"},
		"ClusterPropagationPolicy for ServiceImports": {
			"{apiVersion: policy.karmada.io/v1alpha1, kind: ClusterPropagationPolicy, spec: {resourceSelectors: [{apiVersion: multicluster.x-k8s.io/v1alpha1, kind: ServiceImport}]}}", "lose it selects ServiceImports"},
		"PropagationPolicy": {
			"{apiVersion: policy.karmada.io/v1alpha1, kind: PropagationPolicy, spec: {resourceSelectors: [{apiVersion: v1, kind: Service}]}}", ""},
		"FederatedResourceQuota": {"{apiVersion: policy.karmada.io/v1alpha1, kind: FederatedResourceQuota, spec: {overall: {cpu: 1}}}", "change it is enforced"},
		"customization without the library os": {
			`{apiVersion: config.karmada.io/v1alpha1, kind: ResourceInterpreterCustomization, spec: {target: {apiVersion: v1, kind: A}, customizations: {
				retention: {luaScript: "function Retain(d, o) pcall(Retain) return d end"}, healthInterpretation: {luaScript: "function InterpretHealth(o) return os.time() > 1 end"}}}}`,
			"lose healthInterpretation uses os; retention uses pcall: its objects stay unchanged"},
		"customization": {
			`{apiVersion: config.karmada.io/v1alpha1, kind: ResourceInterpreterCustomization, spec: {customizations: {retention: {luaScript: "function Retain(d, o) return o end"}}}}`, ""},
		"Cluster in mode Pull": {"{apiVersion: cluster.karmada.io/v1alpha1, kind: Cluster, spec: {syncMode: Pull}}", "lose its karmada-agent"},
		"Cluster in mode Push": {"{apiVersion: cluster.karmada.io/v1alpha1, kind: Cluster, spec: {syncMode: Push}}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			u := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(tt.object), &u.Object); err != nil {
				t.Fatal(err)
			}
			is := finding{action: "none"}
			for _, f := range findings {
				if f.kind == u.GroupVersionKind() {
					var err error
					if is, err = f.of(u); err != nil {
						t.Fatal(err)
					}
				}
			}
			if got := is.action + " " + is.detail; is.action == "none" || (is.detail == "") != (tt.want == "") || !strings.HasPrefix(got, tt.want) {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}
