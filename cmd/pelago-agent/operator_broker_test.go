package main

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/api/submariner/v1alpha1"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// TestOperatorOfHub makes a hub with a Broker object, with the rights of the operator's
// ServiceAccount.
func TestOperatorOfHub(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	o := newOperated(t, apiserver.HubControllers(), installed(t, manifests.PropagationCRDs))
	propagates(t, o.Config) // more policies have to be in effect
	b := &v1alpha1.Broker{ObjectMeta: metav1.ObjectMeta{Namespace: operatorNamespace, Name: "submariner-broker",
		Annotations: map[string]string{v1alpha1.AnnotationFlags: "--kubeconfig=/etc/shadow"}},
		Spec: v1alpha1.BrokerSpec{GlobalnetEnabled: true, GlobalnetCIDRRange: "120.0.0.0/33", DefaultCustomDomains: []string{"example.org"}}}
	o.Make(b)
	o.run(manifests.DefaultImage)
	says := func(words ...string) {
		t.Helper()
		within(t, "broker", func() string {
			must(t, o.Get(ctx, client.ObjectKeyFromObject(b), b))
			text := ""
			for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionDegraded} {
				if c := meta.FindStatusCondition(b.Status.Conditions, kind); c != nil && c.ObservedGeneration == b.Generation {
					text += kind + "=" + string(c.Status) + "/" + c.Reason + ": " + c.Message + "; "
				}
			}
			for _, word := range words {
				if !strings.Contains(text, word) {
					return text + " lacks " + word
				}
			}
			return ""
		})
	}
	change := func(patch string) {
		t.Helper()
		must(t, o.Patch(ctx, b, client.RawPatch("application/merge-patch+json", []byte(patch))))
	}
	says("Degraded=True/InvalidAnnotation", "--kubeconfig=/etc/shadow", "broker-url")
	change(`{"metadata":{"annotations":{"pelago.io/flags":"--broker-url=https://hub.example.org:6443"}},"spec":{"globalnetEnabled":true}}`)
	says("Degraded=True/InvalidGlobalnetCIDRRange", "120.0.0.0/33", "Ready=False")
	change(`{"spec":{"globalnetCIDRRange":"120.0.0.0/8","globalnet":true}}`)
	says("Degraded=True/UnknownField", "spec.globalnet")
	if err := o.Get(ctx, client.ObjectKey{Name: manifests.BrokerNamespace}, &corev1.Namespace{}); err == nil {
		t.Error("a refused Broker has made the broker's namespace")
	}
	change(`{"spec":{"globalnet":null}}`)
	says("Ready=True/AsSpecified", "Degraded=False")

	await.Never(t, 2*time.Second, "the status is written again", func() bool {
		version := b.ResourceVersion
		must(t, o.Get(ctx, client.ObjectKeyFromObject(b), b))
		return b.ResourceVersion != version
	})

	objs, err := manifests.HubObjects()
	must(t, err)
	for _, u := range objs {
		o.same(u)
	}
	secret := &corev1.Secret{}
	must(t, o.Get(ctx, client.ObjectKey{Namespace: operatorNamespace, Name: v1alpha1.BrokerInfoSecret}, secret))
	info, err := broker.DecodeInfo(secret.Data[v1alpha1.BrokerInfoKey])
	must(t, err)
	if info.BrokerURL != "https://hub.example.org:6443" || len(info.CustomDomains) != 1 {
		t.Errorf("broker-info.subm %+v", info)
	}
	set, book, ok, err := broker.Former(ctx, installer(t, o.Config))
	must(t, err)
	if !ok || !book.Globalnet || book.Range.String() != "120.0.0.0/8" || set.BrokerURL != info.BrokerURL {
		t.Errorf("the clusterset: %+v %+v", set, book)
	}
	change(`{"spec":{"defaultCustomDomains":null}}`)
	within(t, "a removed field", func() string {
		set, _, _, err := broker.Former(ctx, installer(t, o.Config))
		must(t, err)
		return strings.Join(set.CustomDomains, ",")
	})
}
