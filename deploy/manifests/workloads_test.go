package manifests

import (
	"fmt"
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

// TestWorkloads: what limits each container, what restarts it, as whom it runs, and how many of its
// pods a drain may evict.
func TestWorkloads(t *testing.T) {
	var objs []*unstructured.Unstructured
	for _, read := range []func() ([]*unstructured.Unstructured, error){
		func() ([]*unstructured.Unstructured, error) { return MemberObjects(MemberOptions{IKE: true}) },
		func() ([]*unstructured.Unstructured, error) { return ExecutionObjects(MemberOptions{}) },
		PropagationOptions{Workloads: true}.objects,
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
	objs, err := MemberObjects(MemberOptions{})
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
