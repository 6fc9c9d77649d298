package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// TestRegister registers a cluster by a bootstrap token, and compares what that leaves with what
// join leaves.
func TestRegister(t *testing.T) {
	t.Parallel()
	c := newClusterset(t, propagated(t))
	ctx := t.Context()
	hub := apiserver.Connect(t, c.hub, clusterv1alpha1.AddToScheme, submarinerv1.AddToScheme)
	member := apiserver.Connect(t, c.member)
	member.Make(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{PodCIDR: "10.7.0.0/24"}})
	c.fails(t, "run `pelago deploy-broker` there first", "token", "create", "--context", "hub")
	c.propagates(t)
	c.deployBroker(t)

	create := func(args ...string) (n newToken) {
		t.Helper()
		must(t, json.Unmarshal([]byte(c.must(t, append([]string{"token", "create", "--context", "hub", "-o", "json"}, args...)...)), &n))
		return n
	}
	n := create("--description", "cluster g1", "--ttl", "1h")
	register := func(n newToken, more ...string) []string {
		args := []string{"register", strings.TrimPrefix(n.Server, "https://"), "--token", n.Token, "--cluster-name", "g1", "--context", "g1", "--wait=false", "--yes"}
		for _, h := range n.Hashes {
			args = append(args, "--discovery-token-ca-cert-hash", h)
		}
		return append(args, more...)
	}
	t.Run("tokens", func(t *testing.T) {
		want := "pelago register " + n.Server + " --token abcdef.0123456789abcdef --discovery-token-ca-cert-hash " + n.Hashes[0] + " --cluster-name NAME\n"
		if got := c.must(t, "token", "create", "abcdef.0123456789abcdef", "--ttl", "0", "--print-register-command", "--context", "hub"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		c.fails(t, "token abcdef exists", "token", "create", "abcdef.0123456789abcdef", "--context", "hub")
		c.fails(t, "does not have the form", "token", "create", "abc", "--context", "hub")
		c.fails(t, "use a positive time", "token", "create", "--ttl", "-1h", "--context", "hub")
		var list []broker.BootstrapToken
		must(t, json.Unmarshal([]byte(c.must(t, "token", "list", "--context", "hub", "-o", "json")), &list))
		wantList := []broker.BootstrapToken{
			{ID: n.Token[:6], Description: "cluster g1", Usages: []string{"authentication", "signing"}, Groups: []string{broker.BootstrapGroup}},
			{ID: "abcdef", Usages: []string{"authentication", "signing"}, Groups: []string{broker.BootstrapGroup}},
		}
		for i := range list {
			if left := inAnHour(t, list[i].Expires); list[i].ID == n.Token[:6] && !left {
				t.Errorf("token %s expires at %q, want in an hour", list[i].ID, list[i].Expires)
			}
			list[i].Expires = ""
		}
		if got := completed(t, "token", "delete", "--kubeconfig", c.kubeconfig, "--context", "hub", n.Token[:6], ""); got != "abcdef" {
			t.Errorf("token delete completes %q after %s", got, n.Token[:6])
		}
		if list[0].ID == "abcdef" {
			list[0], list[1] = list[1], list[0]
		}
		if diff := cmp.Diff(wantList, list); diff != "" {
			t.Errorf("token list: -want +got\n%s", diff)
		}
		if out := c.must(t, "token", "list", "--context", "hub"); !strings.Contains(out, "never") || strings.Contains(out, "0123456789abcdef") {
			t.Errorf("token list:\n%s", out)
		}
		c.must(t, "token", "delete", "abcdef", "--context", "hub")
		c.fails(t, `no token "abcdef"`, "token", "delete", "abcdef", "--context", "hub")
	})
	t.Run("rights of a token", func(t *testing.T) {
		as := func(token string) client.Client {
			return open(t, &rest.Config{Host: c.hub.Host, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: c.hub.CAData}})
		}
		own := as(n.Token)
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: manifests.BrokerNamespace, Name: manifests.RegistrarAccount}}
		long := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](3600)}}
		if err := own.SubResource("token").Create(ctx, account, long); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "10 minutes") {
			t.Errorf("a credential for an hour: %v, want a refusal", err)
		}
		for _, err := range []error{
			own.List(ctx, &corev1.SecretList{}, client.InNamespace(manifests.BrokerNamespace)),
			own.List(ctx, &submarinerv1.ClusterList{}, client.InNamespace(manifests.BrokerNamespace)),
			own.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: manifests.BrokerNamespace, Name: "cluster-x"}}),
			as("").Get(ctx, client.ObjectKey{Namespace: manifests.BrokerNamespace, Name: "submariner-ipsec-psk"}, &corev1.Secret{}),
		} {
			if !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
				t.Errorf("%v, want a refusal", err)
			}
		}
	})
	t.Run("refused", func(t *testing.T) {
		wrong := n
		wrong.Hashes = []string{"sha256:" + strings.Repeat("0", 64)}
		c.fails(t, "has the hash "+n.Hashes[0], register(wrong)...)
		wrong = n
		wrong.Token = n.Token[:7] + "0000000000000000"
		c.fails(t, "does not belong to this token", register(wrong)...)
		other := func(id string, change func(map[string]string)) newToken {
			data := map[string]string{"token-id": id, "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
				"usage-bootstrap-signing": "true", "auth-extra-groups": broker.BootstrapGroup}
			change(data)
			hub.Make(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-" + id}, StringData: data,
				Type: "bootstrap.kubernetes.io/token"})
			return newToken{Token: id + ".0123456789abcdef", Server: n.Server, Hashes: n.Hashes}
		}
		var signatures sync.WaitGroup // register waits for one, until it gives up
		for _, unsigned := range []newToken{
			other("expire", func(d map[string]string) { d["expiration"] = "2020-01-01T00:00:00Z" }),
			other("nosign", func(d map[string]string) { d["usage-bootstrap-signing"] = "false" }),
		} {
			signatures.Go(func() { c.fails(t, "has expired, was deleted or is not for signing", register(unsigned)...) })
		}
		defer signatures.Wait()
		c.fails(t, "is not for authentication", register(other("noauth", func(d map[string]string) { d["usage-bootstrap-authentication"] = "false" }))...)
		c.fails(t, "it is none of group", register(other("kubead", func(d map[string]string) { d["auth-extra-groups"] = "system:bootstrappers:kubeadm:default-node-token" }))...)

		// A server that answers in place of the hub: it knows what the hub publishes, but has
		// another key.
		cm := &corev1.ConfigMap{}
		must(t, hub.Get(ctx, client.ObjectKey{Namespace: "kube-public", Name: "cluster-info"}, cm))
		cm.APIVersion, cm.Kind = "v1", "ConfigMap"
		sent := ""
		fake := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			sent += r.Header.Get("Authorization")
			w.Header().Set("Content-Type", "application/json")
			if err := json.NewEncoder(w).Encode(cm); err != nil {
				t.Error(err)
			}
		}))
		defer fake.Close()
		wrong = n
		wrong.Server = fake.URL
		c.fails(t, "certificate", register(wrong)...)
		cm.Data["kubeconfig"] = strings.ReplaceAll(cm.Data["kubeconfig"], "server:", "server: ")
		c.fails(t, "does not belong to this token", register(wrong)...)
		if sent != "" {
			t.Errorf("the server that is not the hub got %q", sent)
		}
		signatures.Wait()
		if err := hub.Get(ctx, client.ObjectKey{Namespace: manifests.BrokerNamespace, Name: "cluster-g1"}, &corev1.ServiceAccount{}); !apierrors.IsNotFound(err) {
			t.Errorf("refused registrations left a ServiceAccount: %v", err)
		}
	})

	// What register leaves is what join leaves, but for what is random.
	left := func() (out []any) {
		m := &reader{t, open(t, c.member)}
		cluster, published := &clusterv1alpha1.Cluster{}, &submarinerv1.Cluster{}
		must(t, hub.Get(ctx, client.ObjectKey{Name: "g1"}, cluster))
		must(t, hub.Get(ctx, client.ObjectKey{Namespace: manifests.BrokerNamespace, Name: "g1"}, published))
		access, err := config.ParseBroker(m.secret(config.BrokerSecretName))
		must(t, err)
		access.Token = ""
		return append(out, m.config().Data(), string(m.secret(config.PSKSecretName)["psk"]), access, cluster.Spec, published.Spec, published.Annotations, published.Labels)
	}
	c.must(t, register(n)...)
	c.must(t, register(n)...) // again
	registered := left()
	c.must(t, "unregister", "--context", "hub", "--clusterid", "g1")
	c.must(t, "unregister", "--context", "g1", "--yes", "--timeout", "100ms", "--force")
	c.must(t, c.join("--clusterid", "g1")...)
	if diff := cmp.Diff(left(), registered); diff != "" {
		t.Errorf("-join +register\n%s", diff)
	}
	c.must(t, "unjoin", "--context", "hub", "--clusterid", "g1")
	c.must(t, "unjoin", "--context", "g1", "--yes", "--timeout", "100ms", "--force")
	c.must(t, register(n, "--workloads-only")...)
	c.fails(t, "--cable-driver", register(n, "--workloads-only", "--cable-driver", "vxlan")...)

	c.must(t, "token", "delete", n.Token, "--context", "hub")
	await.True(t, "a deleted token registers nothing", func() bool {
		_, err := c.pelago(register(n)...)
		return err != nil && (strings.Contains(err.Error(), "was deleted"))
	})
}

// inAnHour reports whether a time is about an hour from now.
func inAnHour(t *testing.T, text string) bool {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	return err == nil && time.Until(at) > 50*time.Minute && time.Until(at) <= time.Hour
}
