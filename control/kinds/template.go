package kinds

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/component-helpers/resource"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/scheduler"
)

// path leads to a field, mostly the pod spec of a kind.
type path []string

// pod reads the pod spec; an empty one if none exists.
func (p path) pod(obj *unstructured.Unstructured) (*corev1.PodSpec, error) {
	m, _, err := unstructured.NestedMap(obj.Object, p...)
	if err != nil {
		return nil, err
	}
	return typed[corev1.PodSpec](m)
}

// replicasOf reads spec.replicas (default 1) and the requirements of a pod.
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

// jobReplicas is the number of pods that run at a time, never more than the completions.
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

// Undivided is why the replicas of a template have to run in one cluster; empty: they need not.
func Undivided(template *unstructured.Unstructured) string {
	if template.GroupVersionKind().GroupKind() == batch("Job").GroupKind() {
		if mode, _, err := unstructured.NestedString(template.Object, "spec", "completionMode"); err == nil && mode == string(batchv1.IndexedCompletion) {
			return "an Indexed Job counts its indexes from 0 in each cluster"
		}
	}
	return ""
}

// Completions divides the completions of a Job over the clusters in proportion to their replicas;
// nil if the Job has no completions or no cluster has replicas. A duplicated Job is not divided.
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

// SetCompletions sets a cluster's share of the completions of a Job.
func SetCompletions(job *unstructured.Unstructured, n int64) error {
	if err := unstructured.SetNestedField(job.Object, n, "spec", "completions"); err != nil {
		return failed("set the completions of", job, err)
	}
	return nil
}

// requirements are those of one pod, nil if it requests nothing.
func (p path) requirements(obj *unstructured.Unstructured) (*workv1alpha2.ReplicaRequirements, error) {
	spec, err := p.pod(obj)
	if err != nil {
		return nil, fmt.Errorf("read the pods: %w", err)
	}
	return podRequirements(spec, obj.GetNamespace()), nil
}

// podRequirements are those of a pod, nil if it requests nothing. Limits without requests count as
// requests, as the API server defaults them in pods. The spec is changed.
func podRequirements(spec *corev1.PodSpec, namespace string) *workv1alpha2.ReplicaRequirements {
	for _, containers := range [][]corev1.Container{spec.Containers, spec.InitContainers} {
		for i := range containers {
			requestLimits(&containers[i].Resources)
		}
	}
	out := &workv1alpha2.ReplicaRequirements{
		ResourceRequest: resource.PodRequests(&corev1.Pod{Spec: *spec}, resource.PodResourcesOptions{}),
		ResourceLimits:  resource.PodLimits(&corev1.Pod{Spec: *spec}, resource.PodResourcesOptions{}),
		Namespace:       namespace, PriorityClassName: spec.PriorityClassName, Terminating: spec.ActiveDeadlineSeconds != nil,
	}
	if len(out.ResourceRequest) == 0 {
		out.ResourceRequest = nil
	}
	if len(out.ResourceLimits) == 0 {
		out.ResourceLimits = nil
	}
	claim := workv1alpha2.NodeClaim{NodeSelector: spec.NodeSelector, Tolerations: spec.Tolerations}
	if a := spec.Affinity; a != nil && a.NodeAffinity != nil {
		claim.HardNodeAffinity = a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	if len(claim.NodeSelector) > 0 || len(claim.Tolerations) > 0 || claim.HardNodeAffinity != nil {
		out.NodeClaim = &claim
	}
	if out.NodeClaim == nil && out.ResourceRequest == nil && out.PriorityClassName == "" && !out.Terminating {
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

// rootCA exists in every namespace; its content differs between clusters.
const rootCA = "kube-root-ca.crt"

// dependencies are the objects that the pods of a template refer to.
func (p path) dependencies(template *unstructured.Unstructured) ([]DependentReference, error) {
	spec, err := p.pod(template)
	if err != nil {
		return nil, err
	}
	return podDependencies(template.GetNamespace(), spec, nil), nil
}

// statefulSetDependencies omits volumes that claim templates of the same name replace.
func statefulSetDependencies(template *unstructured.Unstructured) ([]DependentReference, error) {
	spec, err := podTemplate.pod(template)
	if err != nil {
		return nil, err
	}
	claims, _, err := unstructured.NestedSlice(template.Object, "spec", "volumeClaimTemplates")
	if err != nil {
		return nil, err
	}
	claimed := map[string]bool{}
	for _, c := range claims {
		if m, ok := c.(map[string]any); ok {
			claimed[nameOf(m["metadata"])] = true
		}
	}
	return podDependencies(template.GetNamespace(), spec, claimed), nil
}

// ingressDependencies are the TLS Secrets.
func ingressDependencies(template *unstructured.Unstructured) ([]DependentReference, error) {
	all, _, err := unstructured.NestedSlice(template.Object, "spec", "tls")
	if err != nil {
		return nil, err
	}
	out := references{namespace: template.GetNamespace()}
	for _, t := range all {
		if m, ok := t.(map[string]any); ok {
			name, _ := m["secretName"].(string) // "" is no reference
			out.add("Secret", name)
		}
	}
	return out.sorted(), nil
}

func podDependencies(namespace string, spec *corev1.PodSpec, claimed map[string]bool) []DependentReference {
	out := references{namespace: namespace}
	for _, s := range spec.ImagePullSecrets {
		out.add("Secret", s.Name)
	}
	if spec.ServiceAccountName != "default" {
		out.add("ServiceAccount", spec.ServiceAccountName)
	}
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for _, c := range containers {
			out.addEnv(c.Env, c.EnvFrom)
		}
	}
	for _, c := range spec.EphemeralContainers {
		out.addEnv(c.Env, c.EnvFrom)
	}
	for i := range spec.Volumes {
		if !claimed[spec.Volumes[i].Name] {
			out.addVolume(&spec.Volumes[i])
		}
	}
	return out.sorted()
}

// references collects objects of the core group in one namespace.
type references struct {
	namespace string
	of        map[DependentReference]bool
}

func (r *references) add(kind, name string) {
	if name == "" || kind == "ConfigMap" && name == rootCA {
		return
	}
	if r.of == nil {
		r.of = map[DependentReference]bool{}
	}
	r.of[DependentReference{APIVersion: "v1", Kind: kind, Namespace: r.namespace, Name: name}] = true
}

func (r *references) addSecret(ref *corev1.LocalObjectReference) {
	if ref != nil {
		r.add("Secret", ref.Name)
	}
}

func (r *references) addEnv(env []corev1.EnvVar, from []corev1.EnvFromSource) {
	for _, e := range env {
		if e.ValueFrom == nil {
			continue
		}
		if x := e.ValueFrom.ConfigMapKeyRef; x != nil {
			r.add("ConfigMap", x.Name)
		}
		if x := e.ValueFrom.SecretKeyRef; x != nil {
			r.add("Secret", x.Name)
		}
	}
	for _, e := range from {
		if x := e.ConfigMapRef; x != nil {
			r.add("ConfigMap", x.Name)
		}
		if x := e.SecretRef; x != nil {
			r.add("Secret", x.Name)
		}
	}
}

func (r *references) addVolume(v *corev1.Volume) {
	switch {
	case v.ConfigMap != nil:
		r.add("ConfigMap", v.ConfigMap.Name)
	case v.Secret != nil:
		r.add("Secret", v.Secret.SecretName)
	case v.PersistentVolumeClaim != nil:
		r.add("PersistentVolumeClaim", v.PersistentVolumeClaim.ClaimName)
	case v.Projected != nil:
		for _, s := range v.Projected.Sources {
			if s.ConfigMap != nil {
				r.add("ConfigMap", s.ConfigMap.Name)
			}
			if s.Secret != nil {
				r.add("Secret", s.Secret.Name)
			}
		}
	case v.AzureFile != nil:
		r.add("Secret", v.AzureFile.SecretName)
	case v.CephFS != nil:
		r.addSecret(v.CephFS.SecretRef)
	case v.Cinder != nil:
		r.addSecret(v.Cinder.SecretRef)
	case v.CSI != nil:
		r.addSecret(v.CSI.NodePublishSecretRef)
	case v.FlexVolume != nil:
		r.addSecret(v.FlexVolume.SecretRef)
	case v.ISCSI != nil:
		r.addSecret(v.ISCSI.SecretRef)
	case v.RBD != nil:
		r.addSecret(v.RBD.SecretRef)
	case v.ScaleIO != nil:
		r.addSecret(v.ScaleIO.SecretRef)
	case v.StorageOS != nil:
		r.addSecret(v.StorageOS.SecretRef)
	}
}

func (r *references) sorted() []DependentReference {
	var out []DependentReference
	for x := range r.of {
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b DependentReference) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// serverFields are the fields of metadata that API servers set.
var serverFields = []string{
	"creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "managedFields", "resourceVersion", "selfLink", "uid",
}

// pruneCommon removes the fields of any kind that are not for members. The controllers of
// finalizers and the owners exist only in the hub.
func pruneCommon(obj *unstructured.Unstructured) {
	for _, field := range append([]string{"ownerReferences", "finalizers"}, serverFields...) {
		unstructured.RemoveNestedField(obj.Object, "metadata", field)
	}
	unstructured.RemoveNestedField(obj.Object, "status")
}

// drop removes a field, and the maps that become empty.
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

// pruneAnnotations removes annotations that controllers of the hub set.
func pruneAnnotations(keys ...string) func(*unstructured.Unstructured) error {
	return func(obj *unstructured.Unstructured) error {
		for _, key := range keys {
			drop(obj.Object, "metadata", "annotations", key)
		}
		return nil
	}
}

// pruneJob removes the selector that the hub's API server generated, with its labels, and the TTL:
// the Job would be created again after the member has deleted it.
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

// pruneSecret removes the token of a service account, which is valid only in its cluster.
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

// pruneServiceAccount removes references to tokens that controllers before Kubernetes 1.24
// generated.
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

// nameOf is the field name of a list element; "" if it has none.
func nameOf(element any) string {
	m, _ := element.(map[string]any) // nil has no fields
	name, _ := m["name"].(string)
	return name
}

// pruneService removes the cluster IPs of the hub. A headless Service remains headless.
func pruneService(obj *unstructured.Unstructured) error {
	ip, _, err := unstructured.NestedString(obj.Object, "spec", "clusterIP")
	if err != nil || ip == corev1.ClusterIPNone {
		return err
	}
	drop(obj.Object, "spec", "clusterIP")
	drop(obj.Object, "spec", "clusterIPs")
	return nil
}
