package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/api/submariner/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	"github.com/pelago-net/pelago/control/operator"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/hub"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/spec"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// clusterAPIServer installs the kind Cluster of Cluster API, served in the versions, and returns a
// client for it and for a hub's kinds.
func clusterAPIServer(t *testing.T, cfg *rest.Config, versions ...string) *apiserver.Cluster {
	t.Helper()
	c := apiserver.Connect(t, cfg, clusterv1alpha1.AddToScheme, submarinerv1.AddToScheme, workv1alpha1.AddToScheme)
	file, err := os.Open("testdata/clusterapi.yaml")
	must(t, err)
	defer file.Close()
	objs, err := manifests.Decode(file)
	must(t, err)
	crd := objs[0]
	all, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
	must(t, err)
	var kept []any
	for _, v := range all {
		if name := v.(map[string]any)["name"]; strings.Contains(strings.Join(versions, " "), name.(string)) {
			v.(map[string]any)["storage"] = len(kept) == 0
			kept = append(kept, v)
		}
	}
	must(t, unstructured.SetNestedSlice(crd.Object, kept, "spec", "versions"))
	must(t, c.Create(t.Context(), crd))
	await.True(t, "Cluster API's kind is served", func() bool {
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion("cluster.x-k8s.io/" + versions[0])
		list.SetKind("ClusterList")
		return c.List(t.Context(), list) == nil
	})
	return c
}

// Names of Cluster API, and reasons of the Events on its Clusters.
const (
	capiSecretLabel   = "cluster.x-k8s.io/cluster-name"
	capiSecretType    = "cluster.x-k8s.io/secret"
	capiSecretKey     = "value"
	capiMoved         = "clusterctl.cluster.x-k8s.io/delete-for-move"
	reasonJoined      = "Joined"
	reasonLeft        = "Left"
	reasonJoinPending = "JoinPending"
	reasonRefused     = "JoinRefused"
	reasonJoinFailed  = "JoinFailed"
	reasonLeaving     = "Leaving"
	reasonRetained    = "MemberRetained"
)

// capiCluster is one Cluster of Cluster API.
type capiCluster struct {
	*apiserver.Cluster
	*unstructured.Unstructured
	t *testing.T
}

func newCAPICluster(t *testing.T, at *apiserver.Cluster, version, namespace, name string, labels map[string]string) capiCluster {
	t.Helper()
	u := &unstructured.Unstructured{}
	u.SetAPIVersion("cluster.x-k8s.io/" + version)
	u.SetKind("Cluster")
	u.SetNamespace(namespace)
	u.SetName(name)
	u.SetLabels(labels)
	// Cluster API removes it when the machines are gone
	u.SetFinalizers([]string{"cluster.cluster.x-k8s.io"})
	at.Make(u)
	return capiCluster{at, u, t}
}

func (c capiCluster) patch(text string) {
	c.t.Helper()
	must(c.t, c.Patch(c.t.Context(), c.Unstructured.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(text))))
}

func (c capiCluster) status(text string) {
	c.t.Helper()
	must(c.t, c.Status().Patch(c.t.Context(), c.Unstructured.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"status":`+text+`}`))))
}

// secret writes the kubeconfig as Cluster API does.
func (c capiCluster) secret(kubeconfig []byte) {
	c.t.Helper()
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: c.Unstructured.GetNamespace(), Name: c.Unstructured.GetName() + "-kubeconfig",
		Labels: map[string]string{capiSecretLabel: c.Unstructured.GetName()}}, Type: capiSecretType, Data: map[string][]byte{capiSecretKey: kubeconfig}}
	err := c.Create(c.t.Context(), s)
	if apierrors.IsAlreadyExists(err) {
		err = c.Update(c.t.Context(), s)
	}
	must(c.t, err)
}

// says waits for an Event on the object with the words.
func (c capiCluster) says(reason string, words ...string) {
	c.t.Helper()
	within(c.t, reason, func() string {
		var all []string
		events := &corev1.EventList{}
		must(c.t, c.List(c.t.Context(), events, client.InNamespace(c.Unstructured.GetNamespace())))
	next:
		for _, e := range events.Items {
			if e.InvolvedObject.UID != "" && e.InvolvedObject.UID != c.Unstructured.GetUID() || e.InvolvedObject.Name != c.Unstructured.GetName() {
				continue
			}
			all = append(all, e.Reason+": "+e.Message)
			for _, word := range words {
				if e.Reason != reason || !strings.Contains(e.Message, word) {
					continue next
				}
			}
			return ""
		}
		return fmt.Sprintf("want %q, have\n%s", words, strings.Join(all, "\n"))
	})
}

// gone waits until an object does not exist.
func gone(t *testing.T, c client.Client, o client.Object) {
	t.Helper()
	await.True(t, fmt.Sprintf("%T %s is gone", o, o.GetName()), func() bool {
		return apierrors.IsNotFound(c.Get(t.Context(), client.ObjectKeyFromObject(o), o))
	})
}

// TestClusterAPI takes a cluster of Cluster API through its life as a push member of a hub on the
// same API server, with the rights of the operator's ServiceAccount.
func TestClusterAPI(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	o := newOperated(t, apiserver.HubControllers(), installed(t, manifests.PropagationCRDs))
	propagates(t, o.Config)
	program, err := hubProgram()
	must(t, err)
	access, err := hub.Kubeconfig(ctx, o.Config, installer(t, o.Config))
	must(t, err)
	hubConfig := filepath.Join(t.TempDir(), "hub.kubeconfig")
	must(t, os.WriteFile(hubConfig, access, 0o600))
	hub := exec.Command(program, "--kubeconfig", hubConfig, "--metrics-address=0", "--health-address=0", "--leader-elect=false")
	must(t, hub.Start())
	t.Cleanup(func() {
		_ = hub.Process.Kill()
		_ = hub.Wait()
	})
	at := clusterAPIServer(t, o.Config, "v1beta2", "v1beta1")
	admin := apiserver.Start(t, apiserver.HubControllers())
	member := apiserver.Connect(t, admin)
	line := apiserver.NewLine(t, admin)
	o.run(manifests.DefaultImage)

	c := newCAPICluster(t, at, "v1beta2", "default", "c1", map[string]string{v1alpha1.LabelJoin: "Push", "env": "prod"})
	c.says(reasonRefused, `label pelago.io/join is "Push": use push, pull or network`)
	c.patch(`{"metadata":{"labels":{"pelago.io/join":"push"},"annotations":{"pelago.io/cluster-region":"eu","pelago.io/cluster-zones":"eu-1, eu-2","pelago.io/cluster-labels":"env,team"}}}`)
	c.says(reasonRefused, `annotation pelago.io/cluster-labels names the label "team"`)
	c.patch(`{"metadata":{"annotations":{"pelago.io/cluster-labels":"env","pelago.io/flags":"--datapath=fast"}}}`)
	c.says(reasonJoinPending, "control plane is not initialized")
	c.status(`{"initialization":{"controlPlaneInitialized":true}}`)
	c.says(reasonJoinPending, "Secret default/c1-kubeconfig is missing")
	marker := filepath.Join(t.TempDir(), "marker")
	text, err := apiserver.Kubeconfig(line.Config())
	must(t, err)
	hostile := strings.Replace(string(text), "  user:\n", "  user:\n    exec: {apiVersion: client.authentication.k8s.io/v1, command: touch, args: ["+marker+"], interactiveMode: Never}\n", 1)
	c.secret([]byte(hostile))
	c.says(reasonRefused, "Secret default/c1-kubeconfig: the kubeconfig is refused: its user has exec")
	c.secret(text)
	c.says(reasonRefused, "annotation pelago.io/flags has no meaning with label pelago.io/join=push")
	line.Cut()
	c.patch(`{"metadata":{"annotations":{"pelago.io/flags":null}}}`)
	c.says(reasonJoinFailed, line.Address(), "connection refused")
	line.Heal()
	c.says(reasonJoined, "member c1 of the hub (push)")
	if _, err := os.Stat(marker); !os.IsNotExist(err) {
		t.Errorf("the program of the kubeconfig: %v", err)
	}
	atHub := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "c1"}}
	ready := func() bool {
		must(t, at.Get(ctx, client.ObjectKeyFromObject(atHub), atHub))
		r := atHub.Ready()
		return r != nil && r.Status == metav1.ConditionTrue
	}
	await.True(t, "the member is ready", ready)
	if s := atHub.Spec; s.SyncMode != clusterv1alpha1.Push || s.Region != "eu" || !cmp.Equal(s.Zones, []string{"eu-1", "eu-2"}) || s.APIEndpoint != line.Config().Host ||
		atHub.Labels["env"] != "prod" || !strings.HasPrefix(atHub.Annotations[v1alpha1.AnnotationClusterAPI], "default/c1@") {
		t.Errorf("the member at the hub: %+v", atHub)
	}

	t.Run("a second object of that name", func(t *testing.T) {
		at.Make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}})
		second := newCAPICluster(t, at, "v1beta2", "other", "c1", map[string]string{v1alpha1.LabelJoin: "push"})
		second.secret(text)
		second.status(`{"initialization":{"controlPlaneInitialized":true}}`)
		second.says(reasonRefused, `the name "c1" is taken by the member of Cluster default/c1`)
		second.patch(`{"metadata":{"annotations":{"pelago.io/cluster-name":"c2"}}}`)
		// it has the kubeconfig of the same cluster
		second.says(reasonJoinFailed, `this cluster is registered as "c1"`)
		second.patch(`{"metadata":{"annotations":{"pelago.io/cluster-name":"C2"}}}`)
		second.says(reasonRefused, `cluster id "C2"`, "annotation pelago.io/cluster-name")
		second.patch(`{"metadata":{"finalizers":null}}`)
		at.Remove(second.Unstructured)
		if !ready() {
			t.Error("the member of the first object has left with the second one")
		}
	})
	t.Run("changes are followed", func(t *testing.T) {
		other := apiserver.NewLine(t, admin)
		renewed, err := apiserver.Kubeconfig(other.Config())
		must(t, err)
		c.secret(renewed)
		c.patch(`{"metadata":{"labels":{"env":"test","team":"a"},"annotations":{"pelago.io/cluster-region":null,"pelago.io/cluster-labels":"team"}}}`)
		await.Equal(t, "https://"+other.Address()+" a  ", func() string {
			must(t, at.Get(ctx, client.ObjectKeyFromObject(atHub), atHub))
			return strings.Join([]string{atHub.Spec.APIEndpoint, atHub.Labels["team"], atHub.Labels["env"], atHub.Spec.Region}, " ")
		})
		c.secret(text)
		await.Equal(t, line.Config().Host, func() string {
			must(t, at.Get(ctx, client.ObjectKeyFromObject(atHub), atHub))
			return atHub.Spec.APIEndpoint
		})
		c.patch(`{"metadata":{"labels":{"pelago.io/join":"pull"}}}`)
		c.says(reasonRefused, "the cluster is a push member called c1, and neither changes")
	})
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: clusterv1alpha1.SecretNamespace, Name: "karmada-c1"}}
	must(t, member.Get(ctx, client.ObjectKeyFromObject(account), account))
	t.Run("without the label it leaves", func(t *testing.T) {
		o.stop() // the operator finds it when it starts again
		c.patch(`{"metadata":{"labels":{"pelago.io/join":null}}}`)
		o.run(manifests.DefaultImage)
		c.says(reasonLeft, "member c1 has left the hub")
		gone(t, at, atHub)
		gone(t, member, account)
	})
	t.Run("an object that clusterctl has moved", func(t *testing.T) {
		c.patch(`{"metadata":{"labels":{"pelago.io/join":"push"}}}`)
		await.True(t, "it has joined again", func() bool {
			return at.Get(ctx, client.ObjectKey{Name: "c1"}, atHub) == nil && ready() && atHub.Annotations[v1alpha1.AnnotationClusterAPI] != ""
		})
		must(t, at.Patch(ctx, c.Unstructured.DeepCopy(), client.RawPatch("application/json-patch+json",
			[]byte(`[{"op":"add","path":"/metadata/annotations","value":{"`+capiMoved+`":""}}]`))))
		at.Remove(c.Unstructured)
		c.patch(`{"metadata":{"finalizers":null}}`)
		c.says(reasonRetained, "member c1 stays")
		if !ready() || atHub.DeletionTimestamp != nil || atHub.Labels["team"] != "a" {
			t.Errorf("the member: %+v", atHub)
		}
	})
	t.Run("an object that leads elsewhere", func(t *testing.T) {
		var before clusterv1alpha1.Cluster
		must(t, at.Get(ctx, client.ObjectKeyFromObject(atHub), &before))
		must(t, at.Patch(ctx, atHub.DeepCopy(), client.RawPatch(types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{"`+v1alpha1.AnnotationClusterAPI+`":null}}}`)))) // as if joined by hand
		other, err := apiserver.Kubeconfig(apiserver.NewLine(t, admin).Config())
		must(t, err)
		thief := newCAPICluster(t, at, "v1beta2", "other", "thief", map[string]string{v1alpha1.LabelJoin: "push"})
		thief.secret(other)
		thief.patch(`{"metadata":{"annotations":{"pelago.io/cluster-name":"c1"}}}`)
		thief.status(`{"initialization":{"controlPlaneInitialized":true}}`)
		thief.says(reasonRefused, `the hub has a member "c1" that was not joined for this object`, "kubectl annotate --overwrite clusters.cluster.karmada.io c1")
		must(t, at.Get(ctx, client.ObjectKeyFromObject(atHub), atHub))
		if atHub.Spec.APIEndpoint != before.Spec.APIEndpoint {
			t.Errorf("the member leads to %s, not to %s", atHub.Spec.APIEndpoint, before.Spec.APIEndpoint)
		}
		thief.patch(`{"metadata":{"finalizers":null}}`)
		at.Remove(thief.Unstructured)
	})
	t.Run("a deleted cluster that does not answer is given up", func(t *testing.T) {
		// as after `clusterctl move`
		c := newCAPICluster(t, at, "v1beta2", "default", "c1", map[string]string{v1alpha1.LabelJoin: "push"})
		c.status(`{"initialization":{"controlPlaneInitialized":true}}`)
		c.secret(text)
		await.True(t, "the object has joined", func() bool {
			must(t, at.Get(ctx, client.ObjectKeyFromObject(atHub), atHub))
			return atHub.Labels["team"] == ""
		})
		cm := &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "work"}}
		raw, err := json.Marshal(cm)
		must(t, err)
		work := &workv1alpha1.Work{ObjectMeta: metav1.ObjectMeta{Namespace: "karmada-es-c1", Name: "work"}, Spec: workv1alpha1.WorkSpec{
			Workload: workv1alpha1.WorkloadTemplate{Manifests: []workv1alpha1.Manifest{{RawExtension: runtime.RawExtension{Raw: raw}}}}}}
		at.Make(work)
		await.True(t, "the Work is applied", func() bool { return member.Get(ctx, client.ObjectKeyFromObject(cm), cm) == nil })
		line.Cut()
		at.Remove(c.Unstructured)
		c.says(reasonLeaving, "member c1 is being removed from the hub")
		gone(t, at, atHub)
		gone(t, at, work)
		c.says(reasonLeft, "member c1 has left the hub; what Pelago has in the cluster stays there")
		must(t, member.Get(ctx, client.ObjectKeyFromObject(cm), cm))
		c.patch(`{"metadata":{"finalizers":null}}`)
		gone(t, at, c.Unstructured)
	})

	events := &corev1.EventList{}
	must(t, at.List(ctx, events))
	for _, e := range events.Items {
		if e.Source.Component == operator.Deployment {
			t.Logf("%s %s/%s: %s", e.Reason, e.InvolvedObject.Namespace, e.InvolvedObject.Name, e.Message)
		}
		for _, secret := range []string{string(admin.KeyData), base64.StdEncoding.EncodeToString(admin.KeyData), admin.BearerToken} {
			if secret != "" && strings.Contains(e.Message, secret) {
				t.Errorf("Event %s has a credential", e.Reason)
			}
		}
	}
}

// TestClusterAPIPull joins clusters by agents of their own to a hub that is another API server.
// Cluster API serves only v1beta1 here.
func TestClusterAPIPull(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	h := newOperated(t, apiserver.HubControllers(), installed(t, manifests.PropagationCRDs, manifests.HubCRDs))
	propagates(t, h.Config)
	info := deployBroker(t, h.Config, spec.DefaultBroker())
	hub := apiserver.Connect(t, h.Config, clusterv1alpha1.AddToScheme, submarinerv1.AddToScheme)

	o := newOperated(t)
	at := clusterAPIServer(t, o.Config, "v1beta1")
	admin := apiserver.Start(t, apiserver.HubControllers())
	member := operated{Cluster: apiserver.Connect(t, admin), t: t}
	member.Make(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{PodCIDR: "10.7.0.0/24"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-proxy"}, Data: map[string]string{"config.conf": "clusterCIDR: 10.7.0.0/24\n"}})
	text, err := apiserver.Kubeconfig(admin)
	must(t, err)
	o.run(manifests.DefaultImage)

	c := newCAPICluster(t, at, "v1beta1", "default", "pool.c1", map[string]string{v1alpha1.LabelJoin: "pull", "env": "prod"})
	c.patch(`{"metadata":{"annotations":{"pelago.io/cluster-labels":"env","pelago.io/cluster-provider":"metal"}}}`)
	c.secret(text)
	c.says(reasonJoinFailed, "the hub has no kind Cluster of cluster.karmada.io", "Secret submariner-operator/pelago-hub")
	access := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: operatorNamespace, Name: v1alpha1.HubSecret},
		Data: map[string][]byte{v1alpha1.HubSecretKey: []byte("x")}}
	o.Make(access)
	c.patch(`{"metadata":{"annotations":{"n":"1"}}}`)
	c.says(reasonJoinFailed, "key kubeconfig of Secret submariner-operator/pelago-hub, the access to the hub: it is no kubeconfig")
	// with the rights that the operator would have there
	access.Data[v1alpha1.HubSecretKey], err = os.ReadFile(h.own)
	must(t, err)
	must(t, o.Update(ctx, access))
	c.patch(`{"metadata":{"annotations":{"n":"2"}}}`)
	c.says(reasonJoinPending, "control plane is not initialized")
	c.status(`{"conditions":[{"type":"ControlPlaneInitialized","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"}]}`)
	c.says(reasonJoinFailed, "Secret submariner-operator/broker-info", "make a Broker object")
	registration := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: operatorNamespace, Name: v1alpha1.BrokerInfoSecret}, Data: map[string][]byte{v1alpha1.BrokerInfoKey: info}}
	o.Make(registration)

	atHub := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "pool-c1"}}
	network := &submarinerv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: manifests.BrokerNamespace, Name: "pool-c1"}}
	agent := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: manifests.SystemNamespace, Name: manifests.ExecutionDeployment}}
	joined := func(mode, workloadsOnly string) {
		t.Helper()
		c.patch(`{"metadata":{"annotations":{"n":"` + mode + `"}}}`)
		c.says(reasonJoined, "member pool-c1 of the hub ("+mode+")")
		must(t, hub.Get(ctx, client.ObjectKeyFromObject(atHub), atHub))
		must(t, hub.Get(ctx, client.ObjectKeyFromObject(network), network))
		must(t, member.Get(ctx, client.ObjectKeyFromObject(agent), agent))
		if atHub.Spec.SyncMode != clusterv1alpha1.Pull || !atHub.Accepted() || atHub.Spec.Provider != "metal" || atHub.Labels["env"] != "prod" || network.Labels["env"] != "prod" ||
			network.Annotations["pelago.io/workloads-only"] != workloadsOnly {
			t.Errorf("the member at the hub: %+v\n%+v", atHub, network)
		}
	}
	left := func() {
		t.Helper()
		c.patch(`{"metadata":{"labels":{"pelago.io/join":null}}}`)
		gone(t, hub, atHub)
		gone(t, hub, network)
		gone(t, member, agent)
	}
	joined("pull", "true")
	left()
	c.patch(`{"metadata":{"labels":{"pelago.io/join":"network"},"annotations":{"pelago.io/flags":"--network-only=true"}}}`)
	c.says(reasonRefused, `annotation pelago.io/flags: "--network-only=true"`)
	c.patch(`{"metadata":{"annotations":{"pelago.io/flags":"--datapath=fast"}}}`)
	joined("network", "")
	if d := member.settings().Datapath; string(d) != "fast" {
		t.Errorf("the data path of the member is %q", d)
	}
	expired, err := broker.DecodeInfo(info)
	must(t, err)
	expired.ClientToken.Data[corev1.ServiceAccountTokenKey] = []byte("e30." + base64.RawURLEncoding.EncodeToString([]byte(`{"exp":1}`)) + ".e30")
	registration.Data[v1alpha1.BrokerInfoKey], err = expired.Encode()
	must(t, err)
	must(t, o.Update(ctx, registration))
	c.patch(`{"metadata":{"annotations":{"pelago.io/flags":"--datapath=hybrid"}}}`)
	await.Equal(t, "hybrid", func() string { return string(member.settings().Datapath) })
	member.kubelet()
	left()
	gone(t, member, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: manifests.SystemNamespace}})
	must(t, at.Get(ctx, client.ObjectKeyFromObject(c.Unstructured), c.Unstructured))
	if have := c.Unstructured.GetFinalizers(); len(have) != 1 {
		t.Errorf("finalizers of the object: %q", have)
	}
}
