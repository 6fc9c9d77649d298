package migrate

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	configv1alpha1 "github.com/pelago-net/pelago/api/config/v1alpha1"
	networkingv1alpha1 "github.com/pelago-net/pelago/api/networking/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	searchv1alpha1 "github.com/pelago-net/pelago/api/search/v1alpha1"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/deploy/manifests"
)

const (
	// lose is the action of what has no counterpart, change that of what goes on in another way.
	lose, change = "lose", "change"
	// argoCluster is the label of Argo CD's Secrets of clusters.
	argoCluster, argoClusterValue = "argocd.argoproj.io/secret-type", "cluster"
	// karmadaProxy begins the path of Karmada's proxy to a cluster, whose name follows.
	karmadaProxy = "/apis/cluster.karmada.io/v1alpha1/clusters/"
)

// finding is what an object of Karmada means in Pelago; detail is empty if it is the same.
type finding struct{ action, detail string }

// findings are the kinds with objects that mean something else, or nothing, in Pelago.
var findings = []struct {
	kind schema.GroupVersionKind
	of   func(*unstructured.Unstructured) (finding, error)
}{
	{networkingv1alpha1.GroupVersion.WithKind("MultiClusterIngress"), func(*unstructured.Unstructured) (finding, error) {
		return finding{lose, "nothing acts on this kind in Pelago"}, nil
	}},
	{networkingv1alpha1.GroupVersion.WithKind("MultiClusterService"), ofMultiClusterService},
	{searchv1alpha1.GroupVersion.WithKind("ResourceRegistry"), ofRegistry},
	{policyv1alpha1.GroupVersion.WithKind("OverridePolicy"), ofOverride},
	{policyv1alpha1.GroupVersion.WithKind("PropagationPolicy"), ofPropagation},
	{policyv1alpha1.GroupVersion.WithKind("ClusterPropagationPolicy"), ofPropagation},
	{policyv1alpha1.GroupVersion.WithKind("FederatedResourceQuota"), ofQuota},
	{configv1alpha1.GroupVersion.WithKind("ResourceInterpreterCustomization"), ofCustomization},
	{clusterv1alpha1.GroupVersion.WithKind("Cluster"), ofCluster},
}

// losses adds the objects that have no counterpart, or that go on in another way.
func (k *Karmada) losses(ctx context.Context, steps []Step) ([]Step, error) {
	for _, f := range findings {
		all, err := k.list(ctx, f.kind)
		if err != nil && f.kind.Group == clusterv1alpha1.GroupVersion.Group {
			return nil, fmt.Errorf("%w: karmada-aggregated-apiserver must run until this command stops it", err)
		}
		if err != nil {
			return nil, err
		}
		for i := range all {
			u := &all[i]
			is, err := f.of(u)
			if err != nil {
				return nil, fmt.Errorf("read %s %s: %w", u.GetKind(), manifests.Title(client.ObjectKeyFromObject(u)), err)
			}
			if is.detail != "" {
				steps = append(steps, Step{is.action, u.GetKind() + " " + manifests.Title(client.ObjectKeyFromObject(u)), is.detail})
			}
		}
	}
	for _, c := range []client.Client{k.Hub, k.Host} {
		if c == nil {
			continue
		}
		var err error
		if steps, err = argoSecrets(ctx, c, steps); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(k.Kubeconfig.Contexts)) {
		if to := k.Kubeconfig.Clusters[k.Kubeconfig.Contexts[name].Cluster]; to != nil {
			if path := proxied(to.Server); path != "" {
				object := "context " + name + " of the kubeconfig"
				steps = append(steps, Step{change, object, "it does not reach the cluster" + afterwards(path)})
			}
		}
	}
	return steps, nil
}

// proxied is the path of a URL of Karmada's proxy, empty for others.
func proxied(server string) string {
	at, err := url.Parse(server)
	if err != nil || !strings.Contains(at.Path, karmadaProxy) {
		return ""
	}
	return at.Path
}

func afterwards(path string) string {
	return fmt.Sprintf(" at %s afterwards, until the URL has the address of `pelago-hub --karmada-address`; the path stays",
		path)
}

// argoSecrets adds Argo CD's Secrets with the URL of Karmada's proxy.
func argoSecrets(ctx context.Context, c client.Client, steps []Step) ([]Step, error) {
	secrets := &corev1.SecretList{}
	if err := c.List(ctx, secrets, client.MatchingLabels{argoCluster: argoClusterValue}); err != nil {
		return nil, fmt.Errorf("list Argo CD's Secrets of clusters: %w", err)
	}
	for i := range secrets.Items {
		s := &secrets.Items[i]
		path := proxied(string(s.Data["server"]))
		if path == "" {
			continue
		}
		step := Step{lose, "Secret " + manifests.Title(client.ObjectKeyFromObject(s)),
			"Argo CD does not reach the cluster" + afterwards(path)}
		if !slices.Contains(steps, step) {
			steps = append(steps, step) // the host cluster may be the hub
		}
	}
	return steps, nil
}

// read converts an object of Karmada to its Go type.
func read[T any](u *unstructured.Unstructured) (*T, error) {
	out := new(T)
	return out, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out)
}

func ofMultiClusterService(u *unstructured.Unstructured) (finding, error) {
	s, err := read[networkingv1alpha1.MultiClusterService](u)
	if err != nil || !slices.Contains(s.Spec.Types, networkingv1alpha1.ExposureTypeLoadBalancer) {
		return finding{}, err
	}
	return finding{lose, "type LoadBalancer has no effect: propagate a Service of type LoadBalancer to the clusters"}, nil
}

func ofRegistry(u *unstructured.Unstructured) (finding, error) {
	r, err := read[searchv1alpha1.ResourceRegistry](u)
	if err != nil || r.Spec.BackendStore == nil || r.Spec.BackendStore.OpenSearch == nil {
		return finding{}, err
	}
	return finding{lose, "backendStore.openSearch has no effect: objects are read in the members at each request"}, nil
}

// ofOverride: what an OverridePolicy changes in the grants of Roles and RoleBindings is refused.
func ofOverride(u *unstructured.Unstructured) (finding, error) {
	p, err := read[policyv1alpha1.OverridePolicy](u)
	if err != nil {
		return finding{}, err
	}
	var paths []string
	add := func(o *policyv1alpha1.Overriders) {
		for _, t := range o.Plaintext {
			paths = append(paths, t.Path)
		}
		for _, f := range o.FieldOverrider {
			paths = append(paths, f.FieldPath)
		}
	}
	for i := range p.Spec.OverrideRules {
		add(&p.Spec.OverrideRules[i].Overriders)
	}
	if p.Spec.Overriders != nil {
		add(p.Spec.Overriders)
	}
	grants := slices.ContainsFunc(paths, func(path string) bool {
		field, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
		return slices.Contains([]string{"rules", "aggregationRule", "roleRef", "subjects"}, field)
	})
	roles := len(p.Spec.ResourceSelectors) == 0 || slices.ContainsFunc(p.Spec.ResourceSelectors, func(s policyv1alpha1.ResourceSelector) bool {
		return schema.FromAPIVersionAndKind(s.APIVersion, s.Kind).Group == rbacv1.GroupName
	})
	if !grants || !roles {
		return finding{}, nil
	}
	return finding{lose, "it changes what a Role or RoleBinding grants, which only a ClusterOverridePolicy may"}, nil
}

// ofPropagation: the ServiceImports of a clusterset belong to the members' agents.
func ofPropagation(u *unstructured.Unstructured) (finding, error) {
	p, err := read[policyv1alpha1.PropagationPolicy](u)
	if err != nil {
		return finding{}, err
	}
	for _, s := range p.Spec.ResourceSelectors {
		if gvk := schema.FromAPIVersionAndKind(s.APIVersion, s.Kind); gvk.Group == "multicluster.x-k8s.io" && gvk.Kind == "ServiceImport" {
			return finding{lose, "it selects ServiceImports, which the members' agents write here, and no Service derived-NAME exists: " +
				"export the Service, and use NAME.NAMESPACE.svc.clusterset.local or a MultiClusterService"}, nil
		}
	}
	return finding{}, nil
}

// ofQuota: Karmada's enforcement is behind a feature gate, and an admission webhook.
func ofQuota(u *unstructured.Unstructured) (finding, error) {
	q, err := read[policyv1alpha1.FederatedResourceQuota](u)
	if err != nil || len(q.Spec.Overall) == 0 {
		return finding{}, err
	}
	return finding{change, "it is enforced without Karmada's feature gate, when clusters are chosen and not by a webhook: " +
		"what exceeds it gets Scheduled=False, QuotaExceeded"}, nil
}

func ofCustomization(u *unstructured.Unstructured) (finding, error) {
	c, err := read[configv1alpha1.ResourceInterpreterCustomization](u)
	if err != nil {
		return finding{}, err
	}
	missing := kinds.MissingFunctions(c.Spec.Customizations)
	if len(missing) == 0 {
		return finding{}, nil
	}
	return finding{lose, strings.Join(missing, "; ") + ": its objects stay unchanged until the script does without"}, nil
}

func ofCluster(u *unstructured.Unstructured) (finding, error) {
	c, err := read[clusterv1alpha1.Cluster](u)
	if err != nil || c.Spec.SyncMode != clusterv1alpha1.Pull {
		return finding{}, err
	}
	return finding{lose, "its karmada-agent writes to the hub: stop it, and `pelago join` there afterwards, with --workloads-only unless the cluster is to take part in the network (docs/network.md, From Submariner and Karmada)"}, nil
}
