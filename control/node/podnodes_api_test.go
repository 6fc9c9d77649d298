package node

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// A real API server gives the pods page by page, then one by one, and leaves out those that have no
// place.
func TestPodsOfCluster(t *testing.T) {
	const many = podsPage + 20
	c, err := kubernetes.NewForConfig(apiserver.Start(t))
	if err != nil {
		t.Fatal(err)
	}
	pods := c.CoreV1().Pods("default")
	run := func(name, node, address string, phase corev1.PodPhase) {
		t.Helper()
		p, err := pods.Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if address != "" {
			p.Status = corev1.PodStatus{Phase: phase, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}}}
			if _, err := pods.UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range many {
		run(fmt.Sprintf("web-%d", i), fmt.Sprintf("n%d", i%3), fmt.Sprintf("10.7.%d.%d", i/250, i%250), corev1.PodRunning)
	}
	run("waiting", "", "", "")
	run("done", "n1", "10.7.9.9", corev1.PodSucceeded)

	p := newPodNodes(PodsOfCluster(c), func() {})
	defer p.end()
	known := func() int {
		all, err := p.all(t.Context())
		if err != nil {
			t.Error(err)
		}
		return len(all)
	}
	if got := known(); got != many {
		t.Fatalf("%d pods are known, want %d", got, many)
	}
	run("late", "n2", "10.7.9.10", corev1.PodPending)
	await.Equal(t, many+1, known)
	if all, err := p.all(t.Context()); err != nil || all[ip("10.7.9.10")] != "n2" || all[ip("10.7.0.1")] != "n1" {
		t.Errorf("10.7.9.10 is on %q, 10.7.0.1 on %q, %v; want n2 and n1", all[ip("10.7.9.10")], all[ip("10.7.0.1")], err)
	}
	zero := int64(0)
	if err := pods.Delete(t.Context(), "late", metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
		t.Fatal(err)
	}
	await.Equal(t, many, known)
}
