package access_test

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/prometheus/client_golang/prometheus/testutil"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/tunnel"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// TestPull: the hub has no way to the member, whose address leads nowhere; its agent opens a tunnel
// to each replica.
func TestPull(t *testing.T) {
	s := newSet(t)
	killFirst := s.replica(t, true)
	s.join(t, &clusterv1alpha1.Cluster{ObjectMeta: metaOf("", "m2"), Spec: clusterv1alpha1.ClusterSpec{ID: s.id, SyncMode: clusterv1alpha1.Pull,
		APIEndpoint: "https://192.0.2.1:6443"}}, nil)
	account := &corev1.ServiceAccount{ObjectMeta: metaOf(brokerNamespace, "cluster-m2")}
	s.Make(account)
	token := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](3600)}}
	if err := s.SubResource("token").Create(t.Context(), account, token); err != nil {
		t.Fatal(err)
	}
	var last error
	await.True(t, "a member without a tunnel is unavailable", func() bool {
		last = list(t, s.as(t, "m2", "alice"), "shop")
		return codeOf(last) == 503 && strings.Contains(last.Error(), "cluster m2 has no tunnel")
	})

	line := apiserver.NewLine(t, s.Config) // the agent's way to the hub
	start := func() (agent *tunnel.Agent, stop func()) {
		x := &tunnel.Agent{Cluster: "m2", Server: line.Config().Host, CA: s.Config.CAData, Log: slog.New(slog.DiscardHandler),
			Token:  func() string { return token.Status.Token },
			Member: &rest.Config{Host: s.member.Config.Host, BearerToken: string(s.token), TLSClientConfig: rest.TLSClientConfig{CAData: s.ca}}}
		x.Metrics()
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- x.Start(ctx) }()
		stop = func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		return x, stop
	}
	agent, stop := start()
	t.Cleanup(func() { stop() })
	tunnels := func() float64 { return testutil.ToFloat64(agent.Metrics()) }
	s.served(t, "m2")
	if err := list(t, s.as(t, "m2", "alice"), "default"); codeOf(err) != 403 || !strings.Contains(err.Error(), `User "alice" cannot list`) {
		t.Errorf("in another namespace: %v", err)
	}
	await.True(t, "the member's audit log names alice", func() bool { return s.audited(t, "alice") })
	s.exec(t, "m2")

	replica := func() { s.replica(t, false) } // until the whole test ends
	t.Run("replicas", func(t *testing.T) {
		replica()
		await.Equal(t, 2, tunnels)
		for range 6 { // the replicas answer in turn
			if err := list(t, s.as(t, "m2", "alice"), "shop"); err != nil {
				t.Error(err)
			}
		}
		killFirst()
		await.Equal(t, 1, tunnels)
		s.served(t, "m2")
		replica()
		await.Equal(t, 2, tunnels)
	})

	t.Run("line cut", func(t *testing.T) {
		line.Cut()
		await.Equal(t, 0, tunnels)
		line.Heal()
		await.Equal(t, 2, tunnels)
		s.served(t, "m2")
	})

	t.Run("agent replaced", func(t *testing.T) {
		stop()
		agent, stop = start()
		await.Equal(t, 2, tunnels)
		s.served(t, "m2")
	})

	t.Run("not accepted any more", func(t *testing.T) {
		c := &clusterv1alpha1.Cluster{}
		taints := func(all ...clusterv1alpha1.Taint) {
			await.Equal(t, nil, func() error {
				if err := s.Get(t.Context(), key("", "m2"), c); err != nil {
					return err
				}
				c.Spec.Taints = all
				return s.Update(t.Context(), c)
			})
		}
		taints(clusterv1alpha1.Taint{Key: clusterv1alpha1.TaintUnapproved, Effect: corev1.TaintEffectNoSchedule})
		await.Equal(t, 0, tunnels)
		taints()
		await.Equal(t, 2, tunnels)
		s.served(t, "m2")
	})

	t.Run("identity", func(t *testing.T) {
		// Rights at the hub do not suffice: what attaches as a cluster gets the requests of its
		// users.
		s.Make(&rbacv1.ClusterRoleBinding{ObjectMeta: metaOf("", "mallory"), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole",
			Name: "cluster-admin"}, Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "mallory"}}})
		as := rest.CopyConfig(s.Config)
		as.Impersonate.UserName = "mallory"
		await.Equal(t, http.StatusOK, func() int { return raw(t, as, s.Config.Host+"/api/v1/secrets") })
		if code := raw(t, as, s.Config.Host+pelagov1alpha1.ProxyPath("m2", "attach")); code != http.StatusForbidden {
			t.Errorf("an administrator attaches as m2: status %d, want 403", code)
		}
	})
}
