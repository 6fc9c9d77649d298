package hubaddress

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/kube"
)

const (
	// defaultInterval is the mean time between two looks at what the hub announces, retry that
	// while something is amiss.
	defaultInterval = time.Minute
	retry           = 10 * time.Second
	// awayAfter is how long the hub is silent before it is looked for at its other address.
	awayAfter = 30 * time.Second
	// renewEvery is how often the report at the hub is renewed without a change.
	renewEvery = 10 * time.Minute
)

// Reasons of Events on the Secret.
const (
	reasonMoved       = "HubMoved"
	reasonCA          = "HubCAChanged"
	reasonNotFollowed = "HubNotFollowed"
)

// Options of Setup.
type Options struct {
	// Namespace is that of the Secret, BrokerNamespace the one at the hub.
	Namespace, BrokerNamespace string
	ClusterID, HubID           string
	// Token returns the token to use now.
	Token func() string
	// Interval is the mean time between two looks at what the hub announces; 0: a minute.
	Interval time.Duration
}

// Setup adds the follower to the manager, whose cache must hold the Secret. It returns the metric
// pelago_hub_address_followed.
func Setup(mgr ctrl.Manager, o Options) ([]prometheus.Collector, error) {
	f := newFollower(o, mgr.GetClient(), kube.EventRecorder(mgr, "pelago-agent"))
	if err := mgr.Add(f); err != nil {
		return nil, fmt.Errorf("follow the hub's address: %w", err)
	}
	return []prometheus.Collector{f.followed}, nil
}

// follower compares what the Secret has with what the hub announces, again and again. Only the
// leader does.
type follower struct {
	Options
	local    client.Client
	events   record.EventRecorder
	followed prometheus.Gauge
	now      func() time.Time

	silent   time.Time // since when the hub has not answered; zero: it has
	problem  string    // the last one that an Event names
	reported report
}

// report is what the member says of itself at the hub.
type report struct {
	server, problem string
	at              time.Time
}

func newFollower(o Options, local client.Client, events record.EventRecorder) *follower {
	if o.Interval == 0 {
		o.Interval = defaultInterval
	}
	return &follower{Options: o, local: local, events: events, now: time.Now, followed: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "pelago_hub_address_followed",
		Help: "1 if this cluster uses the address that the hub announces, or the hub announces none; 0 if it cannot.",
	})}
}

// Start runs until ctx ends.
func (f *follower) Start(ctx context.Context) error {
	for {
		wait, err := f.step(ctx)
		if err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "the hub's address cannot be followed")
			wait = min(retry, f.Interval)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait/2 + rand.N(wait)): // so that not all members of a hub ask at once
		}
	}
}

// step looks once, and returns the time until the next look.
func (f *follower) step(ctx context.Context) (time.Duration, error) {
	var secret corev1.Secret
	if err := f.local.Get(ctx, client.ObjectKey{Namespace: f.Namespace, Name: config.BrokerSecretName}, &secret); err != nil {
		return f.Interval, client.IgnoreNotFound(err) // without it the agent has nothing to follow
	}
	have, err := config.ParseBroker(secret.Data)
	if err != nil {
		return f.Interval, nil // reported by the controller of the token
	}
	hub, err := at(have.Server, have.CA, f.Token())
	if err != nil {
		return min(retry, f.Interval), err
	}
	announced, err := hub.announcement(ctx, f.BrokerNamespace)
	if err != nil && !errors.As(err, new(invalidError)) {
		return f.away(ctx, &secret, have, err)
	}
	f.silent = time.Time{}
	if problem := refusal(have.Server, f.HubID, announced, err); problem != "" {
		return f.note(&secret, problem), f.report(ctx, hub, have.Server, problem)
	}
	want, problem := f.follow(ctx, have, announced)
	if err := f.write(ctx, &secret, have, want); err != nil {
		return min(retry, f.Interval), err
	}
	wait := f.note(&secret, problem)
	return wait, f.report(ctx, hub, want.Server, problem)
}

// follow returns the access that the announcement makes of the present one, which has answered.
func (f *follower) follow(ctx context.Context, have config.Broker, announced config.Announcement) (want config.Broker, problem string) {
	want = have
	if ca := config.MergeCA(announced.CA); len(ca) > 0 && !bytes.Equal(ca, config.MergeCA(have.CA)) {
		want.CA = ca
		if f.ask(ctx, have.Server, ca) != "" { // the present address needs its own as well
			want.CA = config.MergeCA(ca, have.CA)
		}
	}
	if announced.Server == "" || announced.Server == have.Server {
		return want, ""
	}
	// also if it does not answer yet: then it is for the day on which the present one does not
	want.Other = announced.Server
	if problem := f.ask(ctx, announced.Server, want.CA); problem != "" {
		return want, problem
	}
	want.Server, want.Other = announced.Server, have.Server
	return want, ""
}

// ask returns why an address is not the hub; empty: it is.
func (f *follower) ask(ctx context.Context, server string, ca []byte) string {
	hub, err := at(server, ca, f.Token())
	var found config.Announcement
	if err == nil {
		found, err = hub.announcement(ctx, f.BrokerNamespace)
	}
	return refusal(server, f.HubID, found, err)
}

// away looks for a hub that has not answered for a while at its other address.
func (f *follower) away(ctx context.Context, secret *corev1.Secret, have config.Broker, err error) (time.Duration, error) {
	var answer apierrors.APIStatus
	if errors.As(err, &answer) {
		f.silent = time.Time{}
		if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) { // a hub of an earlier release
			log.FromContext(ctx).V(1).Info("the hub announces no address", "reason", err.Error())
		}
		return f.Interval, nil // a refused token is reported by its controller
	}
	if f.silent.IsZero() {
		f.silent = f.now()
	}
	if have.Other == "" || f.now().Sub(f.silent) < awayAfter {
		return min(retry, f.Interval), nil
	}
	if problem := f.ask(ctx, have.Other, have.CA); problem != "" {
		return f.note(secret, fmt.Sprintf("%s has not answered since %s, and %s", have.Server, f.silent.UTC().Format(time.RFC3339), problem)), nil
	}
	want := have
	want.Server, want.Other = have.Other, have.Server
	return min(retry, f.Interval), f.write(ctx, secret, have, want)
}

// write changes the Secret. The agent restarts when it has another server or CA.
func (f *follower) write(ctx context.Context, secret *corev1.Secret, have, want config.Broker) error {
	next := secret.DeepCopy()
	next.Data[config.KeyBrokerServer], next.Data[config.KeyBrokerCA] = []byte(want.Server), want.CA
	if want.Other != "" {
		next.Data[config.KeyOtherServer] = []byte(want.Other)
	}
	if maps.EqualFunc(secret.Data, next.Data, bytes.Equal) {
		return nil
	}
	// with its resourceVersion: a Secret that `pelago join` or a renewal wrote meanwhile wins
	if err := f.local.Update(ctx, next); err != nil {
		return fmt.Errorf("write the hub's address into Secret %s: %w", client.ObjectKeyFromObject(secret), err)
	}
	switch {
	case want.Server != have.Server:
		f.events.Eventf(next, corev1.EventTypeNormal, reasonMoved, "the hub is reached at %s, formerly at %s", want.Server, have.Server)
	case !bytes.Equal(want.CA, have.CA):
		f.events.Eventf(next, corev1.EventTypeNormal, reasonCA, "the hub has announced its CAs, which this cluster trusts now")
	}
	return nil
}

// note reports a problem, once, and returns the time until the next look.
func (f *follower) note(secret *corev1.Secret, problem string) time.Duration {
	if problem != "" && problem != f.problem {
		f.events.Event(secret, corev1.EventTypeWarning, reasonNotFollowed, problem)
	}
	f.problem = problem
	if problem != "" {
		f.followed.Set(0)
		return min(retry, f.Interval)
	}
	f.followed.Set(1)
	return f.Interval
}

// report writes the Lease at the hub if something has changed, or for a sign of life.
func (f *follower) report(ctx context.Context, hub hubAt, server, problem string) error {
	now := report{server, problem, f.now()}
	if f.reported.server == server && f.reported.problem == problem && now.at.Sub(f.reported.at) < renewEvery {
		return nil
	}
	leases := hub.CoordinationV1().Leases(f.BrokerNamespace)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "cluster-" + f.ClusterID, Namespace: f.BrokerNamespace}}
	have, err := leases.Get(ctx, lease.Name, metav1.GetOptions{})
	exists := err == nil
	if exists {
		lease = have.DeepCopy()
	} else if !apierrors.IsNotFound(err) {
		return ignoreForbidden(err)
	}
	lease.Spec.HolderIdentity, lease.Spec.RenewTime = ptr.To(server), &metav1.MicroTime{Time: now.at}
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, v1alpha1.AnnotationHubProblem, problem)
	if exists {
		_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	} else {
		_, err = leases.Create(ctx, lease, metav1.CreateOptions{})
	}
	if err := ignoreForbidden(err); err != nil {
		return err
	}
	f.reported = now
	return nil
}

// ignoreForbidden: a hub of an earlier release takes no reports.
func ignoreForbidden(err error) error {
	if err == nil || apierrors.IsForbidden(err) {
		return nil
	}
	return fmt.Errorf("report at the hub how it is reached: %w", err)
}
