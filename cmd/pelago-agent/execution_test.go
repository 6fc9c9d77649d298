package main

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	remedyv1alpha1 "github.com/pelago-net/pelago/api/remedy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/hub/cluster"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// account is the config of a ServiceAccount.
func account(cfg *rest.Config, name string) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + manifests.SystemNamespace + ":" + name,
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + manifests.SystemNamespace, "system:authenticated"}}
	return cfg
}

// TestExecution runs the role execution in a pull member with the rights that it has there, and at
// the hub with those of the member: a Work comes to the member, its status to the hub, and so does
// the cluster's.
func TestExecution(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	hubConfig := apiserver.Start(t, apiserver.HubControllers(), installed(t, manifests.PropagationCRDs, manifests.HubCRDs))
	memberConfig := apiserver.Start(t, installed(t, manifests.MemberCRDs))
	must(t, manifests.Propagation(ctx, installer(t, hubConfig), manifests.PropagationOptions{}, t.Logf))
	must(t, manifests.HubBase(ctx, installer(t, hubConfig), t.Logf))
	admin := newClient(t, hubConfig)
	hubID, err := broker.ClusterUID(ctx, admin)
	must(t, err)
	_, err = broker.Setup(ctx, admin, broker.Book{}, broker.Clusterset{Mode: "submariner", HubID: hubID, Fabric: fabricCIDR}, nil)
	must(t, err)
	must(t, manifests.Hub(ctx, installer(t, hubConfig), t.Logf))
	must(t, manifests.MemberBase(ctx, installer(t, memberConfig), t.Logf))
	must(t, manifests.Execution(ctx, installer(t, memberConfig), manifests.MemberOptions{}, t.Logf))
	member := apiserver.Connect(t, memberConfig)
	uid, err := broker.ClusterUID(ctx, member)
	must(t, err)
	const id = "g1"
	own := []netip.Prefix{podCIDR, serviceCIDR}
	entry, err := broker.Claim(ctx, admin, manifests.BrokerNamespace, broker.Request{ClusterID: id, ClusterUID: uid, Pods: own,
		Fabric: fabricCIDR})
	must(t, err)
	proof, err := broker.Identity(ctx, admin, manifests.BrokerNamespace, id, "")
	must(t, err)
	token, err := broker.Token(ctx, admin, manifests.BrokerNamespace, id, proof)
	must(t, err)
	must(t, broker.Admit(ctx, admin, manifests.BrokerNamespace, broker.Member{Entry: entry, PodCIDR: own[:1], ServiceCIDR: own[1:],
		Fabric: fabricCIDR}))
	system := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: manifests.SystemNamespace, Name: name}
	}
	c := config.Config{ClusterID: id, ClusterIndex: uint16(entry.ClusterIndex), PodCIDRs: own[:1], ServiceCIDRs: own[1:],
		FabricCIDR: fabricCIDR,
		Mode:       config.ModeSubmariner, CableDriver: config.CableVXLAN, CablePort: 4500,
		HubID: hubID, HubServer: hubConfig.Host, BrokerNamespace: manifests.BrokerNamespace}
	member.Make(&corev1.ConfigMap{ObjectMeta: system(config.ConfigMapName), Data: c.Data()},
		&corev1.Secret{ObjectMeta: system(config.BrokerSecretName), Data: map[string][]byte{config.KeyBrokerCA: hubConfig.CAData,
			config.KeyNamespace: []byte(manifests.BrokerNamespace), config.KeyBrokerToken: []byte(token),
			config.KeyBrokerServer: []byte(hubConfig.Host)}})

	schemes := []func(*runtime.Scheme) error{clusterv1alpha1.AddToScheme, workv1alpha1.AddToScheme, workv1alpha2.AddToScheme}
	// The member makes its Cluster, and pelago-hub, in place of which its controller of memberships
	// runs here, gives it its rights.
	as := &rest.Config{Host: hubConfig.Host, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: hubConfig.CAData}}
	apiserver.Connect(t, as, schemes...).Make(&clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: id},
		Spec: clusterv1alpha1.ClusterSpec{SyncMode: clusterv1alpha1.Pull, ID: uid,
			Taints: []clusterv1alpha1.Taint{{Key: clusterv1alpha1.TaintUnapproved, Effect: corev1.TaintEffectNoSchedule}}}})
	hubScheme := runtime.NewScheme()
	for _, add := range append(schemes, clientgoscheme.AddToScheme, policyv1alpha1.AddToScheme, remedyv1alpha1.AddToScheme) {
		must(t, add(hubScheme))
	}
	apiserver.Manager{Scheme: hubScheme, Setup: []func(ctrl.Manager) error{
		func(mgr ctrl.Manager) error {
			return cluster.SetupMembership(mgr, cluster.MembershipOptions{HubUID: hubID})
		},
	}}.Run(t, account(hubConfig, manifests.HubName))
	hub := apiserver.Connect(t, hubConfig, schemes...)
	await.True(t, "the member has an execution namespace", func() bool {
		return hub.Get(ctx, client.ObjectKey{Name: "karmada-es-g1"}, &corev1.Namespace{}) == nil
	})

	a, err := open(ctx, account(memberConfig, manifests.ExecutionDeployment), options{metricsAddress: "0", healthAddress: "0",
		leaderElect: true,
		roles:       roles{execution: true}, several: true, hubPause: [2]time.Duration{100 * time.Millisecond, time.Second}})
	must(t, err)
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- a.run(running) }()

	manifest := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"default","name":"web",` +
		`"labels":{"karmada.io/managed":"true"},` +
		`"annotations":{"pelago.io/hub-id":"` + hubID +
		`","work.karmada.io/name":"web","work.karmada.io/namespace":"karmada-es-g1"}},"data":{"a":"b"}}`
	work := &workv1alpha1.Work{ObjectMeta: metav1.ObjectMeta{Namespace: "karmada-es-g1", Name: "web",
		Finalizers: []string{workv1alpha1.FinalizerExecution}},
		Spec: workv1alpha1.WorkSpec{Workload: workv1alpha1.WorkloadTemplate{Manifests: []workv1alpha1.Manifest{
			{RawExtension: runtime.RawExtension{Raw: []byte(manifest)}}}}}}
	hub.Make(work)
	made := &corev1.ConfigMap{}
	await.Equal(t, "b", func() string {
		if member.Get(ctx, client.ObjectKey{Namespace: "default", Name: "web"}, made) != nil {
			return "no ConfigMap"
		}
		return made.Data["a"]
	})
	await.True(t, "the Work is applied", func() bool {
		must(t, hub.Get(ctx, client.ObjectKeyFromObject(work), work))
		return apimeta.IsStatusConditionTrue(work.Status.Conditions, "Applied")
	})
	await.True(t, "the cluster's version and Lease are reported", func() bool {
		cluster, lease := &clusterv1alpha1.Cluster{}, &coordinationv1.Lease{}
		must(t, hub.Get(ctx, client.ObjectKey{Name: id}, cluster))
		must(t, hub.Get(ctx, client.ObjectKey{Namespace: clusterv1alpha1.SecretNamespace, Name: id}, lease))
		return cluster.Status.KubernetesVersion != "" && lease.Spec.RenewTime != nil
	})
	hub.Remove(work)
	await.True(t, "object and Work are gone", func() bool {
		return apierrors.IsNotFound(member.Get(ctx, client.ObjectKeyFromObject(made), made)) && apierrors.IsNotFound(hub.Get(ctx,
			client.ObjectKeyFromObject(work), work))
	})
	stop()
	must(t, <-ended)

	// Of a member that takes workloads only no other process renews the token. One that does not
	// expire is due at once.
	eternal := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: manifests.BrokerNamespace, Name: "eternal",
		Annotations: map[string]string{corev1.ServiceAccountNameKey: broker.AccountName(id)}}, Type: corev1.SecretTypeServiceAccountToken}
	hub.Make(eternal)
	first, _, err := manifests.AccountToken(ctx, admin, client.ObjectKeyFromObject(eternal))
	must(t, err)
	secret, cm := &corev1.Secret{ObjectMeta: system(config.BrokerSecretName)}, &corev1.ConfigMap{ObjectMeta: system(config.ConfigMapName)}
	must(t, manifests.Put(ctx, member, secret, func() { secret.Data[config.KeyBrokerToken] = first }))
	c = config.Config{WorkloadsOnly: true, ClusterID: id, ClusterIndex: c.ClusterIndex, HubID: hubID, HubServer: c.HubServer, BrokerNamespace: c.BrokerNamespace}
	must(t, manifests.Put(ctx, member, cm, func() { cm.Data = c.Data() }))
	o := options{metricsAddress: "0", healthAddress: "0", leaderElect: true, roles: roles{execution: true}, several: true,
		hubPause: [2]time.Duration{100 * time.Millisecond, time.Second}}
	a, err = open(ctx, account(memberConfig, manifests.ExecutionDeployment), o)
	must(t, err)
	running, stop = context.WithCancel(ctx)
	go func() { ended <- a.run(running) }()
	await.True(t, "the agent for workloads renews the token", func() bool {
		must(t, member.Get(ctx, client.ObjectKeyFromObject(secret), secret))
		return string(secret.Data[config.KeyBrokerToken]) != string(first)
	})
	stop()
	must(t, <-ended)
	o.roles.network = true
	if _, err := open(ctx, memberConfig, o); err == nil || !strings.Contains(err.Error(), "run with --roles=execution") {
		t.Errorf("role network of a member without the network: %v, want a refusal", err)
	}
}
