package operator

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/api/submariner/v1alpha1"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/spec"
)

// What the operator reports in conditions and Events is counted, by kind, unless it is a wait.
func TestFailuresAreCounted(t *testing.T) {
	s := runtime.NewScheme()
	must(t, errors.Join(scheme.AddToScheme(s), submarinerv1.AddToScheme(s), v1alpha1.AddToScheme(s)))
	meta := metav1.ObjectMeta{Namespace: operatorNamespace, Name: "x", Finalizers: []string{v1alpha1.Finalizer}}
	objects := []client.Object{&v1alpha1.Submariner{ObjectMeta: meta}, // lacks its fields
		&v1alpha1.Broker{ObjectMeta: meta}, &v1alpha1.ServiceDiscovery{ObjectMeta: meta, Spec: v1alpha1.ServiceDiscoverySpec{ClusterID: "c9"}}}
	c := fake.NewClientBuilder().WithScheme(s).WithObjects(objects...).WithStatusSubresource(objects...).Build()
	o := &operator{client: c, live: c, namespace: operatorNamespace, failures: newFailures(), brokers: map[client.ObjectKey]applied{},
		install: installer{deploys: func(spec.BrokerObject) (broker.Info, error) {
			return broker.Info{}, errors.New("the hub does not answer")
		}}}
	req := reconcile.Request{NamespacedName: client.ObjectKey{Namespace: operatorNamespace, Name: "x"}}
	for _, do := range []func(context.Context, reconcile.Request) (reconcile.Result, error){o.submariner, o.broker, o.broker, o.discovery} {
		_, err := do(t.Context(), req)
		must(t, err)
	}
	o.count("Submariner", updating("the operator is updated first"))
	r, state := &capi{operator: o, events: record.NewFakeRecorder(9)}, &capiState{}
	for _, err := range []error{nil, reported{reasonJoinPending, "not initialized yet"}, refusal{"", "the name is taken"}, refusal{"", "the name is taken"}} {
		r.report(req.NamespacedName, nil, state, true, err)
	}
	must(t, testutil.CollectAndCompare(o.failures, strings.NewReader(`# HELP pelago_operator_failures_total Reconciles by the operator that failed.
# TYPE pelago_operator_failures_total counter
pelago_operator_failures_total{kind="Broker"} 2
pelago_operator_failures_total{kind="Cluster"} 2
pelago_operator_failures_total{kind="ServiceDiscovery"} 1
pelago_operator_failures_total{kind="Submariner"} 1
`)))
}
