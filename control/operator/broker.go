package operator

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelago-net/pelago/api/submariner/v1alpha1"
	"github.com/pelago-net/pelago/deploy/spec"
)

// brokerInterval is how often deploy-broker is run again: broker-info.subm expires after 24 hours.
const brokerInterval = 12 * time.Hour

// broker reconciles one Broker.
func (o *operator) broker(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	b := &v1alpha1.Broker{}
	found, unknown, err := o.decode(ctx, "Broker", req.NamespacedName, b)
	if err != nil || !found || b.DeletionTimestamp != nil {
		return reconcile.Result{}, err
	}
	before := b.DeepCopy()
	err, again := o.deployBroker(ctx, b, unknown), brokerInterval
	if err == nil {
		b.Status.ObservedGeneration = b.Generation
		done(&b.Status, "the hub is deployed; Secret "+v1alpha1.BrokerInfoSecret+" has broker-info.subm")
	} else {
		again = o.retries()
		o.count("Broker", err)
		setConditions(&b.Status, b.Generation, nil, err)
	}
	return reconcile.Result{RequeueAfter: again}, o.write(ctx, b, before)
}

// done sets the conditions of a kind without components.
func done(s *v1alpha1.Status, message string) {
	for kind, is := range map[string]metav1.ConditionStatus{v1alpha1.ConditionAvailable: metav1.ConditionTrue, v1alpha1.ConditionReady: metav1.ConditionTrue,
		v1alpha1.ConditionProgressing: metav1.ConditionFalse, v1alpha1.ConditionDegraded: metav1.ConditionFalse} {
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: kind, Status: is, Reason: "AsSpecified", Message: message,
			ObservedGeneration: s.ObservedGeneration})
	}
}

func (o *operator) deployBroker(ctx context.Context, b *v1alpha1.Broker, unknown error) error {
	if err := unknownFields(unknown); err != nil {
		return err
	}
	object, errs := spec.FromBroker(b.Spec, b.Annotations)
	if err := located(object.Locate, spec.Join(errs)); err != nil {
		return err
	}
	input, key := fmt.Sprint(spec.Texts(object.Broker)), client.ObjectKeyFromObject(b)
	if last := o.brokers[key]; last.current(input, brokerInterval, o.retries()) {
		return last.err
	}
	err := located(object.Locate, o.writeBroker(ctx, object))
	o.brokers[key] = applied{input, time.Now(), err}
	return err
}

// writeBroker deploys the broker and writes what clusters join with.
func (o *operator) writeBroker(ctx context.Context, b spec.BrokerObject) error {
	info, err := o.install.broker(ctx, b)
	if err != nil {
		return err
	}
	content, err := info.Encode()
	if err != nil {
		return err
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: o.namespace, Name: v1alpha1.BrokerInfoSecret}}
	if _, err := controllerutil.CreateOrUpdate(ctx, o.client, secret, func() error {
		secret.Data = map[string][]byte{v1alpha1.BrokerInfoKey: content}
		return nil
	}); err != nil {
		return fmt.Errorf("write Secret %s: %w", secret.Name, err)
	}
	return nil
}

// discovery reconciles one ServiceDiscovery: it reports what the Submariner of the namespace does.
func (o *operator) discovery(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	d := &v1alpha1.ServiceDiscovery{}
	found, _, err := o.decode(ctx, "ServiceDiscovery", req.NamespacedName, d)
	if err != nil || !found || d.DeletionTimestamp != nil {
		return reconcile.Result{}, err
	}
	before := d.DeepCopy()
	list := &v1alpha1.SubmarinerList{}
	if err := o.live.List(ctx, list, client.InNamespace(o.namespace)); err != nil {
		return reconcile.Result{}, fmt.Errorf("list Submariners: %w", err)
	}
	d.Status.ObservedGeneration = d.Generation
	err = refuse("clusterID", "without a Submariner of that clusterID in this namespace there is no service discovery: names and imports follow the "+
		"health of the gateways. Make one; where the pods of all clusters reach each other already, without globalnet, clusters keep their addresses")
	for _, s := range list.Items {
		if s.Spec.ClusterID == d.Spec.ClusterID && s.DeletionTimestamp == nil {
			err = nil
			for _, c := range s.Status.Conditions {
				c.ObservedGeneration = d.Generation
				meta.SetStatusCondition(&d.Status.Conditions, c)
			}
			break
		}
	}
	if err != nil {
		o.count("ServiceDiscovery", err)
		setConditions(&d.Status, d.Generation, nil, err)
	}
	return reconcile.Result{RequeueAfter: o.retries()}, o.write(ctx, d, before)
}
