package install

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/deploy"
)

// Entries of a backup, a tar archive that is compressed by gzip: the flags of the installation, the files of deploy.PKI.Kept, and
// last the snapshot of etcd.
const (
	entrySettings = "settings.yaml"
	entryPKI      = "pki/"
	entrySnapshot = "snapshot.db"
)

// archive is an open backup.
type archive struct {
	io.Closer
	settings map[string]string
	kept     map[string][]byte
	snapshot io.Reader
}

// writeArchive writes the state of the hub into a file that its owner alone can read.
func writeArchive(ctx context.Context, file string, settings map[string]string, pki deploy.PKI, endpoint string) (err error) {
	// The header of the entry has the size, so the snapshot is stored before.
	snapshot, err := os.CreateTemp(filepath.Dir(file), ".snapshot-")
	if err != nil {
		return fmt.Errorf("write backup %s: %w", file, err)
	}
	defer os.Remove(snapshot.Name())
	defer snapshot.Close()
	if err := takeSnapshot(ctx, endpoint, pki, snapshot); err != nil {
		return err
	}
	out, err := os.CreateTemp(filepath.Dir(file), ".backup-") // mode 0600
	if err != nil {
		return fmt.Errorf("write backup %s: %w", file, err)
	}
	defer os.Remove(out.Name())
	if err := errors.Join(writeEntries(out, settings, pki.Kept, snapshot), out.Sync(), out.Close()); err != nil {
		return fmt.Errorf("write backup %s: %w", file, err)
	}
	if err := os.Rename(out.Name(), file); err != nil {
		return fmt.Errorf("write backup: %w", err)
	}
	return nil
}

func writeEntries(out io.Writer, settings map[string]string, kept map[string][]byte, snapshot *os.File) error {
	text, err := yaml.Marshal(settings)
	if err != nil {
		return err
	}
	size, err := snapshot.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = snapshot.Seek(0, io.SeekStart)
	}
	if err != nil {
		return err
	}
	zip := gzip.NewWriter(out)
	w := tar.NewWriter(zip)
	files := map[string][]byte{entrySettings: text}
	for name, content := range kept {
		files[entryPKI+name] = content
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(files[name]))})
		if err == nil {
			_, err = w.Write(files[name])
		}
		if err != nil {
			return err
		}
	}
	if err := w.WriteHeader(&tar.Header{Name: entrySnapshot, Mode: 0o600, Size: size}); err != nil {
		return err
	}
	if _, err := io.Copy(w, snapshot); err != nil {
		return err
	}
	return errors.Join(w.Close(), zip.Close())
}

// takeSnapshot copies the database of etcd as of now.
func takeSnapshot(ctx context.Context, endpoint string, pki deploy.PKI, to io.Writer) error {
	pair, err := tls.X509KeyPair(pki.Issued["apiserver-etcd.crt"], pki.Issued["apiserver-etcd.key"])
	if err != nil {
		return fmt.Errorf("read the certificate of the API server for etcd: %w: run `pelago init` again", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pki.Kept["etcd-ca.crt"])
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: 30 * time.Second, Context: ctx, Logger: zap.NewNop(),
		TLS: &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, RootCAs: roots, ServerName: "localhost"}})
	if err != nil {
		return fmt.Errorf("connect to etcd: %w", err)
	}
	defer etcd.Close()
	s, err := etcd.SnapshotWithVersion(ctx)
	if err != nil {
		return fmt.Errorf("take a snapshot of etcd: %w", err)
	}
	if _, err := io.Copy(to, s.Snapshot); err != nil {
		return fmt.Errorf("take a snapshot of etcd: %w", errors.Join(err, s.Snapshot.Close()))
	}
	return s.Snapshot.Close()
}

// openArchive reads a backup up to its snapshot.
func openArchive(file string) (*archive, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read backup: %w", err)
	}
	a, err := readArchive(f)
	if err != nil {
		_ = f.Close() // only read
		return nil, fmt.Errorf("read backup %s: %w: it is no file of `pelago hub backup`, or a part of one", file, err)
	}
	a.Closer = f
	return a, nil
}

func readArchive(from io.Reader) (*archive, error) {
	zip, err := gzip.NewReader(from)
	if err != nil {
		return nil, err
	}
	r := tar.NewReader(zip)
	a := &archive{kept: map[string][]byte{}}
	for {
		header, err := r.Next()
		if err != nil {
			return nil, err
		}
		if header.Name == entrySnapshot {
			break
		}
		content, err := io.ReadAll(io.LimitReader(r, 1<<20))
		if err != nil {
			return nil, err
		}
		if header.Name == entrySettings {
			err = yaml.Unmarshal(content, &a.settings)
		} else if name, ok := strings.CutPrefix(header.Name, entryPKI); ok {
			a.kept[name] = content
		}
		if err != nil {
			return nil, err
		}
	}
	for _, name := range deploy.KeptFiles() {
		if a.kept[name] == nil {
			return nil, fmt.Errorf("%s%s is missing", entryPKI, name)
		}
	}
	a.snapshot = r
	return a, nil
}

// copySnapshot writes the snapshot, mode 0600. It can be read once.
func (a *archive) copySnapshot(file string) error {
	out, err := os.OpenFile(file, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, a.snapshot)
	return errors.Join(err, out.Close())
}

// Backup writes the state of the hub in the host cluster, which runs, into a file.
func (h *Hosted) Backup(ctx context.Context, host view.Member, file string) error {
	settings, err := h.former(ctx, host.Client)
	if err != nil {
		return err
	}
	if settings == nil {
		return h.notInstalled()
	}
	var pki deploy.PKI
	for name, files := range map[string]*map[string][]byte{deploy.HostedCA: &pki.Kept, deploy.HostedPKI: &pki.Issued} {
		s := &corev1.Secret{}
		if err := host.Client.Get(ctx, client.ObjectKey{Namespace: h.Namespace, Name: name}, s); err != nil {
			return fmt.Errorf("get Secret %s/%s: %w", h.Namespace, name, err)
		}
		*files = s.Data
	}
	endpoint, stop, err := h.forward(host)
	if err != nil {
		return err
	}
	defer stop()
	return writeArchive(ctx, file, settings, pki, endpoint)
}

func (h *Hosted) notInstalled() error {
	return fmt.Errorf("namespace %s of the host cluster has no hub (no ConfigMap %s): name another with --namespace, or run `pelago init "+
		"--host-context` first; the data of a hub of `pelago init --context` or `deploy-broker` is backed up with the etcd of its API server", h.Namespace, deploy.HostedSettings)
}

// forward makes the port of etcd's first member one of this machine.
func (h *Hosted) forward(host view.Member) (endpoint string, end func(), err error) {
	pod := deploy.HostedEtcd + "-0"
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
		a, err := openArchive(file)
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
func (h *Hosted) takeOver(ctx context.Context, host view.Member, a *archive, progress deploy.Progress) error {
	for _, name := range []string{"api-address", "node-port", "service-type"} {
		value := a.settings[name]
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
	return deploy.Put(ctx, host.Client, s, func() { s.Data, s.Labels = a.kept, h.meta("").Labels })
}

// restoreMember puts the snapshot into the volume of one member, by a pod.
func (h *Hosted) restoreMember(ctx context.Context, host view.Member, a *archive, i int) error {
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
	if err := host.Stream(ctx, url, remotecommand.StreamOptions{Stdin: a.snapshot, Stderr: io.Discard}); err != nil {
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
