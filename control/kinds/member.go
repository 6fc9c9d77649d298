package kinds

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

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

// What a reflected status says besides the status: whether the member's controller has seen the object, and of which generation of
// the template the object is.
const (
	fieldObservedGeneration = "observedGeneration"
	fieldGeneration         = "generation"
	fieldTemplateGeneration = "resourceTemplateGeneration"
)

func wholeStatus(observed *unstructured.Unstructured) (map[string]any, error) {
	status, _, err := unstructured.NestedMap(observed.Object, "status")
	return status, err
}

// fields reflects the named fields of the status.
func fields(names ...string) func(*unstructured.Unstructured) (map[string]any, error) {
	return func(observed *unstructured.Unstructured) (map[string]any, error) {
		status, err := wholeStatus(observed)
		if err != nil || status == nil {
			return nil, err
		}
		out := map[string]any{}
		for _, name := range names {
			if value, there := status[name]; there {
				out[name] = value
			}
		}
		return out, nil
	}
}

// reflect returns the counts, and what observedGeneration needs.
func (c counts[T]) reflect(observed *unstructured.Unstructured) (map[string]any, error) {
	out, err := fields(append([]string{fieldObservedGeneration}, c...)...)(observed)
	if err != nil || out == nil {
		return nil, err
	}
	out[fieldGeneration] = observed.GetGeneration()
	if text, there := observed.GetAnnotations()[workv1alpha2.AnnotationTemplateGeneration]; there {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("annotation %s: %w", workv1alpha2.AnnotationTemplateGeneration, err)
		}
		out[fieldTemplateGeneration] = n
	}
	return out, nil
}

// reflectBudget: the counts, and the pods that are about to go.
func reflectBudget(observed *unstructured.Unstructured) (map[string]any, error) {
	out, err := budgetCounts.reflect(observed)
	if err != nil || out == nil {
		return nil, err
	}
	pods, err := fields("disruptedPods")(observed)
	if err != nil {
		return nil, err
	}
	for k, v := range pods {
		out[k] = v
	}
	return out, nil
}

// withoutPods is the spec of a workload, without the template of its pods, and its status: the template is the most of an object, and
// of no concern to whether it is healthy.
func withoutPods(obj *unstructured.Unstructured) map[string]any {
	out := map[string]any{"status": obj.Object["status"]}
	if spec, ok := obj.Object["spec"].(map[string]any); ok {
		spec = maps.Clone(spec)
		delete(spec, "template")
		out["spec"] = spec
	}
	return out
}

// deploymentHealthy: the controller has seen the spec, all replicas are of it, and they are available.
func deploymentHealthy(obj *unstructured.Unstructured) (bool, error) {
	d, err := typed[appsv1.Deployment](withoutPods(obj))
	if err != nil {
		return false, err
	}
	s := d.Status
	return s.ObservedGeneration == obj.GetGeneration() && s.UpdatedReplicas >= ptr.Deref(d.Spec.Replicas, 1) &&
		s.AvailableReplicas >= s.UpdatedReplicas, nil
}

func replicaSetHealthy(obj *unstructured.Unstructured) (bool, error) {
	r, err := typed[appsv1.ReplicaSet](withoutPods(obj))
	if err != nil {
		return false, err
	}
	return r.Status.ObservedGeneration == obj.GetGeneration() && r.Status.AvailableReplicas >= ptr.Deref(r.Spec.Replicas, 1), nil
}

// statefulSetHealthy: as a Deployment, but a rolling update stops at the partition: pods below it stay as they are.
func statefulSetHealthy(obj *unstructured.Unstructured) (bool, error) {
	x, err := typed[appsv1.StatefulSet](withoutPods(obj))
	if err != nil {
		return false, err
	}
	all := ptr.Deref(x.Spec.Replicas, 1)
	updated := all
	if r := x.Spec.UpdateStrategy.RollingUpdate; r != nil {
		updated -= ptr.Deref(r.Partition, 0)
	}
	return x.Status.ObservedGeneration == obj.GetGeneration() && x.Status.UpdatedReplicas >= updated && x.Status.AvailableReplicas >= all, nil
}

func daemonSetHealthy(obj *unstructured.Unstructured) (bool, error) {
	d, err := typed[appsv1.DaemonSet](withoutPods(obj))
	if err != nil {
		return false, err
	}
	s := d.Status
	return s.ObservedGeneration == obj.GetGeneration() && s.UpdatedNumberScheduled >= s.DesiredNumberScheduled &&
		s.NumberAvailable >= s.UpdatedNumberScheduled, nil
}

// serviceHealthy: a load balancer has an address. Any other Service is healthy.
func serviceHealthy(obj *unstructured.Unstructured) (bool, error) {
	s, err := typed[corev1.Service](obj.Object)
	if err != nil {
		return false, err
	}
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return true, nil
	}
	for _, in := range s.Status.LoadBalancer.Ingress {
		if in.IP != "" || in.Hostname != "" {
			return true, nil
		}
	}
	return false, nil
}

func ingressHealthy(obj *unstructured.Unstructured) (bool, error) {
	i, err := typed[networkingv1.Ingress](obj.Object)
	if err != nil {
		return false, err
	}
	for _, in := range i.Status.LoadBalancer.Ingress {
		if in.IP != "" || in.Hostname != "" {
			return true, nil
		}
	}
	return false, nil
}

func claimHealthy(obj *unstructured.Unstructured) (bool, error) {
	c, err := typed[corev1.PersistentVolumeClaim](obj.Object)
	if err != nil {
		return false, err
	}
	return c.Status.Phase == corev1.ClaimBound, nil
}

// podHealthy: it has done its work, or it runs and is ready.
func podHealthy(obj *unstructured.Unstructured) (bool, error) {
	p, err := typed[corev1.Pod](obj.Object)
	if err != nil {
		return false, err
	}
	if p.Status.Phase == corev1.PodSucceeded {
		return true, nil
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return p.Status.Phase == corev1.PodRunning && c.Status == corev1.ConditionTrue, nil
		}
	}
	return false, nil
}

func budgetHealthy(obj *unstructured.Unstructured) (bool, error) {
	b, err := typed[policyv1.PodDisruptionBudget](obj.Object)
	if err != nil {
		return false, err
	}
	return b.Status.CurrentHealthy >= b.Status.DesiredHealthy, nil
}
