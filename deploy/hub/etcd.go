package hub

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/deploy/manifests"
)

// Backup writes the state of the hub in the host cluster, which runs, into a file.
func (h *Hosted) Backup(ctx context.Context, host manifests.Cluster, file string) error {
	have, err := Read(ctx, host.Client, h.Namespace)
	if err != nil {
		return err
	}
	if !have.Installed() {
		return h.notInstalled()
	}
	var pki PKI
	for name, files := range map[string]*map[string][]byte{HostedCA: &pki.Kept, HostedPKI: &pki.Issued} {
		s := &corev1.Secret{}
		if err := host.Client.Get(ctx, client.ObjectKey{Namespace: h.Namespace, Name: name}, s); err != nil {
			return fmt.Errorf("get Secret %s/%s: %w", h.Namespace, name, err)
		}
		*files = s.Data
	}
	endpoint, stop, err := h.forward(ctx, host)
	if err != nil {
		return err
	}
	defer stop()
	return writeBackup(ctx, file, have.Settings, pki, endpoint)
}

func (h *Hosted) notInstalled() error {
	return fmt.Errorf("namespace %s of the host cluster has no hub (no ConfigMap %s): name another with --namespace, or run `pelago init "+
		"--host-context` first; the data of a hub of `pelago init --context` or `deploy-broker` is backed up with the etcd of its API server", h.Namespace, HostedSettings)
}

// forward makes the port of a ready member of etcd one of this machine.
func (h *Hosted) forward(ctx context.Context, host manifests.Cluster) (endpoint string, end func(), err error) {
	pod, err := h.readyMember(ctx, host.Client)
	if err != nil {
		return "", nil, err
	}
	transport, upgrader, err := spdy.RoundTripperFor(host.Config)
	if err != nil {
		return "", nil, fmt.Errorf("connect to pod %s/%s: %w", h.Namespace, pod, err)
	}
	url := host.Typed.CoreV1().RESTClient().Post().Resource("pods").Namespace(h.Namespace).Name(pod).SubResource("portforward").URL()
	stop, ready, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	f, err := portforward.NewOnAddresses(spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, url),
		[]string{"127.0.0.1"}, []string{"0:2379"}, stop, ready, io.Discard, io.Discard)
	if err != nil {
		return "", nil, fmt.Errorf("connect to pod %s/%s: %w", h.Namespace, pod, err)
	}
	go func() { ended <- f.ForwardPorts() }()
	select {
	case err := <-ended:
		return "", nil, fmt.Errorf("connect to pod %s/%s: %w", h.Namespace, pod, err)
	case <-ready:
	}
	ports, err := f.GetPorts()
	if err != nil {
		close(stop)
		return "", nil, fmt.Errorf("connect to pod %s/%s: %w", h.Namespace, pod, err)
	}
	return fmt.Sprintf("https://127.0.0.1:%d", ports[0].Local), func() { close(stop) }, nil
}

// readyMember is the pod of a member of etcd that is ready: any has the whole state.
func (h *Hosted) readyMember(ctx context.Context, host client.Client) (string, error) {
	pods := &corev1.PodList{}
	if err := host.List(ctx, pods, client.InNamespace(h.Namespace), client.MatchingLabels{"app": HostedEtcd}); err != nil {
		return "", fmt.Errorf("list the pods of etcd in namespace %s: %w", h.Namespace, err)
	}
	for _, pod := range pods.Items {
		ready := func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue }
		if pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, ready) {
			return pod.Name, nil
		}
	}
	return "", fmt.Errorf("no member of etcd in namespace %s is ready: see `kubectl -n %s get pods -l app=%s`", h.Namespace, h.Namespace, HostedEtcd)
}
