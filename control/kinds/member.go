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

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// retainCommon keeps the fields of any kind that the member owns. A label or annotation is ours if
// it is desired, or if an annotation of the object lists it as ours; then it is removed once it is
// no longer desired.
func retainCommon(desired, observed *unstructured.Unstructured) {
	desired.SetResourceVersion(observed.GetResourceVersion())
	desired.SetFinalizers(observed.GetFinalizers())
	desired.SetOwnerReferences(observed.GetOwnerReferences())
	managed := observed.GetAnnotations()
	if merged := merge(desired.GetLabels(), observed.GetLabels(), managed[workv1alpha2.AnnotationManagedLabels]); len(merged) > 0 {
		desired.SetLabels(merged)
	}
	if merged := merge(desired.GetAnnotations(), managed, managed[workv1alpha2.AnnotationManagedAnnotations]); len(merged) > 0 {
		desired.SetAnnotations(merged)
	}
}

// merge adds to the desired entries those observed that are not listed as ours.
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

// copyField sets a field of the desired object to its observed value, if it has one.
func copyField(desired, observed map[string]any, path ...string) error {
	value, found, err := unstructured.NestedFieldCopy(observed, path...)
	if err != nil || !found || value == nil {
		return err
	}
	return unstructured.SetNestedField(desired, value, path...)
}

// retainReplicas leaves the number of replicas to the member if the template has the label for it.
func retainReplicas(desired, observed *unstructured.Unstructured) error {
	if desired.GetLabels()[workv1alpha2.LabelRetainReplicas] != "true" {
		return nil
	}
	return copyField(desired.Object, observed.Object, "spec", "replicas")
}

// retainFields keeps fields that the member's API server or controllers set.
func retainFields(paths ...[]string) func(desired, observed *unstructured.Unstructured) error {
	return func(desired, observed *unstructured.Unstructured) error {
		for _, path := range paths {
			if err := copyField(desired.Object, observed.Object, path...); err != nil {
				return err
			}
		}
		return nil
	}
}

// retainPod keeps the immutable fields of a scheduled pod: its node, and those that admission set.
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

// mirror sets a field to its observed value, or removes it.
func mirror(desired, observed map[string]any, path ...string) error {
	unstructured.RemoveNestedField(desired, path...)
	return copyField(desired, observed, path...)
}

// retainMounts keeps the volumeMounts of containers, matched by name.
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

// retainService keeps the member's cluster IPs and health check port. A desired address (None, or
// one that an override sets) is not replaced: the member reports why it refuses the change. None is
// no address: package execute finds that the Service is to be no longer headless.
func retainService(desired, observed *unstructured.Unstructured) error {
	ip, _, err := unstructured.NestedString(desired.Object, "spec", "clusterIP")
	if err != nil {
		return err
	}
	has, _, err := unstructured.NestedString(observed.Object, "spec", "clusterIP")
	if err != nil {
		return err
	}
	if ip == "" && has != corev1.ClusterIPNone {
		for _, field := range []string{"clusterIP", "clusterIPs"} {
			if err := copyField(desired.Object, observed.Object, "spec", field); err != nil {
				return err
			}
		}
	}
	return copyField(desired.Object, observed.Object, "spec", "healthCheckNodePort")
}

// accountFields are the lists of references of a ServiceAccount.
var accountFields = []string{"secrets", "imagePullSecrets"}

// NoteReferences lists, in an annotation of a ServiceAccount that goes to a member, the references
// that the hub wrote: imagePullSecrets is one value for server-side apply, so managed fields do not
// distinguish them from the member's own.
func NoteReferences(account *unstructured.Unstructured) {
	if account.GroupVersionKind() != core("ServiceAccount") {
		return
	}
	var ours []string
	for _, field := range accountFields {
		list, _ := account.Object[field].([]any) // else the member refuses it
		for _, of := range list {
			ours = append(ours, field+"/"+nameOf(of))
		}
	}
	if len(ours) == 0 {
		return
	}
	annotations := account.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[workv1alpha1.AnnotationAppliedReferences] = strings.Join(ours, ",")
	account.SetAnnotations(annotations)
}

// retainServiceAccount keeps references that the member added. Those that the hub wrote before and
// no longer does are removed.
func retainServiceAccount(desired, observed *unstructured.Unstructured) error {
	ours := strings.Split(observed.GetAnnotations()[workv1alpha1.AnnotationAppliedReferences], ",")
	for _, field := range accountFields {
		want, _, err := unstructured.NestedSlice(desired.Object, field)
		if err != nil {
			return err
		}
		have, _, err := unstructured.NestedSlice(observed.Object, field)
		if err != nil {
			return err
		}
		for _, h := range have {
			if !slices.Contains(ours, field+"/"+nameOf(h)) && !slices.ContainsFunc(want, func(w any) bool { return nameOf(w) == nameOf(h) }) {
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

// Fields of a reflected status: whether the member's controller has observed the object, and the
// generation of the template that the object was made from.
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

// reflect returns the counts, and the generations from which observedGeneration is aggregated.
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

// reflectBudget returns the counts, conditions and the disrupted pods.
func reflectBudget(observed *unstructured.Unstructured) (map[string]any, error) {
	out, err := reflectBudgetCounts(observed)
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

// healthOf makes an operation of a health rule on the typed object. It converts only spec, status
// and generation, without the pod template: that is the largest part of a workload and has no
// influence on its health.
func healthOf[T any](healthy func(*T) bool) func(*unstructured.Unstructured) (bool, error) {
	return func(obj *unstructured.Unstructured) (bool, error) {
		view := map[string]any{"metadata": map[string]any{"generation": obj.GetGeneration()}, "status": obj.Object["status"]}
		if spec, ok := obj.Object["spec"].(map[string]any); ok {
			spec = maps.Clone(spec)
			delete(spec, "template")
			view["spec"] = spec
		}
		t, err := typed[T](view)
		return err == nil && healthy(t), err
	}
}

// deploymentHealthy: the controller has observed the spec; all replicas are updated and available.
func deploymentHealthy(d *appsv1.Deployment) bool {
	s := d.Status
	return s.ObservedGeneration == d.Generation && s.UpdatedReplicas >= ptr.Deref(d.Spec.Replicas, 1) &&
		s.AvailableReplicas >= s.UpdatedReplicas
}

func replicaSetHealthy(r *appsv1.ReplicaSet) bool {
	return r.Status.ObservedGeneration == r.Generation && r.Status.AvailableReplicas >= ptr.Deref(r.Spec.Replicas, 1)
}

// statefulSetHealthy: as a Deployment, but a rolling update stops at the partition; pods below it
// are not updated.
func statefulSetHealthy(x *appsv1.StatefulSet) bool {
	all := ptr.Deref(x.Spec.Replicas, 1)
	updated := all
	if r := x.Spec.UpdateStrategy.RollingUpdate; r != nil {
		updated -= ptr.Deref(r.Partition, 0)
	}
	return x.Status.ObservedGeneration == x.Generation && x.Status.UpdatedReplicas >= updated && x.Status.AvailableReplicas >= all
}

func daemonSetHealthy(d *appsv1.DaemonSet) bool {
	s := d.Status
	return s.ObservedGeneration == d.Generation && s.UpdatedNumberScheduled >= s.DesiredNumberScheduled &&
		s.NumberAvailable >= s.UpdatedNumberScheduled
}

// serviceHealthy: a load balancer has an address. Any other Service is healthy.
func serviceHealthy(s *corev1.Service) bool {
	return s.Spec.Type != corev1.ServiceTypeLoadBalancer || slices.ContainsFunc(s.Status.LoadBalancer.Ingress,
		func(in corev1.LoadBalancerIngress) bool { return in.IP != "" || in.Hostname != "" })
}

func ingressHealthy(i *networkingv1.Ingress) bool {
	return slices.ContainsFunc(i.Status.LoadBalancer.Ingress,
		func(in networkingv1.IngressLoadBalancerIngress) bool { return in.IP != "" || in.Hostname != "" })
}

func claimHealthy(c *corev1.PersistentVolumeClaim) bool { return c.Status.Phase == corev1.ClaimBound }

// podHealthy: it has succeeded, or it runs and is ready.
func podHealthy(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded ||
		p.Status.Phase == corev1.PodRunning && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
}

func budgetHealthy(b *policyv1.PodDisruptionBudget) bool {
	return b.Status.CurrentHealthy >= b.Status.DesiredHealthy
}
