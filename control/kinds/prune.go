package kinds

import (
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// pruneCommon removes what no template gives to a member. Finalizers and owners are the hub's: their controllers and objects are not
// in the member.
func pruneCommon(obj *unstructured.Unstructured) {
	for _, field := range []string{
		"creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "managedFields", "resourceVersion",
		"selfLink", "uid", "ownerReferences", "finalizers",
	} {
		unstructured.RemoveNestedField(obj.Object, "metadata", field)
	}
	unstructured.RemoveNestedField(obj.Object, "status")
}

// drop removes a field, and the maps that are empty without it.
func drop(m map[string]any, path ...string) {
	if len(path) == 1 {
		delete(m, path[0])
		return
	}
	child, ok := m[path[0]].(map[string]any)
	if !ok {
		return
	}
	before := len(child)
	drop(child, path[1:]...)
	if before > 0 && len(child) == 0 {
		delete(m, path[0])
	}
}

// pruneDeployment removes what the deployment controller counts.
func pruneDeployment(obj *unstructured.Unstructured) error {
	drop(obj.Object, "metadata", "annotations", "deployment.kubernetes.io/revision")
	drop(obj.Object, "metadata", "annotations", "deployment.kubernetes.io/revision-history")
	return nil
}

// pruneJob removes the selector that the hub's API server made, with its labels, and the time to live: a member that deletes the
// finished Job would get it again.
func pruneJob(obj *unstructured.Unstructured) error {
	drop(obj.Object, "spec", "ttlSecondsAfterFinished")
	manual, _, err := unstructured.NestedBool(obj.Object, "spec", "manualSelector")
	if err != nil || manual {
		return err
	}
	for _, key := range []string{"controller-uid", "job-name", batchv1.ControllerUidLabel, batchv1.JobNameLabel} {
		drop(obj.Object, "spec", "selector", "matchLabels", key)
		drop(obj.Object, "spec", "template", "metadata", "labels", key)
	}
	return nil
}

// pruneSecret removes the token of a service account, which another cluster refuses.
func pruneSecret(obj *unstructured.Unstructured) error {
	if !holdsToken(obj) {
		return nil
	}
	drop(obj.Object, "data")
	drop(obj.Object, "metadata", "annotations", corev1.ServiceAccountUIDKey)
	return nil
}

func holdsToken(secret *unstructured.Unstructured) bool {
	return secret.Object["type"] == string(corev1.SecretTypeServiceAccountToken)
}

// pruneServiceAccount removes the references to tokens that old controllers made.
func pruneServiceAccount(obj *unstructured.Unstructured) error {
	all, found, err := unstructured.NestedSlice(obj.Object, "secrets")
	if err != nil || !found {
		return err
	}
	var kept []any
	for _, s := range all {
		if name := nameOf(s); !strings.HasPrefix(name, obj.GetName()+"-token-") {
			kept = append(kept, s)
		}
	}
	if len(kept) == 0 {
		delete(obj.Object, "secrets")
		return nil
	}
	return unstructured.SetNestedSlice(obj.Object, kept, "secrets")
}

// nameOf is the field name of an element of a list; "" if it has none.
func nameOf(element any) string {
	m, _ := element.(map[string]any) // nil has no fields
	name, _ := m["name"].(string)
	return name
}

// pruneService removes the addresses out of the hub's range; a headless Service stays one.
func pruneService(obj *unstructured.Unstructured) error {
	ip, _, err := unstructured.NestedString(obj.Object, "spec", "clusterIP")
	if err != nil || ip == corev1.ClusterIPNone {
		return err
	}
	drop(obj.Object, "spec", "clusterIP")
	drop(obj.Object, "spec", "clusterIPs")
	return nil
}

// pruneClaim removes the node that a scheduler chose.
func pruneClaim(obj *unstructured.Unstructured) error {
	drop(obj.Object, "metadata", "annotations", "volume.kubernetes.io/selected-node")
	return nil
}
