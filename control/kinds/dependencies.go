package kinds

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// rootCA is in every namespace of every cluster, each with its own content.
const rootCA = "kube-root-ca.crt"

// dependencies are what the pods of a template refer to.
func (p path) dependencies(template *unstructured.Unstructured) ([]DependentReference, error) {
	spec, err := p.pod(template)
	if err != nil {
		return nil, err
	}
	return podDependencies(template.GetNamespace(), spec, nil), nil
}

// statefulSetDependencies leaves out the volumes that the controller replaces by claims which it makes.
func statefulSetDependencies(template *unstructured.Unstructured) ([]DependentReference, error) {
	spec, err := podTemplate.pod(template)
	if err != nil {
		return nil, err
	}
	claims, _, err := unstructured.NestedSlice(template.Object, "spec", "volumeClaimTemplates")
	if err != nil {
		return nil, err
	}
	made := map[string]bool{}
	for _, c := range claims {
		if m, ok := c.(map[string]any); ok {
			made[nameOf(m["metadata"])] = true
		}
	}
	return podDependencies(template.GetNamespace(), spec, made), nil
}

// ingressDependencies are the certificates.
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

func podDependencies(namespace string, spec *corev1.PodSpec, made map[string]bool) []DependentReference {
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
		if !made[spec.Volumes[i].Name] {
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
