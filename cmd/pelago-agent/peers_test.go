package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// peers describes a member's Peers in one text.
func (m *member) peers(t *testing.T) string {
	t.Helper()
	var list v1alpha1.PeerList
	must(t, m.List(t.Context(), &list))
	var lines []string
	for _, p := range list.Items {
		reason := "none"
		if c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.PeerAccepted); c != nil {
			reason = string(c.Status) + "/" + c.Reason
		}
		gateways, err := json.Marshal(p.Spec.Gateways)
		must(t, err)
		lines = append(lines, fmt.Sprintf("%s %d %v %s %s", p.Name, p.Spec.ClusterIndex, p.Spec.Subnets, gateways, reason))
	}
	return strings.Join(lines, "\n")
}

func (s *clusterset) testPeers(t *testing.T) {
	for m, want := range map[*member]string{
		s.g1: `g2 2 [120.2.0.0/24] [{"name":"gw","address":"192.0.2.2","privateAddress":"192.0.2.2","port":4500,"wire":"vxlan","nodeIndex":1,"fabricAddress":"241.0.128.1","tunnels":1}] True/Accepted`,
		s.g2: `g1 1 [120.1.0.0/24] [{"name":"gw","address":"192.0.2.1","privateAddress":"192.0.2.1","port":4500,"wire":"vxlan","nodeIndex":1,"fabricAddress":"241.0.64.1","tunnels":1}] True/Accepted`,
	} {
		within(t, "peers of "+m.id, func() string {
			if got := m.peers(t); got != want {
				return "got " + got
			}
			return ""
		})
		within(t, "copies in "+m.id, func() string {
			var clusters submarinerv1.ClusterList
			var endpoints submarinerv1.EndpointList
			must(t, m.List(t.Context(), &clusters, client.InNamespace(manifests.SystemNamespace)))
			must(t, m.List(t.Context(), &endpoints, client.InNamespace(manifests.SystemNamespace)))
			if len(clusters.Items) != 2 || len(endpoints.Items) != 2 {
				return fmt.Sprintf("%d Clusters and %d Endpoints, want 2 and 2", len(clusters.Items), len(endpoints.Items))
			}
			return ""
		})
	}
}

func (s *clusterset) testLeaving(t *testing.T) {
	var node corev1.Node
	must(t, s.g2.Get(t.Context(), client.ObjectKey{Name: gatewayNode}, &node))
	delete(node.Labels, "submariner.io/gateway")
	must(t, s.g2.Update(t.Context(), &node))
	within(t, "no gateway", func() string {
		if got, want := s.g1.peers(t), `g2 2 [120.2.0.0/24] [] False/NoGateway`; got != want {
			return "peers: " + got
		}
		return ""
	})
	must(t, s.g2.Get(t.Context(), client.ObjectKey{Name: gatewayNode}, &node))
	node.Labels = map[string]string{"submariner.io/gateway": "true"}
	must(t, s.g2.Update(t.Context(), &node))
	within(t, "gateway back", func() string {
		if got := s.g1.peers(t); !strings.HasSuffix(got, "True/Accepted") {
			return "peers: " + got
		}
		return ""
	})

	// A third cluster joins and has no gateway yet.
	g3 := &submarinerv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: manifests.BrokerNamespace, Name: "g3", Labels: map[string]string{submarinerv1.LabelClusterID: "g3"},
			Annotations: map[string]string{"pelago.io/cluster-index": "3", "pelago.io/cluster-uid": "u3"},
		},
		Spec: submarinerv1.ClusterSpec{ClusterID: "g3", GlobalCIDR: []string{"120.3.0.0/24"}},
	}
	must(t, s.hub.Create(t.Context(), g3))
	within(t, "a cluster without gateway", func() string {
		if got := s.g1.peers(t); !strings.Contains(got, `g3 3 [120.3.0.0/24] [] False/AwaitingGateway`) {
			return "peers: " + got
		}
		return ""
	})
	must(t, s.hub.Delete(t.Context(), g3))
	within(t, "peer gone with its Cluster", func() string {
		if got := s.g1.peers(t); strings.Contains(got, "g3") {
			return "peers: " + got
		}
		return ""
	})
}

// testToken: a token without end, as older clusters have it, is replaced at once.
func (s *clusterset) testToken(t *testing.T) {
	const name = "legacy"
	ctx := t.Context()
	legacy := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: manifests.BrokerNamespace, Name: name, Annotations: map[string]string{corev1.ServiceAccountNameKey: "cluster-g1"}},
		Type:       corev1.SecretTypeServiceAccountToken,
	}
	must(t, s.hub.Create(ctx, legacy))
	within(t, "legacy token", func() string {
		if err := s.hub.Get(ctx, client.ObjectKeyFromObject(legacy), legacy); err != nil || len(legacy.Data["token"]) == 0 {
			return fmt.Sprint("no token: ", err)
		}
		return ""
	})
	var secret corev1.Secret
	key := client.ObjectKey{Namespace: manifests.SystemNamespace, Name: config.BrokerSecretName}
	must(t, s.g1.Get(ctx, key, &secret))
	secret.Data[config.KeyBrokerToken] = legacy.Data["token"]
	must(t, s.g1.Update(ctx, &secret))
	within(t, "renewed", func() string {
		if err := s.g1.Get(context.Background(), key, &secret); err != nil {
			return err.Error()
		}
		if string(secret.Data[config.KeyBrokerToken]) == string(legacy.Data["token"]) {
			return "still the legacy token"
		}
		return ""
	})
	must(t, s.hub.Delete(ctx, legacy))
	ended := rest.AnonymousClientConfig(s.config)
	ended.BearerToken = string(legacy.Data["token"])
	old := newClient(t, ended)
	within(t, "the legacy token has ended", func() string {
		if err := old.Create(ctx, &authenticationv1.SelfSubjectReview{}); !apierrors.IsUnauthorized(err) {
			return fmt.Sprint("answer to who uses it: ", err)
		}
		return ""
	})
	namespace(t, "token", s.g1)
	s.g1.service(t, "token", "web", web)
	s.g1.export(t, "token", "web")
	within(t, "the new token is used", s.g1.conditionIs("token", "web", "Ready", "True"))
}
