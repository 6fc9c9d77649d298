package member

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// serverVersion is what the members report that they run.
const serverVersion = "v1.34.4"

// resource is a kind that is served.
type resource struct {
	group, version, name, singular, kind string
	short                                []string
	cluster                              bool // has no namespace
	status                               bool // has the status subresource
	generation                           bool // counts changes of its spec
}

// resources are all kinds that are served.
var resources = []resource{
	{version: "v1", name: "namespaces", singular: "namespace", kind: "Namespace", short: []string{"ns"}, cluster: true, status: true},
	{version: "v1", name: "nodes", singular: "node", kind: "Node", short: []string{"no"}, cluster: true, status: true},
	{version: "v1", name: "pods", singular: "pod", kind: "Pod", short: []string{"po"}, status: true, generation: true},
	{version: "v1", name: "configmaps", singular: "configmap", kind: "ConfigMap", short: []string{"cm"}},
	{version: "v1", name: "secrets", singular: "secret", kind: "Secret"},
	{version: "v1", name: "serviceaccounts", singular: "serviceaccount", kind: "ServiceAccount", short: []string{"sa"}},
	{version: "v1", name: "services", singular: "service", kind: "Service", short: []string{"svc"}, status: true},
	{version: "v1", name: "persistentvolumeclaims", singular: "persistentvolumeclaim", kind: "PersistentVolumeClaim",
		short: []string{"pvc"}, status: true},
	{version: "v1", name: "events", singular: "event", kind: "Event", short: []string{"ev"}},
	{group: "apps", version: "v1", name: "deployments", singular: "deployment", kind: "Deployment", short: []string{"deploy"},
		status: true, generation: true},
	{group: "apps", version: "v1", name: "statefulsets", singular: "statefulset", kind: "StatefulSet", short: []string{"sts"},
		status: true, generation: true},
	{group: "apps", version: "v1", name: "daemonsets", singular: "daemonset", kind: "DaemonSet", short: []string{"ds"}, status: true,
		generation: true},
	{group: "apps", version: "v1", name: "replicasets", singular: "replicaset", kind: "ReplicaSet", short: []string{"rs"},
		status: true, generation: true},
	{group: "batch", version: "v1", name: "jobs", singular: "job", kind: "Job", status: true, generation: true},
	{group: "batch", version: "v1", name: "cronjobs", singular: "cronjob", kind: "CronJob", short: []string{"cj"}, status: true,
		generation: true},
	{group: "networking.k8s.io", version: "v1", name: "ingresses", singular: "ingress", kind: "Ingress", short: []string{"ing"},
		status: true, generation: true},
	{group: "policy", version: "v1", name: "poddisruptionbudgets", singular: "poddisruptionbudget", kind: "PodDisruptionBudget",
		short: []string{"pdb"}, status: true, generation: true},
	{group: "autoscaling", version: "v2", name: "horizontalpodautoscalers", singular: "horizontalpodautoscaler",
		kind: "HorizontalPodAutoscaler", short: []string{"hpa"}, status: true},
	{group: "rbac.authorization.k8s.io", version: "v1", name: "clusterroles", singular: "clusterrole", kind: "ClusterRole",
		cluster: true},
	{group: "rbac.authorization.k8s.io", version: "v1", name: "clusterrolebindings", singular: "clusterrolebinding",
		kind: "ClusterRoleBinding", cluster: true},
	{group: "rbac.authorization.k8s.io", version: "v1", name: "roles", singular: "role", kind: "Role"},
	{group: "rbac.authorization.k8s.io", version: "v1", name: "rolebindings", singular: "rolebinding", kind: "RoleBinding"},
	{group: "coordination.k8s.io", version: "v1", name: "leases", singular: "lease", kind: "Lease"},
	{group: "events.k8s.io", version: "v1", name: "events", singular: "event", kind: "Event", short: []string{"ev"}},
}

var (
	namespaces      = find("", "v1", "namespaces")
	nodes           = find("", "v1", "nodes")
	secrets         = find("", "v1", "secrets")
	serviceAccounts = find("", "v1", "serviceaccounts")
	deployments     = find("apps", "v1", "deployments")
)

// find is nil for what is not served.
func find(group, version, name string) *resource {
	i := slices.IndexFunc(resources, func(r resource) bool { return r.group == group && r.version == version && r.name == name })
	if i < 0 {
		return nil
	}
	return &resources[i]
}

func (r *resource) gvk() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: r.group, Version: r.version, Kind: r.kind}
}

func (r *resource) groupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.group, Resource: r.name}
}

var verbs = metav1.Verbs{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}

// groups lists what is served as /apis shows it.
func groups() *metav1.APIGroupList {
	list := &metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	for _, r := range resources {
		if r.group == "" || slices.ContainsFunc(list.Groups, func(g metav1.APIGroup) bool { return g.Name == r.group }) {
			continue
		}
		v := metav1.GroupVersionForDiscovery{GroupVersion: r.group + "/" + r.version, Version: r.version}
		list.Groups = append(list.Groups, metav1.APIGroup{Name: r.group, Versions: []metav1.GroupVersionForDiscovery{v},
			PreferredVersion: v})
	}
	return list
}

// resourcesOf lists the kinds of a group; nil if there is no such group.
func resourcesOf(group, version string) *metav1.APIResourceList {
	gv := schema.GroupVersion{Group: group, Version: version}
	list := &metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: gv.String()}
	for _, r := range resources {
		if r.group != group || r.version != version {
			continue
		}
		can := verbs
		if r.name == "namespaces" {
			can = slices.DeleteFunc(slices.Clone(verbs), func(verb string) bool { return verb == "deletecollection" })
		}
		list.APIResources = append(list.APIResources, metav1.APIResource{
			Name: r.name, SingularName: r.singular, Namespaced: !r.cluster, Kind: r.kind, Verbs: can, ShortNames: r.short,
		})
		if r.status {
			list.APIResources = append(list.APIResources, metav1.APIResource{
				Name: r.name + "/status", Namespaced: !r.cluster, Kind: r.kind, Verbs: metav1.Verbs{"get", "patch", "update"},
			})
		}
	}
	if len(list.APIResources) == 0 {
		return nil
	}
	return list
}
