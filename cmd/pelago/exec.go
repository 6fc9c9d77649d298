package main

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/pelago-net/pelago/deploy"
)

// runOnNode runs a command in the container pelago-node of a node and returns what it wrote to standard output. The
// error holds what it wrote to standard error.
func runOnNode(ctx context.Context, cfg *rest.Config, node string, command ...string) ([]byte, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout = 0 // the command may take its time; ctx ends it
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("reach the cluster at %s: %w", cfg.Host, err)
	}
	pod, err := nodePod(ctx, c, node)
	if err != nil {
		return nil, err
	}
	url := c.CoreV1().RESTClient().Post().Resource("pods").Namespace(deploy.SystemNamespace).Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: deploy.NodeDaemonSet, Command: command, Stdout: true, Stderr: true}, scheme.ParameterCodec).URL()
	spdy, err := remotecommand.NewSPDYExecutor(cfg, "POST", url)
	if err != nil {
		return nil, fmt.Errorf("run %q on node %s: %w", command, node, err)
	}
	websocket, err := remotecommand.NewWebSocketExecutor(cfg, "GET", url.String())
	if err != nil {
		return nil, fmt.Errorf("run %q on node %s: %w", command, node, err)
	}
	// API servers before 1.30 do not speak the newer protocol.
	executor, err := remotecommand.NewFallbackExecutor(websocket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return nil, fmt.Errorf("run %q on node %s: %w", command, node, err)
	}
	var stdout, stderr bytes.Buffer
	if err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &stdout, Stderr: &stderr}); err != nil {
		return nil, fmt.Errorf("run %q on node %s (pod %s): %w: %s", command, node, pod, err, strings.TrimSpace(stderr.String()))
	}
	return stdout.Bytes(), nil
}

// nodePod is the name of the running pod of pelago-node on a node.
func nodePod(ctx context.Context, c kubernetes.Interface, node string) (string, error) {
	pods, err := c.CoreV1().Pods(deploy.SystemNamespace).List(ctx, metav1.ListOptions{
		LabelSelector: "app=" + deploy.NodeDaemonSet,
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
	})
	if err != nil {
		return "", fmt.Errorf("find the pod of %s on node %s: %w", deploy.NodeDaemonSet, node, err)
	}
	for _, pod := range pods.Items {
		if pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
			return pod.Name, nil
		}
	}
	return "", fmt.Errorf("node %s has no running pod of %s: name a node of `kubectl get nodes`, and look at `kubectl -n %s get pods -o wide`",
		node, deploy.NodeDaemonSet, deploy.SystemNamespace)
}

// nodesWithDaemon are the names of the nodes on which pelago-node runs, sorted.
func nodesWithDaemon(ctx context.Context, cfg *rest.Config) ([]string, error) {
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("reach the cluster at %s: %w", cfg.Host, err)
	}
	pods, err := c.CoreV1().Pods(deploy.SystemNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + deploy.NodeDaemonSet})
	if err != nil {
		return nil, fmt.Errorf("list the pods of %s: %w", deploy.NodeDaemonSet, err)
	}
	var nodes []string
	for _, pod := range pods.Items {
		if pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
			nodes = append(nodes, pod.Spec.NodeName)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes), nil
}
