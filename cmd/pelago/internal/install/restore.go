package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/deploy"
)

// Restore replaces the state of the hub in the host cluster by that of a backup, its address included, and returns the kubeconfig of
// its administrator. The present data of etcd stay in the volumes as "former".
func (h *Hosted) Restore(ctx context.Context, host view.Member, file string, progress deploy.Progress) ([]byte, error) {
	h.Add(pflag.NewFlagSet("settings", pflag.ContinueOnError)) // those of the installation
	found, err := h.Keep(ctx, host.Client)
	if err != nil {
		return nil, err
	}
	switch {
	case !found:
		return nil, h.notInstalled()
	case h.EmptyDir:
		return nil, errors.New("the hub was installed with --etcd-empty-dir: data that are put there end with the pod that puts them")
	}
	for i := range h.EtcdReplicas {
		a, err := deploy.OpenBackup(file)
		if err != nil {
			return nil, err
		}
		defer a.Close()
		if i == 0 {
			if err := h.takeOver(ctx, host, a, progress); err != nil {
				return nil, err
			}
		}
		progress("Restoring member %d of etcd from %s", i, file)
		if err := h.restoreMember(ctx, host, a, i); err != nil {
			return nil, fmt.Errorf("%w: the hub is stopped, and has the keys of the backup: restore again when the cause is gone", err)
		}
	}
	return h.Install(ctx, host, progress)
}

// takeOver stops the hub, and takes the address and the keys of the backup.
func (h *Hosted) takeOver(ctx context.Context, host view.Member, a *deploy.Backup, progress deploy.Progress) error {
	for _, name := range []string{"api-address", "node-port", "service-type"} {
		value := a.Settings[name]
		if value == "" {
			value = h.flags.Lookup(name).DefValue
		}
		if err := h.flags.Set(name, value); err != nil {
			return fmt.Errorf("take --%s %s of the backup: %w", name, value, err)
		}
	}
	progress("Stopping the hub")
	programs := []client.Object{&appsv1.Deployment{ObjectMeta: h.meta(deploy.HubName)}, &appsv1.Deployment{ObjectMeta: h.meta(deploy.HostedControllerManager)},
		&appsv1.Deployment{ObjectMeta: h.meta(deploy.HostedAPIServer)}, &appsv1.StatefulSet{ObjectMeta: h.meta(deploy.HostedEtcd)}}
	for _, obj := range programs {
		err := host.Client.Patch(ctx, obj, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"replicas":0}}`)), client.FieldOwner(deploy.Manager))
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("stop %s: %w", obj.GetName(), err)
		}
	}
	for _, obj := range programs {
		app := obj.GetName()
		err := wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, h.Timeout, true, func(ctx context.Context) (bool, error) {
			pods := &corev1.PodList{}
			err := host.Client.List(ctx, pods, client.InNamespace(h.Namespace), client.MatchingLabels{"app": app})
			return len(pods.Items) == 0, err
		})
		if err != nil {
			return fmt.Errorf("wait until the pods of %s have ended: %w", app, err)
		}
	}
	s := &corev1.Secret{ObjectMeta: h.meta(deploy.HostedCA)}
	return deploy.Put(ctx, host.Client, s, func() { s.Data, s.Labels = a.Kept, h.meta("").Labels })
}

// restoreMember puts the snapshot into the volume of one member, by a pod.
func (h *Hosted) restoreMember(ctx context.Context, host view.Member, a *deploy.Backup, i int) error {
	pod, err := h.RestorePod(i)
	if err != nil {
		return err
	}
	key, c := client.ObjectKeyFromObject(pod), host.Client
	fail := func(err error) error { return fmt.Errorf("restore member %d of etcd by pod %s: %w", i, key, err) }
	if err := h.removePod(ctx, c, pod); err != nil {
		return fail(err)
	}
	if err := c.Create(ctx, pod); err != nil {
		return fail(err)
	}
	// until is reached when done holds; a pod that has failed is an error with its reason.
	until := func(done func() bool) error {
		err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, h.Timeout, true, func(ctx context.Context) (bool, error) {
			if err := c.Get(ctx, key, pod); err != nil {
				return false, err
			}
			if pod.Status.Phase == corev1.PodFailed {
				return false, errors.New(restoreReason(pod))
			}
			return done(), nil
		})
		if err != nil && wait.Interrupted(err) {
			err = fmt.Errorf("after %s: %s: %w", h.Timeout, restoreReason(pod), err)
		}
		return err
	}
	err = until(func() bool {
		s := pod.Status.InitContainerStatuses
		return len(s) > 0 && s[0].State.Running != nil
	})
	if err != nil {
		return fail(err)
	}
	url := host.Typed.CoreV1().RESTClient().Post().Resource("pods").Namespace(key.Namespace).Name(key.Name).SubResource("attach").
		VersionedParams(&corev1.PodAttachOptions{Container: pod.Spec.InitContainers[0].Name, Stdin: true, Stderr: true}, scheme.ParameterCodec).URL()
	if err := host.Stream(ctx, url, remotecommand.StreamOptions{Stdin: a.Snapshot, Stderr: io.Discard}); err != nil {
		return fail(err)
	}
	if err := until(func() bool { return pod.Status.Phase == corev1.PodSucceeded }); err != nil {
		return fail(err)
	}
	return h.removePod(ctx, c, pod)
}

// restoreReason is why the pod does not go on.
func restoreReason(pod *corev1.Pod) string {
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if t := s.State.Terminated; t != nil && t.ExitCode != 0 {
			return strings.TrimSpace(fmt.Sprintf("container %s: %s, exit status %d %s", s.Name, t.Reason, t.ExitCode, t.Message))
		}
		if w := s.State.Waiting; w != nil && w.Reason != "PodInitializing" {
			return strings.TrimSpace(fmt.Sprintf("container %s: %s %s", s.Name, w.Reason, w.Message))
		}
	}
	return view.PodReason(*pod)
}

func (h *Hosted) removePod(ctx context.Context, c client.Client, pod *corev1.Pod) error {
	key := client.ObjectKeyFromObject(pod)
	if err := c.Delete(ctx, &corev1.Pod{ObjectMeta: h.meta(pod.Name)}, &client.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
		return client.IgnoreNotFound(err)
	}
	return wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, h.Timeout, true, func(ctx context.Context) (bool, error) {
		err := c.Get(ctx, key, &corev1.Pod{})
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
}

// Restore replaces the state of the hub by that of a backup; the present data of etcd stay in the directory as "former". The hub is
// stopped before, and started again by init.
func (l *Local) Restore(ctx context.Context, file string, progress deploy.Progress) error {
	a, err := deploy.OpenBackup(file)
	if err != nil {
		return err
	}
	defer a.Close()
	if _, err := os.Stat(filepath.Join(l.Dir, "pki", "ca.key")); err != nil {
		return fmt.Errorf("find the hub in --dir %s: %w: run `pelago init --local` first", l.Dir, err)
	}
	etcdutl, err := l.program("etcdutl")
	if err != nil {
		return err
	}
	if err := l.stop(ctx, "stop"); err != nil {
		return err
	}
	o, names, err := l.options()
	if err != nil {
		return err
	}
	progress("Restoring etcd from %s", file)
	snapshot, data, restored := filepath.Join(o.Dir, "snapshot.db"), filepath.Join(o.Dir, "etcd"), filepath.Join(o.Dir, "restored")
	if err := errors.Join(os.RemoveAll(restored), a.CopySnapshot(snapshot)); err != nil {
		return fmt.Errorf("restore etcd: %w", err)
	}
	peer := fmt.Sprintf("https://127.0.0.1:%d", o.Port+2)
	out, err := exec.CommandContext(ctx, etcdutl, "snapshot", "restore", snapshot, "--data-dir="+restored, "--name=etcd", "--initial-cluster=etcd="+peer,
		"--initial-advertise-peer-urls="+peer, "--bump-revision=1000000000", "--mark-compacted").CombinedOutput()
	if err != nil {
		return fmt.Errorf("restore etcd: etcdutl snapshot restore: %w: %s", err, bytes.TrimSpace(out))
	}
	former := filepath.Join(o.Dir, "former")
	err = errors.Join(os.Remove(snapshot), os.RemoveAll(former))
	if _, missing := os.Stat(data); err == nil && missing == nil {
		err = os.Rename(data, former)
	}
	if err = errors.Join(err, os.Rename(restored, data)); err != nil {
		return fmt.Errorf("restore etcd: %w", err)
	}
	pki, err := l.pki()
	if err != nil {
		return err
	}
	pki.Kept = a.Kept
	if _, err := pki.Complete(names, time.Now()); err != nil {
		return err
	}
	return l.write(pki)
}
