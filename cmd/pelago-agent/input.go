package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelago-net/pelago/control/config"
)

// input is what `pelago join` left in the member for the agent.
type input struct {
	config config.Config
	broker config.Broker
}

var (
	configKey = client.ObjectKey{Namespace: config.SystemNamespace, Name: config.ConfigMapName}
	brokerKey = client.ObjectKey{Namespace: config.SystemNamespace, Name: config.BrokerSecretName}
)

func readInput(ctx context.Context, c client.Reader) (input, error) {
	var cm corev1.ConfigMap
	if err := c.Get(ctx, configKey, &cm); err != nil {
		return input{}, fmt.Errorf("read ConfigMap %s, which `pelago join` writes: %w", configKey, err)
	}
	var secret corev1.Secret
	if err := c.Get(ctx, brokerKey, &secret); err != nil {
		return input{}, fmt.Errorf("read Secret %s, which `pelago join` writes: %w", brokerKey, err)
	}
	var in input
	var err error
	if in.config, err = config.Parse(cm.Data); err != nil {
		return input{}, err
	}
	if in.broker, err = config.ParseBroker(secret.Data); err != nil {
		return input{}, err
	}
	return in, nil
}

// differs says whether an agent made from in would be another one if it were made from now. Tokens change all the time.
func (in input) differs(now input) bool {
	return !maps.Equal(in.config.Data(), now.config.Data()) ||
		in.broker.Server != now.broker.Server || in.broker.Namespace != now.broker.Namespace || !bytes.Equal(in.broker.CA, now.broker.CA)
}

// watchInput calls restart when the configuration is another than the one in use. Everything in the agent is made from
// it at the start, and a start takes less time than keeping each part changeable would cost in code.
func watchInput(mgr ctrl.Manager, have input, restart func()) error {
	only := builder.WithPredicates(predicate.NewPredicateFuncs(func(obj client.Object) bool {
		key := client.ObjectKeyFromObject(obj)
		return key == configKey || key == brokerKey
	}))
	once := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{{}} })
	return ctrl.NewControllerManagedBy(mgr).
		Named("input").
		Watches(&corev1.ConfigMap{}, once, only).
		Watches(&corev1.Secret{}, once, only).
		WithOptions(controller.Options{NeedLeaderElection: ptr.To(false)}).
		Complete(reconcile.Func(func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
			now, err := readInput(ctx, mgr.GetClient())
			if err != nil {
				return reconcile.Result{}, fmt.Errorf("the configuration changed to one that cannot be used; the former one stays in use: %w", err)
			}
			if have.differs(now) {
				restart()
			}
			return reconcile.Result{}, nil
		}))
}
