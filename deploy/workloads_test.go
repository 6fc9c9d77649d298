package deploy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// into converts a manifest and refuses fields that its kind does not have.
func into(t *testing.T, u *unstructured.Unstructured, obj any) {
	t.Helper()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, obj, true); err != nil {
		t.Fatalf("%s: %v", u.GetName(), err)
	}
}

// TestWorkloads: what limits each container, what restarts it, as whom it runs, and how many of its pods a drain may evict.
func TestWorkloads(t *testing.T) {
	var objs []*unstructured.Unstructured
	for _, read := range []func() ([]*unstructured.Unstructured, error){
		func() ([]*unstructured.Unstructured, error) { return MemberManifests(MemberOptions{IKE: true}) },
		func() ([]*unstructured.Unstructured, error) { return ExecutionManifests(MemberOptions{}) },
		PropagationOptions{Workloads: true}.manifests,
	} {
		some, err := read()
		if err != nil {
			t.Fatal(err)
		}
		objs = append(objs, some...)
	}
	budgets := map[string]string{} // by matched app
	for _, u := range objs {
		if u.GetKind() == "PodDisruptionBudget" {
			var b policyv1.PodDisruptionBudget
			into(t, u, &b)
			budgets[b.Spec.Selector.MatchLabels["app"]] = b.Spec.MaxUnavailable.String()
		}
	}
	got := map[string]string{}
	describe := func(name string, replicas int32, selector *metav1.LabelSelector, pod corev1.PodTemplateSpec) {
		for _, c := range pod.Spec.Containers {
			words := []string{"memory " + c.Resources.Limits.Memory().String()}
			if c.LivenessProbe != nil {
				words = append(words, "restarted by "+c.LivenessProbe.HTTPGet.Path)
			}
			if c.ReadinessProbe != nil {
				words = append(words, "ready by "+c.ReadinessProbe.HTTPGet.Path)
			}
			s := c.SecurityContext
			switch {
			case s.Privileged != nil && *s.Privileged:
				words = append(words, "privileged")
			case s.RunAsNonRoot != nil && *s.RunAsNonRoot:
				words = append(words, fmt.Sprint("user ", *s.RunAsUser))
			default:
				words = append(words, "root")
			}
			if s.Capabilities != nil {
				words = append(words, fmt.Sprint("capabilities ", s.Capabilities.Add))
			}
			if replicas > 0 {
				words = append(words, fmt.Sprintf("%d replicas, %s evicted at a time", replicas, budgets[selector.MatchLabels["app"]]))
			}
			got[name+"/"+c.Name] = strings.Join(words, ", ")
			if limit := c.Resources.Limits.Memory(); c.Resources.Requests.Memory().Cmp(*limit) > 0 {
				t.Errorf("%s: requests more memory than its limit", c.Name)
			}
		}
	}
	for _, u := range objs {
		switch u.GetKind() {
		case "Deployment":
			var d appsv1.Deployment
			into(t, u, &d)
			describe(d.Name, *d.Spec.Replicas, d.Spec.Selector, d.Spec.Template)
		case "DaemonSet":
			var d appsv1.DaemonSet
			into(t, u, &d)
			describe(d.Name, 0, d.Spec.Selector, d.Spec.Template)
		}
	}
	const probes, unprivileged, two = ", restarted by /healthz, ready by /readyz", ", user 65532, capabilities []", ", 2 replicas, 1 evicted at a time"
	want := map[string]string{
		"pelago-agent/pelago-agent":                     "memory 1Gi" + probes + unprivileged + two,
		"pelago-agent-execution/pelago-agent-execution": "memory 1Gi" + probes + unprivileged + two,
		"pelago-dns/pelago-dns":                         "memory 1Gi" + probes + unprivileged + two,
		"pelago-hub/pelago-hub":                         "memory 2Gi" + probes + unprivileged + two,
		"pelago-node/pelago-node":                       "memory 2Gi" + probes + ", privileged",
		"pelago-node/ike":                               "memory 256Mi, root, capabilities [NET_ADMIN NET_BIND_SERVICE SYS_NICE]",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// TestDNSPorts: the Service has the port of DNS, the container one that needs no capability.
func TestDNSPorts(t *testing.T) {
	objs, err := MemberManifests(MemberOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, u := range objs {
		switch {
		case u.GetName() != DNSDeployment:
		case u.GetKind() == "Service":
			var s corev1.Service
			into(t, u, &s)
			for _, p := range s.Spec.Ports {
				got = append(got, fmt.Sprintf("service %d/%s to %s", p.Port, p.Protocol, p.TargetPort.String()))
			}
		case u.GetKind() == "Deployment":
			var d appsv1.Deployment
			into(t, u, &d)
			c := d.Spec.Template.Spec.Containers[0]
			got = append(got, fmt.Sprint("args ", c.Args))
			for _, p := range c.Ports {
				got = append(got, fmt.Sprintf("container %s is %d/%s", p.Name, p.ContainerPort, p.Protocol))
			}
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{
		"args [--listen=:8053]", "container dns is 8053/UDP", "container dns-tcp is 8053/TCP", "container metrics is 9153/TCP",
		"service 53/TCP to dns-tcp", "service 53/UDP to dns",
	}, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// TestCleanerHasNoProbes: an init container with a probe is refused, which would keep `pelago unjoin` from cleaning nodes.
func TestCleanerHasNoProbes(t *testing.T) {
	u, err := cleaner(MemberOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var d appsv1.DaemonSet
	into(t, u, &d)
	for _, c := range slices.Concat(d.Spec.Template.Spec.InitContainers, d.Spec.Template.Spec.Containers) {
		if c.LivenessProbe != nil || c.ReadinessProbe != nil {
			t.Errorf("container %s has a probe", c.Name)
		}
	}
}

// podsOf are the pod templates of manifests and the pods among them, each with the name of its object.
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

// installations are the objects of each way to install, by its name; those of a hub in a host cluster also have a restoring pod.
func installations(t *testing.T, o MemberOptions) map[string][]*unstructured.Unstructured {
	t.Helper()
	out := map[string][]*unstructured.Unstructured{}
	add := func(name string, objs []*unstructured.Unstructured, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		out[name] = append(out[name], objs...)
	}
	objs, err := MemberManifests(o)
	add("member", objs, err)
	objs, err = ExecutionManifests(o)
	add("member", objs, err)
	add("workloads only", objs, nil)
	objs, err = objects(nil, "member/namespace.yaml") // ExecutionBase
	add("workloads only", objs, err)
	objs, err = PropagationOptions{Workloads: true, MemberOptions: o}.manifests()
	add("hub", objs, err)
	objs, err = OperatorManifests(o)
	add("operator", objs, err)
	for name, hosted := range hostedVariants {
		hosted.Pods = o
		stages, err := hosted.Manifests()
		add("hosted "+name, slices.Concat(stages...), err)
		pod, err := hosted.RestorePod(0, "first")
		if err != nil {
			t.Fatal(err)
		}
		restore, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pod)
		add("hosted "+name, []*unstructured.Unstructured{{Object: restore}}, err)
	}
	return out
}

// TestCriticalPodsHaveAQuota: API servers may refuse pods of critical priority in a namespace without a quota for them.
func TestCriticalPodsHaveAQuota(t *testing.T) {
	for name, objs := range installations(t, MemberOptions{}) {
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

// TestPlacement: Secrets, node selector and tolerations reach every pod but pelago-node, which runs on every node; replicas are spread.
func TestPlacement(t *testing.T) {
	o := MemberOptions{PullSecrets: []string{"mirror"}, NodeSelector: map[string]string{"pool": "infra"},
		Tolerations: []corev1.Toleration{{Key: "infra", Operator: corev1.TolerationOpExists}}}
	tolerations := []corev1.Toleration{{Key: "node-role.kubernetes.io/control-plane", Operator: corev1.TolerationOpExists,
		Effect: corev1.TaintEffectNoSchedule}, o.Tolerations[0]}
	for name, objs := range installations(t, o) {
		for _, p := range podsOf(t, objs) {
			if diff := cmp.Diff([]corev1.LocalObjectReference{{Name: "mirror"}}, p.Spec.ImagePullSecrets); diff != "" {
				t.Errorf("%s: %s: imagePullSecrets -want +got\n%s", name, p.Name, diff)
			}
			if p.Name == NodeDaemonSet {
				continue
			}
			if p.Spec.NodeSelector["pool"] != "infra" || p.Spec.NodeSelector["kubernetes.io/os"] != "linux" {
				t.Errorf("%s: %s: node selector %v", name, p.Name, p.Spec.NodeSelector)
			}
			if diff := cmp.Diff(tolerations, p.Spec.Tolerations); diff != "" {
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
		}
	}
}
