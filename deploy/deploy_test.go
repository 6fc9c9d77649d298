package deploy

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/pelago-net/pelago/test/apiserver"
)

func TestHubInstall(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.HubControllers())
	for range 2 {
		if err := HubBase(context.Background(), cfg, t.Logf); err != nil {
			t.Fatal(err)
		}
		kubernetes.NewForConfigOrDie(cfg).CoreV1().ConfigMaps(BrokerNamespace).Create(context.Background(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "submariner-globalnet-info"}, Data: map[string]string{"globalnetEnabled": "true", "globalnetCidrRange": "[\"120.0.0.0/8\"]"}}, metav1.CreateOptions{})
		if err := Hub(context.Background(), cfg, t.Logf); err != nil {
			t.Fatal(err)
		}
	}
	l, _ := kubernetes.NewForConfigOrDie(cfg).AdmissionregistrationV1().ValidatingAdmissionPolicies().List(context.Background(), metav1.ListOptions{})
	for _, p := range l.Items {
		t.Log(p.Name, p.Status.TypeChecking)
	}
}

func TestMemberInstall(t *testing.T) {
	cfg := apiserver.Start(t)
	for range 2 {
		if err := MemberBase(context.Background(), cfg, t.Logf); err != nil {
			t.Fatal(err)
		}
		if err := Member(context.Background(), cfg, MemberOptions{}, t.Logf); err != nil {
			t.Fatal(err)
		}
	}
}
