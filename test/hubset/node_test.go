package hubset

import (
	"os"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/pelago-net/pelago/test/await"

	"github.com/pelago-net/pelago/test/need"
)

// Workloads of a member run as with a kubelet: Deployments become available, Jobs complete, an
// image that cannot be pulled does not run, and deleted pods are gone.
func TestWorkloads(t *testing.T) {
	need.Kubernetes(t)
	dir := filepath.Join(t.TempDir(), "set")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), Options{Dir: dir, Real: 1, Workloads: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	c, err := kubernetes.NewForConfig(s.Members[0].Config)
	if err != nil {
		t.Fatal(err)
	}
	deploy := func(name, image string) {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}}
		d.Spec.Replicas, d.Spec.Selector = ptr.To[int32](2), &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
		d.Spec.Template.Labels = map[string]string{"app": name}
		d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "c", Image: image}}
		if _, err := c.AppsV1().Deployments("default").Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	state := func(name string) [2]int32 {
		d, err := c.AppsV1().Deployments("default").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return [2]int32{}
		}
		return [2]int32{d.Status.Replicas, d.Status.AvailableReplicas}
	}
	deploy("web", "nginx")
	deploy("broken", "registry.example/nginx")
	await.Equal(t, [2]int32{2, 2}, func() [2]int32 { return state("web") })
	await.Equal(t, [2]int32{2, 0}, func() [2]int32 { return state("broken") })

	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "once"}}
	job.Spec.Template.Spec = corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "perl"}}}
	if _, err := c.BatchV1().Jobs("default").Create(t.Context(), job, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await.Equal(t, 1, func() int32 {
		j, err := c.BatchV1().Jobs("default").Get(t.Context(), "once", metav1.GetOptions{})
		if err != nil {
			return -1
		}
		return j.Status.Succeeded
	})
	if err := c.AppsV1().Deployments("default").Delete(t.Context(), "web", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}); err != nil {
		t.Fatal(err)
	}
	await.Equal(t, 0, func() int {
		l, err := c.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
		if err != nil {
			return -1
		}
		return len(l.Items)
	})
}
