package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/api/submariner/v1alpha1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/operator"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/manifests"
	members "github.com/pelago-net/pelago/deploy/member"
	"github.com/pelago-net/pelago/deploy/spec"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
	"github.com/pelago-net/pelago/test/need"
)

const operatorNamespace = "submariner-operator"

// builtDir is what hubProgram has made; TestMain removes it.
var builtDir string

// hubProgram is pelago-hub, built once.
var hubProgram = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "operator-")
	if err != nil {
		return "", err
	}
	builtDir = dir
	program := filepath.Join(dir, "pelago-hub")
	if out, err := exec.Command("go", "build", "-C", "../..", "-o", program, "./cmd/pelago-hub").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build pelago-hub: %w\n%s", err, out)
	}
	return program, nil
})

// propagates makes an API server a hub that propagates workloads, as `pelago init` does.
func propagates(t *testing.T, hub *rest.Config) {
	t.Helper()
	must(t, manifests.Propagation(t.Context(), installer(t, hub), manifests.PropagationOptions{}, t.Logf))
}

// deployBroker makes an API server the hub of a clusterset, as `pelago deploy-broker` does, and
// returns the content of broker-info.subm.
func deployBroker(t *testing.T, hub *rest.Config, want spec.Broker) []byte {
	t.Helper()
	c, err := manifests.Open(rest.CopyConfig(hub))
	must(t, err)
	plan, err := broker.NewPlan(t.Context(), c.Client, want, func(string) bool { return true })
	must(t, err)
	info, err := plan.Apply(t.Context(), c, t.Logf)
	must(t, err)
	content, err := info.Encode()
	must(t, err)
	return content
}

// operated is a cluster with an operator that runs with the rights of its ServiceAccount.
type operated struct {
	*apiserver.Cluster
	t    *testing.T
	own  string // kubeconfig of the operator
	cfg  *rest.Config
	stop func()
}

func kubeconfigFile(t *testing.T, cfg *rest.Config) string {
	t.Helper()
	text, err := apiserver.Kubeconfig(cfg)
	must(t, err)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, os.WriteFile(file, text, 0o600))
	return file
}

func newOperated(t *testing.T, opts ...apiserver.Option) *operated {
	t.Helper()
	need.Kubernetes(t)
	ctx := t.Context()
	admin := apiserver.Start(t, opts...)
	o := &operated{Cluster: apiserver.Connect(t, admin, v1alpha1.AddToScheme, mcs.Install), t: t, stop: func() {}}
	crds, err := manifests.OperatorCRDs()
	must(t, err)
	objs, err := manifests.OperatorObjects(manifests.MemberOptions{})
	must(t, err)
	for _, u := range append(crds, objs...) {
		must(t, o.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner("kubectl")))
	}
	await.True(t, "the kinds are served", func() bool { return o.List(ctx, &v1alpha1.SubmarinerList{}) == nil })
	request := &authenticationv1.TokenRequest{}
	must(t, o.SubResource("token").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: operatorNamespace, Name: operator.Deployment}}, request))
	o.cfg = &rest.Config{Host: admin.Host, BearerToken: request.Status.Token, TLSClientConfig: rest.TLSClientConfig{CAData: admin.CAData}}
	o.own = kubeconfigFile(t, o.cfg)
	return o
}

// run starts an operator of an image, in place of the former one.
func (o *operated) run(image string) {
	o.t.Helper()
	o.stop()
	a, err := openOperator(o.t.Context(), o.cfg, options{roles: roles{operator: true}, namespace: operatorNamespace, image: image, kubeconfig: o.own,
		metricsAddress: "0", healthAddress: "0", several: true, leaderElect: true, giveUp: 2 * time.Second, retry: time.Second})
	must(o.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			o.t.Errorf("the operator: %v", err)
		}
	})
	o.stop = stop
	o.t.Cleanup(stop)
}

// dryRun returns the objects that `pelago join --dry-run` prints to an administrator.
func (o *operated) dryRun(content []byte, flags ...string) []*unstructured.Unstructured {
	o.t.Helper()
	info, err := broker.DecodeInfo(content)
	must(o.t, err)
	var want spec.Member
	f := pflag.NewFlagSet("join", pflag.ContinueOnError)
	bound := want.AddFlags(f, "clusterid")
	must(o.t, f.Parse(flags))
	must(o.t, spec.Join(bound.Read()))
	c, err := manifests.Open(rest.CopyConfig(o.Config))
	must(o.t, err)
	have, err := members.Read(o.t.Context(), c.Client)
	must(o.t, err)
	plan, err := members.NewPlan(want, bound.Given, have, false)
	must(o.t, err)
	record := &manifests.Recorder{Client: c.Client}
	c.Client = record
	must(o.t, plan.Apply(o.t.Context(), c, members.Options{Info: info, DryRun: true, Progress: o.t.Logf}))
	var out bytes.Buffer
	must(o.t, record.Print(&out, "yaml"))
	objs, err := manifests.Decode(&out)
	must(o.t, err)
	return objs
}

// kubelet reports every workload of the system namespace as running, and nodes that are to be
// cleaned as clean, until the test ends.
func (o *operated) kubelet() {
	ctx := o.t.Context()
	in := client.InNamespace(manifests.SystemNamespace)
	go func() {
		for ; ctx.Err() == nil; time.Sleep(200 * time.Millisecond) {
			deployments, daemons := &appsv1.DeploymentList{}, &appsv1.DaemonSetList{}
			if o.List(ctx, deployments, in) != nil || o.List(ctx, daemons, in) != nil {
				continue
			}
			for _, d := range deployments.Items {
				n := *d.Spec.Replicas
				running := appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: n, UpdatedReplicas: n, ReadyReplicas: n, AvailableReplicas: n}
				if !equality.Semantic.DeepEqual(running, d.Status) {
					d.Status = running
					_ = o.Status().Update(ctx, &d) // again with the next round
				}
			}
			for _, d := range daemons.Items {
				running := appsv1.DaemonSetStatus{ObservedGeneration: d.Generation, DesiredNumberScheduled: 1, CurrentNumberScheduled: 1,
					UpdatedNumberScheduled: 1, NumberReady: 1, NumberAvailable: 1}
				if !equality.Semantic.DeepEqual(running, d.Status) {
					d.Status = running
					_ = o.Status().Update(ctx, &d) // as above
				}
				for _, c := range d.Spec.Template.Spec.InitContainers {
					o.runInit(&d, c.Name)
				}
			}
		}
	}()
}

// runInit reports a pod of a DaemonSet on each node, in which an init container has succeeded.
func (o *operated) runInit(d *appsv1.DaemonSet, container string) {
	nodes := &corev1.NodeList{}
	_ = o.List(o.t.Context(), nodes) // none: again with the next round
	for _, n := range nodes.Items {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: d.Name + "-" + n.Name, Labels: d.Spec.Template.Labels},
			Spec: corev1.PodSpec{NodeName: n.Name, TerminationGracePeriodSeconds: new(int64), Containers: []corev1.Container{{Name: "sleep", Image: "sleep"}}}}
		if o.Create(o.t.Context(), p) != nil {
			continue // it exists
		}
		p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: container, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
		_ = o.Status().Update(o.t.Context(), p) // the test waits in vain, or has ended
	}
}

// condition is what a condition of the Submariner says about its present generation.
func (o *operated) condition(s *v1alpha1.Submariner, kind string) string {
	if err := o.Get(o.t.Context(), client.ObjectKeyFromObject(s), s); err != nil {
		return err.Error()
	}
	c := meta.FindStatusCondition(s.Status.Conditions, kind)
	if c == nil || c.ObservedGeneration != s.Generation {
		return "not observed yet"
	}
	return fmt.Sprintf("%s/%s: %s", c.Status, c.Reason, c.Message)
}

// says waits until the condition contains all words.
func (o *operated) says(s *v1alpha1.Submariner, kind string, words ...string) {
	o.t.Helper()
	within(o.t, kind, func() string {
		have := o.condition(s, kind)
		for _, word := range words {
			if !strings.Contains(have, word) {
				return fmt.Sprintf("%q, want %q in it", have, word)
			}
		}
		return ""
	})
}

// change patches the spec, as `kubectl edit` does.
func (o *operated) change(s *v1alpha1.Submariner, spec string) {
	o.t.Helper()
	must(o.t, o.Patch(o.t.Context(), s, client.RawPatch("application/merge-patch+json", []byte(`{"spec":`+spec+`}`))))
}

// same checks that an object is there, and that applying it again would change nothing.
func (o *operated) same(want *unstructured.Unstructured) {
	o.t.Helper()
	have, applied := want.DeepCopy(), want.DeepCopy()
	must(o.t, o.Get(o.t.Context(), client.ObjectKeyFromObject(want), have))
	must(o.t, o.Apply(o.t.Context(), client.ApplyConfigurationFromUnstructured(applied), client.FieldOwner("test"), client.ForceOwnership, client.DryRunAll))
	for _, u := range []*unstructured.Unstructured{have, applied} {
		u.SetManagedFields(nil)
		u.SetResourceVersion("")
		u.SetGeneration(0)
		delete(u.Object, "status")
	}
	if diff := cmp.Diff(have.Object, applied.Object); diff != "" {
		o.t.Errorf("%s %s: -operator +join\n%s", want.GetKind(), want.GetName(), diff)
	}
}

func (o *operated) daemon() *appsv1.DaemonSet {
	o.t.Helper()
	d := &appsv1.DaemonSet{}
	must(o.t, o.Get(o.t.Context(), client.ObjectKey{Namespace: manifests.SystemNamespace, Name: manifests.NodeDaemonSet}, d))
	return d
}

// settings are the configuration of the member.
func (o *operated) settings() config.Config {
	o.t.Helper()
	cm := &corev1.ConfigMap{}
	must(o.t, o.Get(o.t.Context(), configKey, cm))
	c, err := config.Parse(cm.Data)
	must(o.t, err)
	return c
}

// TestOperatorOfMember takes one cluster through the life of a Submariner, with the rights of the
// operator's ServiceAccount.
func TestOperatorOfMember(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	hub := apiserver.Start(t, apiserver.HubControllers(), installed(t, manifests.PropagationCRDs, manifests.HubCRDs))
	line := apiserver.NewLine(t, hub)
	propagates(t, hub)
	set := spec.DefaultBroker()
	set.GlobalnetEnabled, set.BrokerURL = true, line.Config().Host
	content := deployBroker(t, hub, set)
	o := newOperated(t, apiserver.Controllers("namespace-controller", "garbage-collector-controller"))
	o.Make(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{PodCIDR: "10.7.0.0/24"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-proxy"}, Data: map[string]string{"config.conf": "clusterCIDR: 10.7.0.0/24\n"}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: operatorNamespace, Name: "hub"}, Data: map[string][]byte{v1alpha1.BrokerInfoKey: content}})
	o.run(manifests.DefaultImage)

	s := &v1alpha1.Submariner{ObjectMeta: metav1.ObjectMeta{Namespace: operatorNamespace, Name: "submariner"}, Spec: v1alpha1.SubmarinerSpec{ClusterID: "c1"}}
	o.Make(s)
	untouched := func() {
		t.Helper()
		if err := o.Get(ctx, client.ObjectKey{Name: manifests.SystemNamespace}, &corev1.Namespace{}); !apierrors.IsNotFound(err) {
			t.Errorf("namespace %s of a refused Submariner: %v", manifests.SystemNamespace, err)
		}
	}
	for spec, words := range map[string][]string{
		`{}`:                             {"True/InvalidBrokerK8sApiServer: spec.brokerK8sApiServer", "is missing"},
		`{"brokerK8sSecret":"none"}`:     {"True/InstallFailed", "submariner-operator/none", "not found"},
		`{"natEnable":true}`:             {"True/UnknownField", "spec.natEnable"},
		`{"clusterCIDR":"10.7.0.0/33"}`:  {"True/InvalidClusterCIDR: spec.clusterCIDR", "10.7.0.0/33"},
		`{"serviceCIDR":"10.77.0.1/16"}`: {"True/InvalidServiceCIDR", "10.77.0.0/16"},
		`{"globalCIDR":"10.0.0.0/24"}`:   {"True/InvalidGlobalCIDR: spec.globalCIDR", "10.0.0.0/24"},
		`{"cableDriver":"vxlan","loadBalancerEnabled":true}`: {"True/InvalidLoadBalancerEnabled", "wireguard"},
		`{"brokerK8sInsecure":true}`:                         {"True/InvalidBrokerK8sInsecure", "brokerK8sCA"},
		`{"imageOverrides":{"submariner-gateway":"x"}}`:      {"True/InvalidImageOverrides", "submariner-gateway"},
	} {
		if !strings.Contains(spec, "Secret") && spec != "{}" {
			spec = `{"brokerK8sSecret":"hub",` + spec[1:]
		}
		o.change(s, spec)
		o.says(s, v1alpha1.ConditionDegraded, words...)
		o.says(s, v1alpha1.ConditionReady, "False/")
		o.change(s, `{"brokerK8sSecret":null,"natEnable":null,"clusterCIDR":null,"serviceCIDR":null,"globalCIDR":null,"cableDriver":null,"loadBalancerEnabled":null,`+
			`"brokerK8sInsecure":null,"imageOverrides":null}`)
	}
	untouched()

	o.change(s, `{"brokerK8sSecret":"hub","nodeSelector":{"pool":"infra"},"tolerations":[{"key":"infra","value":"yes","effect":"NoSchedule"}]}`)
	o.says(s, v1alpha1.ConditionProgressing, "True/RollingOut", "DaemonSet pelago-node")
	o.kubelet()
	o.says(s, v1alpha1.ConditionReady, "True/AsSpecified")
	o.says(s, v1alpha1.ConditionAvailable, "True/")
	await.Never(t, 2*time.Second, "the status is written again", func() bool {
		version := s.ResourceVersion
		must(t, o.Get(ctx, client.ObjectKeyFromObject(s), s))
		return s.ResourceVersion != version
	})
	if st := s.Status; st.ClusterID != "c1" || st.Version != "dev" || st.GlobalCIDR == "" || st.ClusterCIDR != "10.7.0.0/24" || len(st.Components) != 4 {
		t.Errorf("status %+v", st)
	}
	t.Run("the objects are those of join", func(t *testing.T) {
		objs := o.dryRun(content, "--clusterid", "c1", "--node-selector", "pool=infra", "--toleration", "infra=yes:NoSchedule")
		if len(objs) < 50 {
			t.Errorf("only %d objects", len(objs))
		}
		for _, u := range objs {
			o.same(u)
		}
	})
	t.Run("a setting changes without the hub", func(t *testing.T) {
		line.Cut()
		o.change(s, `{"ceIPSecNATTPort":4600,"nodeSelector":null}`)
		within(t, "port", func() string {
			if c := o.settings(); c.CablePort != 4600 {
				return fmt.Sprint(c.CablePort)
			}
			return ""
		})
		o.says(s, v1alpha1.ConditionReady, "True/")
		o.change(s, `{"clusterCIDR":"10.8.0.0/16"}`) // the hub has to grant it
		o.says(s, v1alpha1.ConditionDegraded, "True/", "hub")
		if c := o.settings(); c.PodCIDRs[0].String() != "10.7.0.0/24" {
			t.Errorf("pod ranges %v", c.PodCIDRs)
		}
		line.Heal()
		o.says(s, v1alpha1.ConditionDegraded, "True/", "spec.clusterCIDR", "give ranges that contain all of the former")
		o.change(s, `{"clusterCIDR":"10.7.0.0/16"}`) // ranges may grow
		within(t, "grown pod ranges", func() string {
			if c := o.settings(); c.PodCIDRs[0].String() != "10.7.0.0/16" {
				return fmt.Sprint(c.PodCIDRs)
			}
			return ""
		})
		o.says(s, v1alpha1.ConditionReady, "True/")
	})
	t.Run("a version is the operator's first", func(t *testing.T) {
		o.change(s, `{"version":"v2"}`)
		o.says(s, v1alpha1.ConditionProgressing, "True/UpdatingOperator", "localhost/pelago:v2")
		d := &appsv1.Deployment{}
		must(t, o.Get(ctx, client.ObjectKey{Namespace: operatorNamespace, Name: operator.Deployment}, d))
		if image := d.Spec.Template.Spec.Containers[0].Image; image != "localhost/pelago:v2" {
			t.Errorf("the operator's image is %s", image)
		}
		if image := o.daemon().Spec.Template.Spec.Containers[0].Image; image != manifests.DefaultImage {
			t.Errorf("the nodes have %s before the operator", image)
		}
		o.run("localhost/pelago:v2")
		o.says(s, v1alpha1.ConditionReady, "True/")
		node := o.daemon()
		if image := node.Spec.Template.Spec.Containers[0].Image; image != "localhost/pelago:v2" || s.Status.Version != "v2" {
			t.Errorf("the nodes have %s, status.version is %q", image, s.Status.Version)
		}
		if most := node.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable; most.IntValue() != 1 {
			t.Errorf("%s nodes are updated at once", most)
		}
	})
	t.Run("a ServiceDiscovery is part of it", func(t *testing.T) {
		d := &v1alpha1.ServiceDiscovery{ObjectMeta: metav1.ObjectMeta{Namespace: operatorNamespace, Name: "service-discovery"},
			Spec: v1alpha1.ServiceDiscoverySpec{ClusterID: "c2"}}
		o.Make(d)
		ready := func() string {
			must(t, o.Get(ctx, client.ObjectKeyFromObject(d), d))
			c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionReady)
			if c == nil || c.ObservedGeneration != d.Generation {
				return ""
			}
			return string(c.Status) + "/" + c.Reason
		}
		await.Equal(t, "False/InvalidClusterID", ready)
		must(t, o.Patch(ctx, d, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"clusterID":"c1"}}`))))
		await.Equal(t, "True/AsSpecified", ready)
	})
	t.Run("a second Submariner is refused", func(t *testing.T) {
		other := &v1alpha1.Submariner{ObjectMeta: metav1.ObjectMeta{Namespace: operatorNamespace, Name: "second"}, Spec: v1alpha1.SubmarinerSpec{ClusterID: "c1"}}
		o.Make(other)
		o.says(other, v1alpha1.ConditionDegraded, "True/InstallFailed", "Submariner submariner is older")
		o.Remove(other)
		must(t, o.Get(ctx, configKey, &corev1.ConfigMap{}))
	})
	t.Run("deleting removes Pelago and nothing of users", func(t *testing.T) {
		export := &mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
		o.Make(export, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "coredns"}, Data: map[string]string{"Corefile": ".:53 {\n}\n"}})
		o.Remove(s)
		await.True(t, "the Submariner is gone", func() bool { return apierrors.IsNotFound(o.Get(ctx, client.ObjectKeyFromObject(s), s)) })
		untouched()
		must(t, o.Get(ctx, client.ObjectKeyFromObject(export), export))
	})
}
