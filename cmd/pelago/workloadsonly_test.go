package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/test/apiserver"
)

// TestWorkloadsOnly joins a cluster, whose ranges may be anything, to a clusterset with globalnet,
// without the network.
func TestWorkloadsOnly(t *testing.T) {
	t.Parallel()
	c := newClusterset(t)
	ctx := t.Context()
	hub := apiserver.Connect(t, c.hub, clusterv1alpha1.AddToScheme, submarinerv1.AddToScheme)
	member := apiserver.Connect(t, c.member, apiextensionsv1.AddToScheme)
	c.deployBroker(t)
	join := func(more ...string) []string { return c.join(append([]string{"--clusterid", "w1"}, more...)...) }
	c.fails(t, "the hub propagates no workloads", join("--workloads-only")...)
	if err := hub.Get(ctx, client.ObjectKey{Namespace: manifests.BrokerNamespace, Name: "cluster-w1"}, &corev1.ServiceAccount{}); !apierrors.IsNotFound(err) {
		t.Errorf("a refused join left a ServiceAccount at the hub: %v", err)
	}
	c.propagates(t)
	c.fails(t, "--cable-driver", join("--workloads-only", "--cable-driver", "vxlan")...)
	c.fails(t, "--discovery-only is not supported", join("--discovery-only")...)

	if out := c.must(t, join("--workloads-only")...); !strings.Contains(out, "pelago clusters accept w1") {
		t.Errorf("join does not name the command that accepts the cluster:\n%s", out)
	}
	c.must(t, join()...) // again, with the kept flag
	m := &reader{t, open(t, c.member)}
	want := config.Config{WorkloadsOnly: true, ClusterID: "w1", ClusterIndex: 1, HubID: uid(t, hub), HubServer: c.hub.Host, BrokerNamespace: manifests.BrokerNamespace}
	if diff := cmp.Diff(want.Data(), m.config().Data()); diff != "" {
		t.Errorf("pelago-config: -want +got\n%s", diff)
	}
	var deployments appsv1.DeploymentList
	var daemons appsv1.DaemonSetList
	var crds apiextensionsv1.CustomResourceDefinitionList
	must(t, member.List(ctx, &deployments))
	must(t, member.List(ctx, &daemons))
	must(t, member.List(ctx, &crds))
	if len(deployments.Items) != 1 || deployments.Items[0].Name != manifests.ExecutionDeployment || len(daemons.Items)+len(crds.Items) > 0 {
		t.Errorf("the member has Deployments %v, DaemonSets %v, %d CRDs; want the agent for workloads alone", names(kube.Pointers(deployments.Items)),
			names(kube.Pointers(daemons.Items)), len(crds.Items))
	}
	cluster := &clusterv1alpha1.Cluster{}
	must(t, hub.Get(ctx, client.ObjectKey{Name: "w1"}, cluster))
	if cluster.Spec.SyncMode != clusterv1alpha1.Pull || cluster.Spec.ID != uid(t, member) {
		t.Errorf("Cluster: %+v", cluster.Spec)
	}
	published := &submarinerv1.Cluster{}
	must(t, hub.Get(ctx, client.ObjectKey{Namespace: manifests.BrokerNamespace, Name: "w1"}, published))
	if diff := cmp.Diff(submarinerv1.ClusterSpec{ClusterID: "w1"}, published.Spec); diff != "" || published.Annotations["pelago.io/workloads-only"] != "true" {
		t.Errorf("Cluster of the broker: annotations %v, -want +got\n%s", published.Annotations, diff)
	}

	t.Run("rights", func(t *testing.T) {
		access, err := config.ParseBroker(m.secret(config.BrokerSecretName))
		must(t, err)
		own := open(t, &rest.Config{Host: access.Server, BearerToken: access.Token, TLSClientConfig: rest.TLSClientConfig{CAData: access.CA}})
		if err := own.List(ctx, &submarinerv1.EndpointList{}, client.InNamespace(access.Namespace)); !apierrors.IsForbidden(err) {
			t.Errorf("a member without the network lists Endpoints: %v, want a refusal", err)
		}
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: access.Namespace, Name: "cluster-w1"}}
		registration := &corev1.Secret{}
		must(t, hub.Get(ctx, client.ObjectKey{Namespace: access.Namespace, Name: broker.RegistrationName("w1")}, registration))
		if err := own.SubResource("token").Create(ctx, account, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: registration.Name, UID: registration.UID},
		}}); err != nil {
			t.Errorf("the member renews its token: %v", err)
		}
		// Whoever registers cannot have ranges on the side: no check would compare them with
		// others'.
		forged := &submarinerv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: manifests.BrokerNamespace, Name: "w2",
			Labels:      map[string]string{submarinerv1.LabelClusterID: "w2"},
			Annotations: map[string]string{"pelago.io/workloads-only": "true", "pelago.io/unapproved": "true", "pelago.io/cluster-uid": "x", "pelago.io/cluster-index": "9"}},
			Spec: submarinerv1.ClusterSpec{ClusterID: "w2", ClusterCIDR: []string{"10.1.0.0/16"}}}
		if err := open(t, info(t, c.infoFile()).Config()).Create(ctx, forged); !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "has no ranges") {
			t.Errorf("a Cluster with --workloads-only and ranges: %v, want a refusal", err)
		}
	})
	t.Run("show", func(t *testing.T) {
		c.fails(t, "has no part in the network", "show", "connections", "--context", "g1")
		if out := c.must(t, "show", "all", "--context", "g1"); !strings.Contains(out, manifests.ExecutionDeployment) || strings.Contains(out, "pelago-node") {
			t.Errorf("show all:\n%s", out)
		}
	})
	t.Run("another scope", func(t *testing.T) {
		member.Make(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
		c.fails(t, `has joined as "w1" with --workloads-only: remove it first`, join("--workloads-only=false")...)
		c.fails(t, `has joined as "w1"`, c.join("--clusterid", "other", "--workloads-only")...)
		// Without what is left in the member, the book at the hub knows.
		must(t, member.Delete(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: manifests.SystemNamespace, Name: config.ConfigMapName}}))
		c.fails(t, "is registered with --workloads-only", join("--clustercidr", "10.7.0.0/16")...)
		c.must(t, join("--workloads-only")...)
	})
	t.Run("unjoin", func(t *testing.T) {
		c.must(t, "unjoin", "w1", "--context", "hub")
		for _, obj := range []client.Object{&submarinerv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: manifests.BrokerNamespace, Name: "w1"}},
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: manifests.BrokerNamespace, Name: "cluster-w1"}}} {
			if err := hub.Get(ctx, client.ObjectKeyFromObject(obj), obj); !apierrors.IsNotFound(err) {
				t.Errorf("%T after unjoin: %v, want none", obj, err)
			}
		}
		c.must(t, "unjoin", "--context", "g1", "--yes", "--timeout", "100ms", "--force")
		if err := member.Get(ctx, client.ObjectKey{Name: manifests.ExecutionDeployment}, &rbacv1.ClusterRole{}); !apierrors.IsNotFound(err) {
			t.Errorf("ClusterRole after unjoin: %v, want none", err)
		}
		c.must(t, join("--clustercidr", "10.7.0.0/16", "--network-only")...)
	})
}
