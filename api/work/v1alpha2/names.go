// Names of the objects of propagation are Karmada's: binding nginx-deployment, Work
// nginx-687f7fb96f in karmada-es-member1.

package v1alpha2

import (
	"fmt"
	"hash/fnv"
	"strings"

	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
)

// BindingName is the name of a template's binding, `<name>-<kind>` in lower case. What is longer
// than a name may be is cut, and a hash of the whole keeps it apart.
func BindingName(of ObjectReference) string {
	return fit(plain(of.Name) + "-" + strings.ToLower(of.Kind))
}

// AlternateBindingName is the name of a template's binding if another kind of the same name (Job of
// two groups) has taken BindingName's. Find a binding by spec.resource, not by name.
func AlternateBindingName(of ObjectReference) string {
	group, _, _ := strings.Cut(of.APIVersion, "/")
	return fit(fmt.Sprintf("%s-%08x", BindingName(of), sum(group)))
}

// WorkName is the name of a template's Work, in each execution namespace: its name and the 32-bit
// FNV-1a hash of `<namespace>-<name>-<kind>` in lower case, written as Karmada writes it. Two
// templates may have the same one; then the second takes AlternateWorkName's.
func WorkName(of ObjectReference) string {
	key := plain(of.Name) + "-" + of.Kind
	if of.Namespace != "" {
		key = of.Namespace + "-" + key
	}
	return fit(plain(of.Name) + "-" + rand.SafeEncodeString(fmt.Sprint(sum(strings.ToLower(key)))))
}

// AlternateWorkName is the name of a Work if WorkName's is taken by another template.
func AlternateWorkName(of ObjectReference) string {
	return fit(fmt.Sprintf("%s-%08x", WorkName(of), sum(of.APIVersion+"/"+of.Kind+"/"+of.Namespace+"/"+of.Name)))
}

// ExecutionNamespace is the execution namespace of a cluster.
func ExecutionNamespace(cluster string) string {
	return clusterv1alpha1.ExecutionNamespacePrefix + cluster
}

// ClusterOfNamespace is the cluster of an execution namespace; ok is false for any other namespace.
func ClusterOfNamespace(namespace string) (cluster string, ok bool) {
	return strings.CutPrefix(namespace, clusterv1alpha1.ExecutionNamespacePrefix)
}

// ReservedNamespace reports whether a namespace is the system's: neither it nor what is in it is
// propagated.
func ReservedNamespace(namespace string) bool {
	switch namespace {
	case "karmada-system", clusterv1alpha1.SecretNamespace, "pelago-system", "submariner-k8s-broker", "submariner-operator":
		return true
	}
	_, execution := ClusterOfNamespace(namespace)
	return execution || strings.HasPrefix(namespace, "kube-")
}

// plain makes of a template's name (names of RBAC objects have colons) part of another object's.
func plain(name string) string { return strings.ToLower(strings.ReplaceAll(name, ":", ".")) }

func fit(name string) string {
	if len(name) <= validation.DNS1123SubdomainMaxLength {
		return name
	}
	hash := fmt.Sprintf("-%08x", sum(name))
	return strings.TrimRight(name[:validation.DNS1123SubdomainMaxLength-len(hash)], "-.") + hash
}

func sum(text string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(text)) // a hash takes everything
	return h.Sum32()
}
