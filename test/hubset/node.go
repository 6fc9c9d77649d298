package hubset

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// nodeSuffix and the name of a member with Options.Workloads make that of its only node, as kind
// names them.
const nodeSuffix = "-control-plane"

// resync repeats what failed for a pod.
const resync = 5 * time.Second

// node is a simulated node of a real API server: it acts as the kubelet does towards the API,
// without containers. Pods run at once, those of Jobs complete, and images of other registries than
// the default cannot be pulled.
type node struct {
	client  kubernetes.Interface
	ctx     context.Context
	stop    context.CancelFunc
	started atomic.Uint32 // pods: each has its own address
}

// startNode creates the Node and plays its kubelet until stop.
func startNode(config *rest.Config, member string) (*node, error) {
	nodeName := member + nodeSuffix
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connect a node to its API server: %w", err)
	}
	n := &node{client: client}
	n.ctx, n.stop = context.WithCancel(context.Background())
	capacity := corev1.ResourceList{"cpu": resource.MustParse("16"), "memory": resource.MustParse("64Gi"),
		"ephemeral-storage": resource.MustParse("1Ti"), "pods": resource.MustParse("110")}
	o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, Labels: map[string]string{"kubernetes.io/os": "linux"}},
		Status: corev1.NodeStatus{Capacity: capacity, Allocatable: capacity,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}}}}
	_, err = client.CoreV1().Nodes().Create(n.ctx, o, metav1.CreateOptions{})
	// admission has added the taint not-ready, which the node lifecycle controller would remove
	if err == nil {
		_, err = client.CoreV1().Nodes().Patch(n.ctx, nodeName, types.MergePatchType, []byte(`{"spec":{"taints":null}}`), metav1.PatchOptions{})
	}
	if err != nil {
		n.stop()
		return nil, fmt.Errorf("create the Node %s: %w", nodeName, err)
	}
	pods := informers.NewSharedInformerFactory(client, resync).Core().V1().Pods().Informer()
	if _, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { n.sync(o.(*corev1.Pod)) },
		UpdateFunc: func(_, o any) { n.sync(o.(*corev1.Pod)) },
	}); err != nil {
		n.stop()
		return nil, fmt.Errorf("watch the pods of %s: %w", nodeName, err)
	}
	go pods.RunWithContext(n.ctx)
	return n, nil
}

// sync takes a pod to its next phase. A failed write is repeated at the next event or resync.
func (n *node) sync(p *corev1.Pod) {
	var err error
	pods := n.client.CoreV1().Pods(p.Namespace)
	switch {
	case p.Spec.NodeName == "":
		return
	case p.DeletionTimestamp != nil:
		err = pods.Delete(n.ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0), Preconditions: metav1.NewUIDPreconditions(string(p.UID))})
	case p.Status.Phase == corev1.PodPending && len(p.Status.ContainerStatuses) == 0:
		p = p.DeepCopy()
		i := n.started.Add(1)
		p.Status = podStatus(p, fmt.Sprintf("10.7.%d.%d", i>>8&0xff, i&0xff), metav1.Now())
		_, err = pods.UpdateStatus(n.ctx, p, metav1.UpdateOptions{})
	}
	if err != nil && n.ctx.Err() == nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		slog.Warn("a pod of a simulated node does not proceed", "pod", p.Namespace+"/"+p.Name, "error", err)
	}
}

// podStatus is the status of a pod once its kubelet has done what it can.
func podStatus(p *corev1.Pod, ip string, now metav1.Time) corev1.PodStatus {
	ready, phase := corev1.ConditionTrue, corev1.PodRunning
	state := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}
	for _, c := range p.Spec.Containers {
		if strings.Contains(c.Image, "/") {
			ready, phase = corev1.ConditionFalse, corev1.PodPending
			state = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}
		}
	}
	if owner := metav1.GetControllerOf(p); owner != nil && owner.Kind == "Job" && phase == corev1.PodRunning {
		ready, phase = corev1.ConditionFalse, corev1.PodSucceeded
		state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: now, FinishedAt: now}}
	}
	status := corev1.PodStatus{Phase: phase, StartTime: &now, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}, HostIP: "127.0.0.1",
		Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: now}}}
	for _, t := range []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		c := corev1.PodCondition{Type: t, Status: ready, LastTransitionTime: now}
		if t == corev1.PodInitialized {
			c.Status = corev1.ConditionTrue
		}
		status.Conditions = append(status.Conditions, c)
	}
	for _, c := range p.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, Image: c.Image, State: state,
			Ready: ready == corev1.ConditionTrue, Started: ptr.To(phase == corev1.PodRunning)})
	}
	return status
}
