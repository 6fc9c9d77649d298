package hub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/rollout"
	"github.com/pelago-net/pelago/deploy/spec"
)

// annotationRestore is on the Secret of the former keys, with the name of the restore as its value,
// until the restored hub runs. A restore that is repeated before then keeps the former data and
// keys, since the present ones come from the first attempt.
const annotationRestore = "pelago.io/restore"

// Restore replaces the state of the hub in the host cluster by that of a backup, its address
// included, and returns the kubeconfig of its administrator. The present data of etcd stay in the
// volumes, their keys in a Secret. Nothing is changed before the whole backup was read and confirm
// agrees.
func (h *Hosted) Restore(
	ctx context.Context, host manifests.Cluster, file string, confirm func(question string) error, progress manifests.Progress,
) ([]byte, error) {
	have, err := h.Plan(ctx, host.Client)
	if err != nil {
		return nil, err
	}
	switch {
	case !have.Installed():
		return nil, h.notInstalled()
	case h.EtcdEmptyDir:
		return nil, errors.New("the hub was installed with --etcd-empty-dir: data that are put there end with the pod that puts them")
	}
	if err := CheckBackup(file); err != nil {
		return nil, err
	}
	former := &corev1.Secret{}
	if err := host.Client.Get(ctx, client.ObjectKey{Namespace: h.Namespace, Name: HostedFormerCA}, former); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("get Secret %s/%s: %w", h.Namespace, HostedFormerCA, err)
	}
	if err := confirm(question(fmt.Sprintf("in namespace %s of %s", h.Namespace, host.Config.Host), file, former.Annotations[annotationRestore] != "")); err != nil {
		return nil, err
	}
	var restore string
	for i := range h.EtcdReplicas {
		a, err := OpenBackup(file)
		if err != nil {
			return nil, err
		}
		defer a.Close()
		if i == 0 {
			if restore, err = h.takeOver(ctx, host, a, progress); err != nil {
				return nil, err
			}
		}
		progress("Restoring member %d of etcd from %s", i, file)
		if err := h.restoreMember(ctx, host, a, restore, i); err != nil {
			return nil, fmt.Errorf("%w: the hub is stopped, and has the keys of the backup: restore again when the cause is gone", err)
		}
	}
	admin, err := h.Install(ctx, host, progress)
	if err != nil {
		return nil, fmt.Errorf("%w\nThe state of the backup is in place: run `pelago init --host-context` when the cause is gone, which starts the hub", err)
	}
	return admin, nil
}

// question is that before a restore; repeated: an earlier one has not completed.
func question(of, file string, repeated bool) string {
	q := fmt.Sprintf("Replace the state of the hub %s by that of %s?", of, file)
	if repeated {
		q = "An earlier restore has not completed: the data from before it stay, those that it has restored are removed. " + q
	}
	return q
}

// takeOver stops the hub, and takes the address and the keys of the backup. It returns the name of
// the restore.
func (h *Hosted) takeOver(ctx context.Context, host manifests.Cluster, a *Backup, progress manifests.Progress) (restore string, err error) {
	of, err := spec.SettingsHub(h.Namespace, a.Settings)
	if err != nil {
		return "", fmt.Errorf("read the settings of the backup: %w", err)
	}
	h.APIAddress, h.NodePort, h.ServiceType = of.APIAddress, of.NodePort, of.ServiceType
	progress("Stopping the hub")
	programs := []client.Object{&appsv1.Deployment{ObjectMeta: h.meta(manifests.HubName)}, &appsv1.Deployment{ObjectMeta: h.meta(HostedControllerManager)},
		&appsv1.Deployment{ObjectMeta: h.meta(HostedAPIServer)}, &appsv1.StatefulSet{ObjectMeta: h.meta(HostedEtcd)}}
	for _, obj := range programs {
		err := host.Client.Patch(ctx, obj, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"replicas":0}}`)), client.FieldOwner(manifests.Manager))
		if client.IgnoreNotFound(err) != nil {
			return "", fmt.Errorf("stop %s: %w", obj.GetName(), err)
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
			return "", fmt.Errorf("wait until the pods of %s have ended: %w", app, err)
		}
	}
	if restore, err = h.exchangeKeys(ctx, host.Client, a.Kept); err != nil {
		return "", err
	}
	// the address, for an `init` after a restore that fails
	return restore, h.save(ctx, host.Client)
}

// exchangeKeys saves a copy of the present keys, without which the present data cannot be read
// later, and writes those of the backup. It returns the name of the restore. If an earlier restore
// has not completed, it keeps that one's name and copy.
func (h *Hosted) exchangeKeys(ctx context.Context, host client.Client, keys map[string][]byte) (restore string, err error) {
	present := &corev1.Secret{ObjectMeta: h.meta(HostedCA)}
	if err := host.Get(ctx, client.ObjectKeyFromObject(present), present); client.IgnoreNotFound(err) != nil {
		return "", fmt.Errorf("get Secret %s/%s: %w", h.Namespace, HostedCA, err)
	}
	former := &corev1.Secret{ObjectMeta: h.meta(HostedFormerCA)}
	if err := manifests.Put(ctx, host, former, func() {
		if restore = former.Annotations[annotationRestore]; restore == "" {
			restore = time.Now().UTC().Format("20060102-150405")
			former.Data, former.Labels = present.Data, h.meta("").Labels
			former.Annotations = map[string]string{annotationRestore: restore}
		}
	}); err != nil {
		return "", err
	}
	s := &corev1.Secret{ObjectMeta: h.meta(HostedCA)}
	return restore, manifests.Put(ctx, host, s, func() { s.Data, s.Labels = keys, h.meta("").Labels })
}

// completeRestore marks the restore as complete: the next one may replace the former data and keys.
func (h *Hosted) completeRestore(ctx context.Context, host client.Client) error {
	former := &corev1.Secret{ObjectMeta: h.meta(HostedFormerCA)}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null}}}`, annotationRestore)
	err := host.Patch(ctx, former, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(manifests.Manager))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("patch Secret %s/%s: %w", former.Namespace, former.Name, err)
	}
	return nil
}

// restoreMember puts the snapshot into the volume of one member, by a pod.
func (h *Hosted) restoreMember(ctx context.Context, host manifests.Cluster, a *Backup, restore string, i int) error {
	pod, err := RestorePod(h.Hub, i, restore)
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
	// until waits until done returns true; if the pod fails, the error has the reason.
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
	return rollout.PodReason(*pod)
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

// unfinished is a file that exists in the directory "former" until the restored hub runs, like
// annotationRestore.
const unfinished = "unfinished"

// Restore replaces the state of the hub by that of a backup; the present data of etcd and their
// keys stay in the directory "former". The hub is stopped before, and started again by init.
// Nothing is changed before the whole backup was read and confirm agrees.
func (l *Local) Restore(ctx context.Context, file string, confirm func(question string) error, progress manifests.Progress) error {
	if err := CheckBackup(file); err != nil {
		return err
	}
	a, err := OpenBackup(file)
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
	if err := confirm(question("in "+l.Dir, file, exists(filepath.Join(l.Dir, "former", unfinished)))); err != nil {
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
	snapshot, restored := filepath.Join(o.Dir, "snapshot.db"), filepath.Join(o.Dir, "restored")
	if err := errors.Join(os.RemoveAll(restored), a.CopySnapshot(snapshot)); err != nil {
		return fmt.Errorf("restore etcd: %w", err)
	}
	peer := fmt.Sprintf("https://127.0.0.1:%d", o.Port+2)
	out, err := exec.CommandContext(ctx, etcdutl, "snapshot", "restore", snapshot, "--data-dir="+restored, "--name=etcd", "--initial-cluster=etcd="+peer,
		"--initial-advertise-peer-urls="+peer, "--bump-revision=1000000000", "--mark-compacted").CombinedOutput()
	if err != nil {
		return fmt.Errorf("restore etcd: etcdutl snapshot restore: %w: %s", err, bytes.TrimSpace(out))
	}
	pki, err := l.pki()
	if err != nil {
		return err
	}
	if err := errors.Join(os.Remove(snapshot), exchange(o.Dir, pki.Kept)); err != nil {
		return fmt.Errorf("restore etcd: %w", err)
	}
	pki.Kept = a.Kept
	if _, err := pki.Complete(names, time.Now()); err != nil {
		return err
	}
	return l.write(pki)
}

// exchange moves the data directory "etcd" to "former", with a copy of its keys, and "restored" to
// "etcd". If an earlier restore has not completed, what that one has moved to "former" stays there.
func exchange(dir string, keys map[string][]byte) error {
	data, former := filepath.Join(dir, "etcd"), filepath.Join(dir, "former")
	if !exists(filepath.Join(former, unfinished)) {
		if err := errors.Join(os.RemoveAll(former), os.MkdirAll(filepath.Join(former, "pki"), 0o700)); err != nil {
			return err
		}
		for name, content := range keys {
			if err := WriteChanged(filepath.Join(former, "pki", name), content); err != nil {
				return err
			}
		}
		if err := WriteChanged(filepath.Join(former, unfinished), nil); err != nil {
			return err
		}
	}
	// If the hub has no data, move an empty directory, so that a repeated restore does not mistake
	// the restored data for former data.
	err := os.MkdirAll(data, 0o700)
	switch {
	case err != nil:
	case exists(filepath.Join(former, "etcd")):
		err = os.RemoveAll(data)
	default:
		err = os.Rename(data, filepath.Join(former, "etcd"))
	}
	if err != nil {
		return err
	}
	return os.Rename(filepath.Join(dir, "restored"), data)
}

// completeRestore marks the restore as complete: the next one may replace the former data and keys.
func (l *Local) completeRestore() error {
	if err := os.Remove(filepath.Join(l.Dir, "former", unfinished)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("complete the restore: %w", err)
	}
	return nil
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}
