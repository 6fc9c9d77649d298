// Tests of the manifests of all ways to install.
package deploy_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/pelago-net/pelago/deploy/hub"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/spec"
)

// hosted are hubs in a host cluster.
var hosted = map[string]spec.Hub{
	"three": {Namespace: "hub", EtcdReplicas: 3, StorageClass: "fast", StorageSize: "20Gi", ServiceType: "LoadBalancer"},
	"one":   {Namespace: "hub", EtcdReplicas: 1, StorageSize: "10Gi", ServiceType: "NodePort", NodePort: 30443, EtcdHostPath: "/data", EtcdNode: "n1"},
	"trial": {Namespace: "hub", EtcdReplicas: 1, StorageSize: "10Gi", ServiceType: "ClusterIP", EtcdEmptyDir: true},
}

// into converts a manifest and refuses fields that its kind does not have.
func into(t *testing.T, u *unstructured.Unstructured, obj any) {
	t.Helper()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, obj, true); err != nil {
		t.Fatalf("%s: %v", u.GetName(), err)
	}
}

// podsOf are the pod templates of manifests and the pods among them, each with the name of its
// object.
func podsOf(t *testing.T, objs []*unstructured.Unstructured) (pods []corev1.PodTemplateSpec) {
	t.Helper()
	for _, u := range objs {
		path := []string{"spec", "template"}
		switch u.GetKind() {
		case "CronJob":
			path = []string{"spec", "jobTemplate", "spec", "template"}
		case "Pod":
			path = nil
		case "DaemonSet", "Deployment", "Job", "StatefulSet":
		default:
			continue
		}
		template, ok, err := unstructured.NestedMap(u.Object, path...)
		if err != nil || !ok {
			t.Fatalf("%s %s: %t, %v", u.GetKind(), u.GetName(), ok, err)
		}
		maps.DeleteFunc(template, func(field string, _ any) bool { return field != "metadata" && field != "spec" })
		var p corev1.PodTemplateSpec
		into(t, &unstructured.Unstructured{Object: template}, &p)
		p.Name, p.Namespace = u.GetName(), u.GetNamespace()
		pods = append(pods, p)
	}
	return pods
}

// installations are the objects of each way to install, by its name; those of a hub in a host
// cluster also have a restoring pod.
func installations(t *testing.T, o manifests.MemberOptions) map[string][]*unstructured.Unstructured {
	t.Helper()
	out := map[string][]*unstructured.Unstructured{}
	add := func(name string, objs []*unstructured.Unstructured, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		out[name] = append(out[name], objs...)
	}
	objs, err := manifests.MemberObjects(o)
	add("member", objs, err)
	objs, err = manifests.ExecutionObjects(o)
	add("member", objs, err)
	add("workloads only", objs, nil)
	objs, err = manifests.Objects(nil, "member/namespace.yaml") // ExecutionBase
	add("workloads only", objs, err)
	objs, err = manifests.PropagationObjects(o, true)
	add("hub", objs, err)
	objs, err = manifests.OperatorObjects(o)
	add("operator", objs, err)
	for name, h := range hosted {
		h.Image, h.PullPolicy, h.Placement = o.Image, o.PullPolicy, spec.Placement{PullSecrets: o.PullSecrets, NodeSelector: o.NodeSelector, Tolerations: o.Tolerations}
		stages, err := hub.Manifests(h)
		add("hosted "+name, slices.Concat(stages...), err)
		pod, err := hub.RestorePod(h, 0, "first")
		if err != nil {
			t.Fatal(err)
		}
		restore, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pod)
		add("hosted "+name, []*unstructured.Unstructured{{Object: restore}}, err)
	}
	return out
}

// TestCriticalPodsHaveAQuota: API servers may refuse pods of critical priority in a namespace
// without a quota for them.
func TestCriticalPodsHaveAQuota(t *testing.T) {
	for name, objs := range installations(t, manifests.MemberOptions{}) {
		critical := 0
		for _, p := range podsOf(t, objs) {
			class := p.Spec.PriorityClassName
			if !strings.HasPrefix(class, "system-") {
				continue
			}
			critical++
			if !slices.ContainsFunc(objs, func(u *unstructured.Unstructured) bool {
				if u.GetKind() != "ResourceQuota" || u.GetNamespace() != p.Namespace {
					return false
				}
				var q corev1.ResourceQuota
				into(t, u, &q)
				s := q.Spec.ScopeSelector.MatchExpressions[0]
				return q.Spec.Hard.Pods().Value() >= 1e6 && s.ScopeName == corev1.ResourceQuotaScopePriorityClass &&
					s.Operator == corev1.ScopeSelectorOpIn && slices.Contains(s.Values, class)
			}) {
				t.Errorf("%s: namespace %s has no quota for the priority %s of %s", name, p.Namespace, class, p.Name)
			}
		}
		if critical == 0 && name != "operator" {
			t.Errorf("%s: no critical pods", name)
		}
	}
}

// TestPlacement: Secrets, node selector and tolerations reach every pod but pelago-node, which runs
// on every node; replicas are spread.
func TestPlacement(t *testing.T) {
	o := manifests.MemberOptions{PullSecrets: []string{"mirror"}, NodeSelector: map[string]string{"pool": "infra"},
		Tolerations: []corev1.Toleration{{Key: "infra", Operator: corev1.TolerationOpExists}}}
	tolerations := []corev1.Toleration{{Key: "node-role.kubernetes.io/control-plane", Operator: corev1.TolerationOpExists,
		Effect: corev1.TaintEffectNoSchedule}, o.Tolerations[0]}
	for name, objs := range installations(t, o) {
		for _, p := range podsOf(t, objs) {
			if diff := gocmp.Diff([]corev1.LocalObjectReference{{Name: "mirror"}}, p.Spec.ImagePullSecrets); diff != "" {
				t.Errorf("%s: %s: imagePullSecrets -want +got\n%s", name, p.Name, diff)
			}
			if p.Name == manifests.NodeDaemonSet {
				continue
			}
			if p.Spec.NodeSelector["pool"] != "infra" || p.Spec.NodeSelector["kubernetes.io/os"] != "linux" {
				t.Errorf("%s: %s: node selector %v", name, p.Name, p.Spec.NodeSelector)
			}
			if diff := gocmp.Diff(tolerations, p.Spec.Tolerations); diff != "" {
				t.Errorf("%s: %s: tolerations -want +got\n%s", name, p.Name, diff)
			}
		}
		for _, u := range objs {
			replicas, _, err := unstructured.NestedNumberAsFloat64(u.Object, "spec", "replicas")
			if err != nil {
				t.Fatal(err)
			}
			if replicas < 2 {
				continue
			}
			_, spread, _ := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "topologySpreadConstraints")
			_, apart, _ := unstructured.NestedMap(u.Object, "spec", "template", "spec", "affinity", "podAntiAffinity")
			if !spread && !apart {
				t.Errorf("%s: nothing spreads the %g pods of %s", name, replicas, u.GetName())
			}
			beside, _, err := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "affinity", "podAffinity", "preferredDuringSchedulingIgnoredDuringExecution")
			if err != nil {
				t.Fatal(err)
			}
			if u.GetName() == "pelago-agent" && !strings.Contains(fmt.Sprint(beside), "matchLabels:map[app:pelago-node]") {
				t.Errorf("%s: the agent does not prefer nodes with pelago-node: %v", name, beside)
			}
		}
	}
}

// constraint is the narrowest of OpenShift's SecurityContextConstraints nonroot-v2 and privileged
// that accepts the pod. hostmount-anyuid and hostaccess would accept a hostPath, but no seccomp
// profile.
func constraint(pod corev1.PodSpec) string {
	free := pod.HostNetwork || pod.HostPID || pod.HostIPC
	for _, v := range pod.Volumes {
		free = free || v.HostPath != nil || v.NFS != nil
	}
	inherited := cmp.Or(pod.SecurityContext, &corev1.PodSecurityContext{})
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		s := cmp.Or(c.SecurityContext, &corev1.SecurityContext{})
		added := cmp.Or(s.Capabilities, &corev1.Capabilities{}).Add
		free = free || ptr.Deref(s.Privileged, false) || !ptr.Deref(cmp.Or(s.RunAsNonRoot, inherited.RunAsNonRoot), false) ||
			ptr.Deref(s.AllowPrivilegeEscalation, true) ||
			slices.ContainsFunc(added, func(c corev1.Capability) bool { return c != "NET_BIND_SERVICE" })
	}
	if free {
		return "privileged"
	}
	return "nonroot-v2"
}

// constraints are the SecurityContextConstraints that a ServiceAccount may use by the roles among
// the objects.
func constraints(t *testing.T, objs []*unstructured.Unstructured, namespace, account string) (names []string) {
	t.Helper()
	rules := map[string][]rbacv1.PolicyRule{} // by kind, namespace and name of the role
	for _, u := range objs {
		if u.GetKind() == "Role" || u.GetKind() == "ClusterRole" {
			var r rbacv1.ClusterRole
			into(t, u, &r)
			rules[u.GetKind()+" "+u.GetNamespace()+"/"+r.Name] = r.Rules
		}
	}
	for _, u := range objs {
		if u.GetKind() != "ClusterRoleBinding" && (u.GetKind() != "RoleBinding" || u.GetNamespace() != namespace) {
			continue
		}
		var b rbacv1.RoleBinding
		into(t, u, &b)
		if !slices.ContainsFunc(b.Subjects, func(s rbacv1.Subject) bool {
			return s.Kind == rbacv1.ServiceAccountKind && s.Namespace == namespace && s.Name == account ||
				s.Kind == rbacv1.GroupKind && s.Name == "system:serviceaccounts:"+namespace
		}) {
			continue
		}
		in := u.GetNamespace()
		if b.RoleRef.Kind == "ClusterRole" {
			in = ""
		}
		for _, r := range rules[b.RoleRef.Kind+" "+in+"/"+b.RoleRef.Name] {
			if slices.Contains(r.Verbs, "use") && slices.Contains(r.APIGroups, "security.openshift.io") {
				names = append(names, r.ResourceNames...)
			}
		}
	}
	return names
}

// TestPodsHaveAConstraint: OpenShift accepts a pod only if its ServiceAccount may use a constraint
// that fits it.
func TestPodsHaveAConstraint(t *testing.T) {
	for name, objs := range installations(t, manifests.MemberOptions{IKE: true}) {
		for _, p := range podsOf(t, objs) {
			want := constraint(p.Spec)
			if slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == "data" && v.HostPath != nil }) {
				continue // init --etcd-host-path is not for OpenShift
			}
			account := cmp.Or(p.Spec.ServiceAccountName, "default")
			if got := constraints(t, objs, p.Namespace, account); !slices.Contains(got, want) {
				t.Errorf("%s: %s needs %s, but %s/%s may use %v", name, p.Name, want, p.Namespace, account, got)
			}
		}
	}
}
