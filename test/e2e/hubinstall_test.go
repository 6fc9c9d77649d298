package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pelago-net/pelago/test/e2e/walk"
	"github.com/pelago-net/pelago/test/images"
	"github.com/pelago-net/pelago/test/lab"
	"github.com/pelago-net/pelago/test/lab/binaries"
	"github.com/pelago-net/pelago/test/need"
)

// hostedHub is a hub that `pelago init` has put into cluster g1, with g2 as its member.
type hostedHub struct{ *clusterset }

// The volumes are those of a node each; their directories belong to user nobody, as those of a
// provisioner.
const hubVolume = `
apiVersion: v1
kind: PersistentVolume
metadata: {name: %[1]s-%[2]s}
spec:
  capacity: {storage: 10Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: manual
  persistentVolumeReclaimPolicy: Retain
  hostPath: {path: /var/lib/%[1]s}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%[2]s]}]}]}}
`

const hostedManifests = `
apiVersion: policy.karmada.io/v1alpha1
kind: PropagationPolicy
metadata: {name: web, namespace: default}
spec:
  resourceSelectors: [{apiVersion: apps/v1, kind: Deployment, name: web}, {apiVersion: v1, kind: ConfigMap, name: settings}]
  placement: {clusterAffinity: {clusterNames: [m2]}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: default}
data: {step: "first"}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: default}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: whereami, image: "localhost/whereami:dev", imagePullPolicy: Never}]
`

// TestHubInstall: from an ordinary cluster to a hub with a member in three commands; its parts die;
// it is destroyed and restored.
func TestHubInstall(t *testing.T) {
	need.Clusters(t)
	w := walk.Walk{Dir: t.TempDir(), Bin: absolute(t, *binDir), Images: absolute(t, *imageDir), Out: t.Output()}
	h := hostedHub{&clusterset{Walk: w, load: &load{}}}
	ctx := t.Context()
	kube, err := binaries.Kubernetes(ctx, func(line string) { t.Log(line) })
	must(t, err)
	kubeImage := filepath.Join(h.Dir, "kube.tar")
	_, err = images.KubeImage(filepath.Join(kube, "kube")).Write(kubeImage)
	must(t, err)
	o := lab.Options{Name: *labName + "hub", Clusters: 2, Nodes: 3, NoHub: true, Progress: func(line string) { t.Log(line) }}
	if !*keep {
		down(t, o.Name)
		t.Cleanup(func() { down(t, o.Name) })
	}
	t.Cleanup(func() {
		if t.Failed() && h.Lab != nil {
			h.showHost(t)
		}
	})
	h.Lab, err = lab.Up(ctx, o)
	must(t, err)
	must(t, h.Lab.LoadImage(ctx, kubeImage, "g1"))
	must(t, os.Remove(kubeImage))
	must(t, h.Lab.LoadImage(ctx, filepath.Join(h.Images, "pelago.tar"), "g1"))
	must(t, h.Lab.LoadImage(ctx, filepath.Join(h.Images, "whereami.tar"), "g2"))
	h.volumes(t, "hub-data")

	h.init(t)
	_, err = h.Pelago(ctx, "join", "m2", "--kubeconfig", "hub.kubeconfig", "--cluster-kubeconfig", h.Lab.Kubeconfig(), "--cluster-context", "g2")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(h.Dir, "web.yaml"), []byte(hostedManifests), 0o600))
	_, err = h.Kubectl(ctx, "--kubeconfig", "hub.kubeconfig", "apply", "-f", "web.yaml")
	must(t, err)
	h.propagates(t, "first")
	within(t, func() error {
		out, err := h.hub(ctx, "get", "deployment", "web", "-o", "jsonpath={.status.readyReplicas}")
		if err == nil && out != "2" {
			err = fmt.Errorf("the hub shows %q ready replicas, want 2", out)
		}
		return err
	})
	before := h.uids(t)

	h.run(t, "init again changes nothing", func(t *testing.T, _ *clusterset) { h.again(t) })
	h.run(t, "certificates are renewed by the CronJob", func(t *testing.T, _ *clusterset) {
		h.kubectl(t, "g1", "-n", "pelago-system", "create", "job", "renewal", "--from=cronjob/pelago-hub-renewal")
		h.kubectl(t, "g1", "-n", "pelago-system", "wait", "--for=condition=Complete", "job/renewal", walk.WaitFlag)
	})
	for _, app := range []string{"pelago-hub-etcd", "pelago-hub-apiserver", "pelago-hub-controller-manager", "pelago-hub"} {
		h.run(t, "pods killed: "+app, func(t *testing.T, _ *clusterset) {
			if app == "pelago-hub" {
				holder, err := h.hub(t.Context(), "-n", "pelago-system", "get", "lease", "pelago-hub", "-o", "jsonpath={.spec.holderIdentity}")
				must(t, err)
				h.kubectl(t, "g1", "-n", "pelago-system", "delete", "pod", holder, "--grace-period=0", "--force")
			} else {
				h.kubectl(t, "g1", "-n", "pelago-system", "delete", "pod", "-l", "app="+app, "--grace-period=0", "--force")
			}
			h.changes(t, app)
			if diff := cmp.Diff(before, h.uids(t)); diff != "" {
				t.Errorf("objects of the member: -before +after\n%s", diff)
			}
		})
	}
	h.run(t, "destroyed and restored", func(t *testing.T, _ *clusterset) { h.restored(t, before) })
}

// init runs `pelago init` as a user who mirrors the images.
func (h hostedHub) init(t *testing.T) {
	t.Helper()
	out, err := h.Pelago(t.Context(), "init", "--host-context", "g1", "--etcd-replicas", "3", "--storage-class", "manual", "--etcd-image", images.Kube,
		"--kube-apiserver-image", images.Kube, "--kube-controller-manager-image", images.Kube, "--output", "hub.kubeconfig")
	must(t, err)
	if !strings.Contains(out, "pelago join NAME --kubeconfig hub.kubeconfig") {
		t.Errorf("the next command is not printed:\n%s", out)
	}
}

func (h hostedHub) volumes(t *testing.T, name string) {
	t.Helper()
	for _, node := range h.nodes(t, "g1") {
		h.node(t, node, "mkdir", "-m", "0777", "-p", "/var/lib/"+name)
		must(t, h.Apply(t.Context(), "g1", fmt.Sprintf(hubVolume, name, node)))
	}
}

// hub runs kubectl as the hub's administrator.
func (h hostedHub) hub(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	out, err := h.Quietly(ctx, h.Lab.Kubectl(), append([]string{"--kubeconfig", "hub.kubeconfig"}, args...)...)
	return strings.TrimSpace(out), err
}

// propagates waits until the member has the step of the ConfigMap, and two ready pods.
func (h hostedHub) propagates(t *testing.T, step string) {
	t.Helper()
	within(t, func() error {
		got, err := h.Quietly(t.Context(), h.Lab.Kubectl(), "--context", "g2", "get", "configmap/settings", "deployment/web", "-o",
			"jsonpath={.items[0].data.step} {.items[1].status.readyReplicas}")
		if err == nil && got != step+" 2" {
			err = fmt.Errorf("g2 has %q, want %q", got, step+" 2")
		}
		return err
	})
}

// changes changes the template at the hub, as soon as that answers, and waits for the member.
func (h hostedHub) changes(t *testing.T, step string) {
	t.Helper()
	within(t, func() error {
		_, err := h.hub(t.Context(), "patch", "configmap", "settings", "-p", fmt.Sprintf(`{"data":{"step":%q}}`, step))
		return err
	})
	h.propagates(t, step)
}

// uids are those of what the hub has made in the member, and of its pods.
func (h hostedHub) uids(t *testing.T) string {
	t.Helper()
	return h.kubectl(t, "g2", "-n", "default", "get", "deployments,replicasets,pods,configmaps", "--sort-by=.metadata.uid",
		"-o", `jsonpath={range .items[*]}{.kind} {.metadata.name} {.metadata.uid}{"\n"}{end}`)
}

// again runs init without flags.
func (h hostedHub) again(t *testing.T) {
	state := func() string {
		return h.kubectl(t, "g1", "-n", "pelago-system", "get", "statefulsets,deployments,secrets,configmaps,services,cronjobs", "-l",
			"app.kubernetes.io/part-of=pelago-hub", "-o", `jsonpath={range .items[*]}{.kind} {.metadata.name} {.metadata.generation} {.data}{"\n"}{end}`)
	}
	first := state()
	_, err := h.Pelago(t.Context(), "init", "--host-context", "g1", "--output", "hub.kubeconfig")
	must(t, err)
	if diff := cmp.Diff(first, state()); diff != "" {
		t.Error("init run again changed objects of the host cluster") // the difference has keys
	}
	if _, err := h.Pelago(t.Context(), "init", "--host-context", "g1", "--etcd-replicas", "1"); err == nil || !strings.Contains(err.Error(), "cannot change") {
		t.Errorf("another number of members of etcd: %v", err)
	}
}

// restored destroys the hub and restores it from a backup into a new one, whose keys are others.
func (h hostedHub) restored(t *testing.T, before string) {
	ctx := t.Context()
	_, err := h.Pelago(ctx, "hub", "backup", "hub.tar.gz", "--host-context", "g1")
	must(t, err)
	if _, err := h.Pelago(ctx, "deinit", "--host-context", "g1", "--yes"); err == nil || !strings.Contains(err.Error(), "clusters are registered at the hub: m2") {
		t.Fatalf("deinit of a hub that has members: %v", err)
	}
	_, err = h.Pelago(ctx, "deinit", "--host-context", "g1", "--yes", "--force", "--purge")
	must(t, err)
	if left := h.kubectl(t, "g1", "get", "namespaces,pods,secrets,pvc", "-A", "-l", "app.kubernetes.io/part-of=pelago-hub", "-o", "name"); left != "" {
		t.Errorf("deinit leaves %s", left)
	}
	h.volumes(t, "hub-new")
	h.init(t)
	_, err = h.Pelago(ctx, "hub", "restore", "hub.tar.gz", "--yes", "--host-context", "g1", "--output", "hub.kubeconfig")
	must(t, err)
	h.changes(t, "restored")
	if diff := cmp.Diff(before, h.uids(t)); diff != "" {
		t.Errorf("objects of the member: -before +after the restore\n%s", diff)
	}
}

// showHost prints what helps to understand a failure.
func (h hostedHub) showHost(t *testing.T) {
	h.Out = t.Output()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, args := range [][]string{
		{"--context", "g1", "get", "pods,pvc,services", "-A", "-o", "wide"},
		{"--context", "g1", "-n", "pelago-system", "get", "events", "--sort-by=.lastTimestamp"},
		{"--context", "g1", "-n", "pelago-system", "logs", "-l", "app in (pelago-hub,pelago-hub-etcd,pelago-hub-controller-manager)", "--prefix", "--tail=15"},
		{"--context", "g1", "-n", "pelago-system", "logs", "-l", "app=pelago-hub-apiserver", "--prefix", "--tail=15"},
		{"--kubeconfig", "hub.kubeconfig", "get", "resourcebindings,works,clusters.cluster.karmada.io", "-A", "-o", "wide"},
		{"--context", "g2", "get", "deployments,pods", "-o", "wide"},
	} {
		if _, err := h.Kubectl(ctx, args...); err != nil {
			t.Log(err)
		}
	}
}
