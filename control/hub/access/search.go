package access

import (
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	searchv1alpha1 "github.com/pelago-net/pelago/api/search/v1alpha1"
	"github.com/pelago-net/pelago/control/hub/access/merge"
	"github.com/pelago-net/pelago/scheduler"
)

// target is the object, or the list if name is empty, that a path of the Kubernetes API names.
type target struct {
	schema.GroupVersionResource
	namespace, name, sub string
}

// parseTarget reports false for paths that are not of objects, such as discovery.
func parseTarget(path string) (t target, ok bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case parts[0] == "api" && len(parts) > 2:
		t.Version, parts = parts[1], parts[2:]
	case parts[0] == "apis" && len(parts) > 3:
		t.Group, t.Version, parts = parts[1], parts[2], parts[3:]
	default:
		return t, false
	}
	if parts[0] == "namespaces" && len(parts) > 2 && parts[2] != "status" && parts[2] != "finalize" {
		t.namespace, parts = parts[1], parts[2:]
	}
	parts = append(parts, "", "")
	t.Resource, t.name, t.sub = parts[0], parts[1], strings.Trim(strings.Join(parts[2:], "/"), "/")
	return t, true
}

// path is that of the object or list, without subresource.
func (t target) path() string {
	path := "/apis/" + t.Group + "/" + t.Version
	if t.Group == "" {
		path = "/api/" + t.Version
	}
	if t.namespace != "" {
		path += "/namespaces/" + t.namespace
	}
	return strings.TrimSuffix(path+"/"+t.Resource+"/"+t.name, "/")
}

// source is a list in a member: all objects of a resource, or those of a namespace. Its key is the
// name of the cluster, or cluster/namespace if registries select namespaces and the request has
// none.
type source struct {
	target
	merge.Part
	cluster *clusterv1alpha1.Cluster
}

// sources are the lists that registries select for a target, sorted by key. kind is that of the
// resource, if a member serves it. selected is false if no registry selects the kind in any member:
// then the hub's API server serves it.
func sources(t target, registries []searchv1alpha1.ResourceRegistry, clusters []clusterv1alpha1.Cluster) (out []source, kind string, selected bool) {
	var affinities []scheduler.Affinity
	registries = slices.DeleteFunc(slices.Clone(registries), func(r searchv1alpha1.ResourceRegistry) bool {
		affinity, err := scheduler.ParseAffinity(&r.Spec.TargetCluster)
		// Accepted=False
		ignored := err != nil || r.Spec.BackendStore != nil && r.Spec.BackendStore.OpenSearch != nil
		if !ignored {
			affinities = append(affinities, affinity)
		}
		return ignored
	})
	for i := range clusters {
		c := &clusters[i]
		served := kindOf(c, t)
		if served == "" || !c.Member() || !c.Takes() {
			continue
		}
		kind = served
		namespaces := map[string]bool{}
		for j := range registries {
			for _, s := range registries[j].Spec.ResourceSelectors {
				if s.Kind == kind && s.APIVersion == t.GroupVersion().String() && affinities[j].Matches(c) {
					namespaces[s.Namespace] = true
				}
			}
		}
		selected = selected || len(namespaces) > 0
		s := source{t, merge.Part{Key: c.Name, Cluster: c.Name, Kind: kind, APIVersion: t.GroupVersion().String()}, c}
		switch {
		case namespaces[""] || t.namespace != "" && namespaces[t.namespace]:
			out = append(out, s.inNamespace(t.namespace))
		case t.namespace == "":
			for n := range namespaces {
				s.Key = c.Name + "/" + n
				out = append(out, s.inNamespace(n))
			}
		}
	}
	slices.SortFunc(out, func(a, b source) int { return strings.Compare(a.Key, b.Key) })
	return out, kind, selected
}

func (s source) inNamespace(n string) source {
	s.namespace, s.Namespace = n, n
	return s
}

// kindOf is the kind of a target as the status of a cluster has it; empty: it is not served there.
func kindOf(c *clusterv1alpha1.Cluster, t target) string {
	for _, e := range c.Status.APIEnablements {
		if e.GroupVersion != t.GroupVersion().String() {
			continue
		}
		for _, r := range e.Resources {
			if r.Name == t.Resource {
				return r.Kind
			}
		}
	}
	return ""
}

// parts are the sources as kube merges them.
func parts(of []source) []merge.Part {
	out := make([]merge.Part, len(of))
	for i := range of {
		out[i] = of[i].Part
	}
	return out
}

// jsonOnly are the JSON types of the header Accept, with their parameters (Table,
// PartialObjectMetadata): answers are merged, or changed, as JSON.
func jsonOnly(q *http.Request) (string, error) {
	var out []string
	accept := strings.Join(q.Header.Values("Accept"), ",")
	for kind := range strings.SplitSeq(accept, ",") {
		switch name, _, _ := strings.Cut(kind, ";"); strings.TrimSpace(name) {
		case "application/json":
			out = append(out, kind)
		case "", "*/*", "application/*":
			out = append(out, "application/json")
		}
	}
	if len(out) == 0 {
		return "", rejection(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, accept+" is not served here: accept application/json")
	}
	return strings.Join(out, ","), nil
}
