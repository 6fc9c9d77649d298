package kinds

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// retainCommon keeps what is the member's in any object. A label or annotation is ours if we want it, or if the object lists it as
// ours: then it goes when we no longer want it.
func retainCommon(desired, observed *unstructured.Unstructured) {
	desired.SetResourceVersion(observed.GetResourceVersion())
	desired.SetFinalizers(observed.GetFinalizers())
	desired.SetOwnerReferences(observed.GetOwnerReferences())
	ledger := observed.GetAnnotations()
	if merged := merge(desired.GetLabels(), observed.GetLabels(), ledger[workv1alpha2.AnnotationManagedLabels]); len(merged) > 0 {
		desired.SetLabels(merged)
	}
	if merged := merge(desired.GetAnnotations(), ledger, ledger[workv1alpha2.AnnotationManagedAnnotations]); len(merged) > 0 {
		desired.SetAnnotations(merged)
	}
}

// merge returns what is desired, and what is observed and not listed as ours.
func merge(desired, observed map[string]string, ours string) map[string]string {
	listed := strings.Split(ours, ",")
	out := map[string]string{}
	for key, value := range observed {
		if !slices.Contains(listed, key) {
			out[key] = value
		}
	}
	for key, value := range desired {
		out[key] = value
	}
	return out
}

// copyField sets a field of the desired object to its value in the observed one, if it is there.
func copyField(desired, observed map[string]any, path ...string) error {
	value, found, err := unstructured.NestedFieldCopy(observed, path...)
	if err != nil || !found || value == nil {
		return err
	}
	return unstructured.SetNestedField(desired, value, path...)
}

// retainReplicas leaves the number of replicas to the member where the label of the template says so.
func retainReplicas(desired, observed *unstructured.Unstructured) error {
	if desired.GetLabels()[workv1alpha2.LabelRetainReplicas] != "true" {
		return nil
	}
	return copyField(desired.Object, observed.Object, "spec", "replicas")
}

// retainJob keeps the selector that the member's API server made, with the labels that it put on the pods.
func retainJob(desired, observed *unstructured.Unstructured) error {
	if err := copyField(desired.Object, observed.Object, "spec", "selector"); err != nil {
		return err
	}
	return copyField(desired.Object, observed.Object, "spec", "template", "metadata", "labels")
}

// retainPod keeps what cannot change in a pod that runs: its node, and what admission gave it.
func retainPod(desired, observed *unstructured.Unstructured) error {
	for _, field := range []string{"nodeName", "serviceAccountName", "volumes"} {
		if err := mirror(desired.Object, observed.Object, "spec", field); err != nil {
			return err
		}
	}
	for _, field := range []string{"containers", "initContainers"} {
		if err := retainMounts(desired.Object, observed.Object, field); err != nil {
			return err
		}
	}
	return nil
}

// mirror makes a field as it is in the observed object, also not there.
func mirror(desired, observed map[string]any, path ...string) error {
	unstructured.RemoveNestedField(desired, path...)
	return copyField(desired, observed, path...)
}

// retainMounts keeps the volumeMounts of the containers of equal name.
func retainMounts(desired, observed map[string]any, field string) error {
	have, _, err := unstructured.NestedSlice(observed, "spec", field)
	if err != nil {
		return err
	}
	want, found, err := unstructured.NestedSlice(desired, "spec", field)
	if err != nil || !found {
		return err
	}
	for _, w := range want {
		i := slices.IndexFunc(have, func(h any) bool { return nameOf(h) == nameOf(w) })
		if i < 0 || nameOf(w) == "" {
			continue
		}
		if err := mirror(w.(map[string]any), have[i].(map[string]any), "volumeMounts"); err != nil {
			return err
		}
	}
	return unstructured.SetNestedSlice(desired, want, "spec", field)
}

// retainService keeps the member's addresses and port for health checks. An address that is desired (None, or one that an override
// sets) stays, so that the member says what it has against the change.
func retainService(desired, observed *unstructured.Unstructured) error {
	ip, _, err := unstructured.NestedString(desired.Object, "spec", "clusterIP")
	if err != nil {
		return err
	}
	if ip == "" {
		for _, field := range []string{"clusterIP", "clusterIPs"} {
			if err := copyField(desired.Object, observed.Object, "spec", field); err != nil {
				return err
			}
		}
	}
	return copyField(desired.Object, observed.Object, "spec", "healthCheckNodePort")
}

// retainServiceAccount keeps the references that the member added.
func retainServiceAccount(desired, observed *unstructured.Unstructured) error {
	for _, field := range []string{"secrets", "imagePullSecrets"} {
		want, _, err := unstructured.NestedSlice(desired.Object, field)
		if err != nil {
			return err
		}
		have, _, err := unstructured.NestedSlice(observed.Object, field)
		if err != nil {
			return err
		}
		for _, h := range have {
			if !slices.ContainsFunc(want, func(w any) bool { return nameOf(w) == nameOf(h) }) {
				want = append(want, h)
			}
		}
		if len(want) > 0 {
			if err := unstructured.SetNestedSlice(desired.Object, want, field); err != nil {
				return err
			}
		}
	}
	return nil
}

// retainSecret keeps the token of a service account.
func retainSecret(desired, observed *unstructured.Unstructured) error {
	if !holdsToken(desired) {
		return nil
	}
	return copyField(desired.Object, observed.Object, "data")
}

// retainClaim keeps the volume that the claim is bound to.
func retainClaim(desired, observed *unstructured.Unstructured) error {
	return copyField(desired.Object, observed.Object, "spec", "volumeName")
}

// retainVolume keeps the claim that the volume is bound to.
func retainVolume(desired, observed *unstructured.Unstructured) error {
	return copyField(desired.Object, observed.Object, "spec", "claimRef")
}
