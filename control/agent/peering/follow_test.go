package peering

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// A process that does not renew the token uses the one that another process writes, and never an
// unusable one.
func TestFollow(t *testing.T) {
	cfg := apiserver.Start(t)
	c := apiserver.Connect(t, cfg)
	data := func(token string) map[string][]byte {
		return map[string][]byte{config.KeyBrokerToken: []byte(token), config.KeyBrokerServer: []byte("https://hub"),
			config.KeyNamespace: []byte("broker"),
			config.KeyBrokerCA:  cfg.CAData}
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: config.BrokerSecretName}, Data: data("two")}
	other := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "other"}, Data: data("wrong")}
	c.Make(secret, other)
	source := NewTokenSource("one")
	apiserver.Manager{Scheme: clientgoscheme.Scheme, Setup: []func(ctrl.Manager) error{
		func(mgr ctrl.Manager) error { return FollowToken(mgr, "default", source) },
	}}.Run(t, cfg)
	await.Equal(t, "two", source.Token)
	secret.Data = data("")
	if err := c.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	secret.Data = data("three")
	if err := c.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	await.Equal(t, "three", source.Token)
	c.Remove(secret)
	c.Make(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: config.BrokerSecretName}, Data: data("four")})
	await.Equal(t, "four", source.Token)
}
