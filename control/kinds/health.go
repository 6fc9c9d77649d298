package kinds

import (
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
)

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
