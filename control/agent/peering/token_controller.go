package peering

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/kube"
)

// DefaultTokenLife is how long a token is valid: a member that loses the hub for less than half of
// it recovers without an administrator.
const DefaultTokenLife = 7 * 24 * time.Hour

// ReturnLife is how long a cluster may be off and still come back by itself: the life of the return
// token, which is requested with each renewal and used for nothing but the next one. It is bound to the
// same Secret at the hub, so that removing the cluster there revokes it. It gives a thief of the Secret
// nothing new: whoever has a token can renew it.
const ReturnLife = 90 * 24 * time.Hour

const (
	// firstRetry and lastRetry bound the backoff after a failed renewal; half a life remains.
	firstRetry = 5 * time.Second
	lastRetry  = 5 * time.Minute
	// timeout bounds one renewal.
	timeout = 15 * time.Second
	// minInterval is the minimum time between renewals. If this clock is ahead of the hub's by more
	// than half a token's life, every new token is due at once.
	minInterval = time.Minute
)

// Reasons of Events on the Secret.
const (
	reasonRenewed    = "TokenRenewed"
	reasonReturned   = "ReturnedToHub"
	reasonNotRenewed = "TokenNotRenewed"
	reasonInvalid    = "InvalidBrokerSecret"
)

// TokenOptions of the controller.
type TokenOptions struct {
	// Namespace is the one of the Secret.
	Namespace string
	ClusterID string
	// Source gets each token of the Secret.
	Source *TokenSource
	// Hub requests tokens in BrokerNamespace.
	Hub             client.Client
	BrokerNamespace string
	// Life of new tokens; DefaultTokenLife if 0.
	Life time.Duration
}

// SetupToken adds the controller to the manager, whose cache must hold the Secret.
func SetupToken(mgr ctrl.Manager, o TokenOptions) error {
	if o.Life == 0 {
		o.Life = DefaultTokenLife
	}
	r := &tokenReconciler{TokenOptions: o, local: mgr.GetClient(), events: kube.EventRecorder(mgr, "pelago-agent"), now: time.Now}
	err := ctrl.NewControllerManagedBy(mgr).
		Named("credential").
		Watches(&corev1.Secret{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(only(o.Namespace))).
		WithOptions(controller.Options{
			ReconciliationTimeout: timeout,
			RateLimiter:           workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
		}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up controller credential: %w", err)
	}
	return nil
}

// FollowToken adds a controller that passes each token of the Secret to source and renews none, for
// a second process of a member. The manager's cache must hold the Secret.
func FollowToken(mgr ctrl.Manager, namespace string, source *TokenSource) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("credential-follow").
		Watches(&corev1.Secret{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(only(namespace))).
		Complete(reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
			var secret corev1.Secret
			if err := mgr.GetClient().Get(ctx, req.NamespacedName, &secret); err != nil {
				// the token in memory stays in use
				return reconcile.Result{}, client.IgnoreNotFound(err)
			}
			// the process that renews reports what is wrong with it
			if broker, err := config.ParseBroker(secret.Data); err == nil {
				source.set(broker.Token)
			}
			return reconcile.Result{}, nil
		}))
	if err != nil {
		return fmt.Errorf("set up controller credential-follow: %w", err)
	}
	return nil
}

// only selects the Secret with the token.
func only(namespace string) predicate.Funcs {
	return predicate.NewPredicateFuncs(func(obj client.Object) bool {
		return obj.GetNamespace() == namespace && obj.GetName() == config.BrokerSecretName
	})
}

type tokenReconciler struct {
	TokenOptions
	local  client.Client
	events record.EventRecorder
	now    func() time.Time
	last   time.Time // the last renewal of this process
}

// Reconcile uses the token of the Secret and renews it when it is due.
func (r *tokenReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var secret corev1.Secret
	if err := r.local.Get(ctx, req.NamespacedName, &secret); apierrors.IsNotFound(err) {
		return reconcile.Result{}, nil // the token in memory stays in use
	} else if err != nil {
		return reconcile.Result{}, fmt.Errorf("read Secret %s: %w", req, err)
	}
	broker, err := config.ParseBroker(secret.Data)
	var c claims
	if err == nil {
		c, err = parse(broker.Token)
	}
	if err != nil { // only a new Secret helps, and that is a new request
		r.events.Event(&secret, corev1.EventTypeWarning, reasonInvalid, err.Error())
		return reconcile.Result{}, nil
	}
	now := r.now()
	away := c.expired(now)
	if away && broker.ReturnToken != "" { // the hub refuses the other one
		r.Source.set(broker.ReturnToken)
	} else {
		r.Source.set(broker.Token)
	}
	due := c.renewal()
	if broker.ReturnToken == "" && r.last.IsZero() { // just joined, or of an older release
		due = now
	}
	if wait := max(due.Sub(now), min(minInterval-now.Sub(r.last), minInterval)); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	if err := r.renew(ctx, &secret, c); err != nil {
		message := err.Error()
		switch back, broken := parse(broker.ReturnToken); {
		case away && broker.ReturnToken != "" && broken == nil && !back.expired(now):
			message = fmt.Sprintf("the token has expired; the cluster returns with another one, valid until %s, as soon as the hub answers. If it was "+
				"unjoined meanwhile, run `pelago join` again: %s", time.Unix(back.Expiry, 0).UTC().Format(time.RFC3339), message)
		case away:
			message = "the token has expired, and the cluster was away for too long to return by itself: run `pelago join` again: " + message
		}
		r.events.Event(&secret, corev1.EventTypeWarning, reasonNotRenewed, message)
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, nil // the write of the Secret enqueues the next request
}

// renew requests a successor of the token at the hub and writes it into the Secret.
func (r *tokenReconciler) renew(ctx context.Context, secret *corev1.Secret, c claims) error {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: r.BrokerNamespace, Name: "cluster-" + r.ClusterID}}
	request := c.request(r.Life)
	if err := r.Hub.SubResource("token").Create(ctx, account, request); err != nil {
		return fmt.Errorf("request a token of ServiceAccount %s at the hub: %w", account.Name, err)
	}
	r.last = r.now()
	if issued, err := parse(request.Status.Token); err == nil {
		r.Source.skew.Set(r.last.Sub(time.Unix(issued.IssuedAt, 0)).Seconds())
	}
	// a hub may refuse so long a life or bound it; the renewed token is what matters
	back := c.request(max(ReturnLife, r.Life))
	if err := r.Hub.SubResource("token").Create(ctx, account, back); err != nil {
		log.FromContext(ctx).Error(err, "request the token by which the cluster returns after a long time off")
	}
	// with its resourceVersion: a Secret that `pelago join` wrote meanwhile wins
	next := secret.DeepCopy()
	next.Data[config.KeyBrokerToken] = []byte(request.Status.Token)
	if back.Status.Token != "" {
		next.Data[config.KeyReturnToken] = []byte(back.Status.Token)
	}
	if err := r.local.Update(ctx, next); err != nil {
		return fmt.Errorf("write the new token into Secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	if ended := time.Unix(c.Expiry, 0); c.expired(r.last) {
		r.events.Eventf(next, corev1.EventTypeNormal, reasonReturned, "the token had expired at %s: the cluster is back with its return token", ended.UTC().Format(time.RFC3339))
	}
	r.events.Eventf(next, corev1.EventTypeNormal, reasonRenewed, "the token for the hub is valid until %s", request.Status.ExpirationTimestamp.UTC().Format(time.RFC3339))
	log.FromContext(ctx).Info("token for the hub renewed", "until", request.Status.ExpirationTimestamp.UTC())
	return nil
}
