package kinds

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/component-helpers/resource"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/scheduler"
)

// path is where an object has the spec of its pods.
type path []string

// pod reads the spec of the pods; an empty one if there is none.
func (p path) pod(obj *unstructured.Unstructured) (*corev1.PodSpec, error) {
	m, _, err := unstructured.NestedMap(obj.Object, p...)
	if err != nil {
		return nil, err
	}
	return typed[corev1.PodSpec](m)
}

// replicasOf reads spec.replicas (1 if it is not there) and what a pod asks for.
func replicasOf(p path) func(*unstructured.Unstructured) (int32, *workv1alpha2.ReplicaRequirements, error) {
	return func(obj *unstructured.Unstructured) (int32, *workv1alpha2.ReplicaRequirements, error) {
		n, err := int32At(obj, 1, "spec", "replicas")
		if err != nil {
			return 0, nil, err
		}
		each, err := p.requirements(obj)
		return n, each, err
	}
}

// jobReplicas are the pods that run at a time: never more than there are completions.
func jobReplicas(obj *unstructured.Unstructured) (int32, *workv1alpha2.ReplicaRequirements, error) {
	n, err := int32At(obj, 1, "spec", "parallelism")
	if err != nil {
		return 0, nil, err
	}
	completions, err := int32At(obj, n, "spec", "completions")
	if err != nil {
		return 0, nil, err
	}
	each, err := podTemplate.requirements(obj)
	return min(n, completions), each, err
}

func podReplicas(obj *unstructured.Unstructured) (int32, *workv1alpha2.ReplicaRequirements, error) {
	each, err := podItself.requirements(obj)
	return 1, each, err
}

func setReplicas(obj *unstructured.Unstructured, n int32) error {
	return unstructured.SetNestedField(obj.Object, int64(n), "spec", "replicas")
}

func setParallelism(obj *unstructured.Unstructured, n int32) error {
	return unstructured.SetNestedField(obj.Object, int64(n), "spec", "parallelism")
}

// Completions divides the completions of a Job over the clusters by the replicas that they have; nil if the Job has no completions or
// no cluster has replicas. A duplicated Job is not divided: then this is not to be asked.
func Completions(job *unstructured.Unstructured, assigned map[string]int64) (map[string]int64, error) {
	total, found, err := unstructured.NestedInt64(job.Object, "spec", "completions")
	if err != nil {
		return nil, failed("read the completions of", job, err)
	}
	if !found {
		return nil, nil
	}
	return scheduler.Split(total, assigned, job.GetUID()), nil
}

// SetCompletions gives a Job, which it changes, a cluster's part of the completions.
func SetCompletions(job *unstructured.Unstructured, n int64) error {
	if err := unstructured.SetNestedField(job.Object, n, "spec", "completions"); err != nil {
		return failed("set the completions of", job, err)
	}
	return nil
}

// requirements are what one pod asks for, nil if that is nothing.
func (p path) requirements(obj *unstructured.Unstructured) (*workv1alpha2.ReplicaRequirements, error) {
	spec, err := p.pod(obj)
	if err != nil {
		return nil, fmt.Errorf("read the pods: %w", err)
	}
	return podRequirements(spec, obj.GetNamespace()), nil
}

// podRequirements are what a pod asks for, nil if that is nothing. A container that has only limits requests them, as the API server
// has it for pods. The spec is changed.
func podRequirements(spec *corev1.PodSpec, namespace string) *workv1alpha2.ReplicaRequirements {
	for _, containers := range [][]corev1.Container{spec.Containers, spec.InitContainers} {
		for i := range containers {
			requestLimits(&containers[i].Resources)
		}
	}
	out := &workv1alpha2.ReplicaRequirements{
		ResourceRequest: resource.PodRequests(&corev1.Pod{Spec: *spec}, resource.PodResourcesOptions{}),
		Namespace:       namespace, PriorityClassName: spec.PriorityClassName,
	}
	if len(out.ResourceRequest) == 0 {
		out.ResourceRequest = nil
	}
	claim := workv1alpha2.NodeClaim{NodeSelector: spec.NodeSelector, Tolerations: spec.Tolerations}
	if a := spec.Affinity; a != nil && a.NodeAffinity != nil {
		claim.HardNodeAffinity = a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	if len(claim.NodeSelector) > 0 || len(claim.Tolerations) > 0 || claim.HardNodeAffinity != nil {
		out.NodeClaim = &claim
	}
	if out.NodeClaim == nil && out.ResourceRequest == nil && out.PriorityClassName == "" {
		return nil
	}
	return out
}

func requestLimits(r *corev1.ResourceRequirements) {
	for name, limit := range r.Limits {
		if _, there := r.Requests[name]; there {
			continue
		}
		if r.Requests == nil {
			r.Requests = corev1.ResourceList{}
		}
		r.Requests[name] = limit
	}
}
