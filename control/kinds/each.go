package kinds

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// OfEachCluster reports whether an object is one that every cluster makes itself, with a content of
// its own: the hub's is never sent to members.
func OfEachCluster(gk schema.GroupKind, o client.Object) bool {
	name := o.GetName()
	if o.GetLabels()["kubernetes.io/bootstrapping"] != "" || o.GetLabels()["kube-aggregator.kubernetes.io/automanaged"] != "" {
		return true // RBAC's defaults, APIServices of the API server and of CRDs
	}
	switch gk {
	case schema.GroupKind{Kind: "ConfigMap"}:
		return name == rootCA || name == "openshift-service-ca.crt"
	case schema.GroupKind{Kind: "Service"}, schema.GroupKind{Kind: "Endpoints"}:
		return o.GetNamespace() == "default" && name == "kubernetes"
	case schema.GroupKind{Kind: "Namespace"}:
		return name == "default"
	case schema.GroupKind{Group: "scheduling.k8s.io", Kind: "PriorityClass"}:
		return strings.HasPrefix(name, "system-")
	case schema.GroupKind{Group: "flowcontrol.apiserver.k8s.io", Kind: "FlowSchema"}, schema.GroupKind{Group: "flowcontrol.apiserver.k8s.io", Kind: "PriorityLevelConfiguration"}:
		_, generated := o.GetAnnotations()["apf.kubernetes.io/autoupdate-spec"]
		return generated
	}
	return false
}
