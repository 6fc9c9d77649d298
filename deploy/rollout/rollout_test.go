package rollout

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// While a rollout waits it reports why pods do not run, each reason once, and continues when the
// cause is gone.
func TestRolloutExplainsItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "etcd-0"},
			Spec:       corev1.PodSpec{NodeName: "n1"},
			Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such host"}}}}},
		}
		begin := time.Now()
		installed := func(context.Context) ([]Component, error) {
			c := Component{Kind: "StatefulSet", Name: "etcd", Want: 1, Current: true}
			if time.Since(begin) > time.Minute {
				c.Ready = 1
			}
			return []Component{c}, nil
		}
		var said []string
		progress := func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }
		if err := Await(t.Context(), fake.NewClientset(pod), "ns", installed, "init", 5*time.Minute, progress); err != nil {
			t.Fatal(err)
		}
		const want = "StatefulSet etcd: 0 of 1 ready\npod etcd-0 on node \"n1\": ImagePullBackOff no such host\nStatefulSet etcd: 1 of 1 ready"
		if got := strings.Join(said, "\n"); got != want {
			t.Errorf("it says\n%s\nwant\n%s", got, want)
		}
	})
}

// A cluster with more nodes than start within the timeout is waited for as long as nodes follow; one
// whose pods only flap is not.
func TestRolloutOfManyNodes(t *testing.T) {
	for name, tt := range map[string]struct {
		ready func(passed time.Duration) int32
		after time.Duration
		err   string
	}{
		"a node every 5 s":     {func(passed time.Duration) int32 { return min(120, int32(passed/(5*time.Second))) }, 10 * time.Minute, ""},
		"it stops at 30 nodes": {func(passed time.Duration) int32 { return min(30, int32(passed/(5*time.Second))) }, 150*time.Second + 5*time.Minute, "30 of 120 ready"},
		"a pod flaps":          {func(passed time.Duration) int32 { return int32(passed/time.Second) % 2 }, time.Second + 5*time.Minute, "of 120 ready"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				installed := func(context.Context) ([]Component, error) {
					return []Component{{Kind: "DaemonSet", Name: "pelago-node", Want: 120, Ready: tt.ready(time.Since(begin)), Current: true}}, nil
				}
				err := Await(t.Context(), fake.NewClientset(), "ns", installed, "join", 5*time.Minute, func(string, ...any) {})
				if got := time.Since(begin); got < tt.after || got > tt.after+2*time.Second {
					t.Errorf("it ends after %s, want %s", got, tt.after)
				}
				if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v, want one with %q", err, tt.err)
				}
			})
		})
	}
}
