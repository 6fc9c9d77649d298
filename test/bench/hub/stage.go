package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/bench/hub/replay"
	"github.com/pelago-net/pelago/test/hubset"
	"github.com/pelago-net/pelago/test/hubset/member"
)

// userAgent is that of the users.
const userAgent = "bench-user"

// stage is a fresh clusterset for one measurement: every measurement has its own, so that none
// finds what another has left.
type stage struct {
	options  options
	dir      string // for logs
	set      *hubset.Set
	hub      *hubset.Process
	user     client.Client // as users reach the hub: through the recorder, if there is one
	observer client.Client // never through it
	arrived  *arrivals     // of real members
	bindings *bindings
	members  []string
	stop     context.CancelFunc
}

// newStage brings up members with real API servers, or simulated ones whose Deployments report
// after ready (0: never) that they run. They have room for everything that a case sends there. With
// a recorder, all requests of the product and the users pass it.
func newStage(
	ctx context.Context, o options, name string, realOnes, simulated int, ready time.Duration, r *replay.Recorder,
) (*stage, error) {
	dir := filepath.Join(o.dir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the directory for logs: %w", err)
	}
	s := &stage{options: o, dir: dir}
	ctx, s.stop = context.WithCancel(ctx)
	if err := s.up(ctx, realOnes, simulated, ready, r); err != nil {
		return nil, errors.Join(fmt.Errorf("set the stage: %w", err), s.close())
	}
	return s, nil
}

func (s *stage) up(ctx context.Context, realOnes, simulated int, ready time.Duration, r *replay.Recorder) (err error) {
	setup := hubset.Options{
		Binaries: s.options.bin, Dir: s.dir, Real: realOnes, Simulated: simulated,
		Member: member.Options{Nodes: 1, Pods: 1e6, Ready: ready},
		Server: []apiserver.Option{apiserver.Audit(auditPolicy)}, HubFlags: strings.Fields(s.options.hubFlags),
	}
	var users *rest.Config
	if r != nil {
		setup.Through = func(name string, to *rest.Config) (*rest.Config, error) {
			led, err := r.Through(name, to)
			if name == "hub" {
				users = led
			}
			return led, err
		}
	}
	if s.set, err = hubset.Open(ctx, setup); err != nil {
		return err
	}
	if users == nil {
		users = s.set.Server.Config()
	}
	if s.user, err = connect(users, userAgent); err != nil {
		return err
	}
	if s.observer, err = connect(s.set.Server.Config(), "bench-observer"); err != nil {
		return err
	}
	if s.hub, err = s.set.Up(ctx); err != nil {
		return err
	}
	for _, m := range s.set.Members {
		s.members = append(s.members, m.Name)
	}
	if realOnes > 0 {
		if s.arrived, err = watchArrivals(ctx, s.set.Members); err != nil {
			return err
		}
	}
	s.bindings, err = watchBindings(ctx, s.set.Server.Config())
	return err
}

func (s *stage) close() error {
	s.stop()
	if s.set == nil {
		return nil
	}
	return s.set.Close()
}

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, clusterv1alpha1.AddToScheme,
		policyv1alpha1.AddToScheme, workv1alpha2.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	return scheme, nil
}

func connect(config *rest.Config, agent string) (client.Client, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	config.UserAgent = agent
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", config.Host, err)
	}
	return c, nil
}

// done waits until n templates and their ConfigMaps are in all members and every binding reports
// it, and returns when that was. It learns this from two watches, without sending requests to the
// servers meanwhile.
func (s *stage) done(ctx context.Context, n int) (time.Time, error) {
	came, err := reach(ctx, s.arrived, s.arrived.more, 2*n*len(s.members), s.options.stall, "objects in the members")
	if err != nil {
		return time.Time{}, s.explain(err)
	}
	applied, err := s.applied(ctx, 2*n)
	if came.After(applied) {
		return came, err
	}
	return applied, err
}

// applied waits until n bindings report that their members hold what they should, and returns when
// the last did.
func (s *stage) applied(ctx context.Context, n int) (time.Time, error) {
	last, err := reach(ctx, s.bindings, s.bindings.more, n, s.options.stall, "bindings that are FullyApplied")
	if err != nil {
		return time.Time{}, s.explain(errors.Join(err, s.unapplied()))
	}
	return last, nil
}

// unapplied returns the conditions of the first bindings that are not FullyApplied, as an error to
// join with that of the wait.
func (s *stage) unapplied() error {
	// the wait's own has ended, perhaps
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var list workv1alpha2.ResourceBindingList
	if err := s.observer.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return fmt.Errorf("read the bindings: %w", err)
	}
	var lines []string
	for _, b := range list.Items {
		if meta.IsStatusConditionTrue(b.Status.Conditions, workv1alpha2.ConditionFullyApplied) {
			continue
		}
		line := fmt.Sprintf("%s for %d clusters", b.Name, len(b.Spec.Clusters))
		for _, c := range b.Status.Conditions {
			line += fmt.Sprintf("; %s=%s since %s: %s", c.Type, c.Status, c.LastTransitionTime.Format(time.TimeOnly), c.Message)
		}
		if lines = append(lines, line); len(lines) == 10 {
			break
		}
	}
	return errors.New(strings.Join(lines, "\n"))
}

// reach waits until so many of what is counted are there, at most stall long without a new one, and
// returns when the last came.
func reach(ctx context.Context, of interface{ count() (int, time.Time) }, more <-chan struct{}, want int, stall time.Duration,
	what string) (time.Time, error) {
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	still := time.NewTimer(stall)
	defer still.Stop()
	for {
		have, last := of.count()
		if have >= want {
			return last, nil
		}
		select {
		case <-ctx.Done():
			return last, ctx.Err()
		case <-still.C:
			return last, fmt.Errorf("%d of %d %s, and none has come for %v", have, want, what, stall)
		case <-more:
			still.Reset(stall)
		case <-tick.C:
			slog.Info("waiting for "+what, "have", have, "want", want)
		}
	}
}

// writes counts what the hub has written, once it has nothing more to do: the last statuses come
// after the objects.
func (s *stage) writes(ctx context.Context) (writes, error) {
	if depths, err := s.calm(ctx); err != nil || len(depths) > 0 {
		return writes{}, s.explain(fmt.Errorf("the hub does not come to rest, queues %v: %w", depths, errors.Join(err,
			context.DeadlineExceeded)))
	}
	log, err := os.Open(s.set.Server.AuditLog())
	if err != nil {
		return writes{}, fmt.Errorf("read the audit log: %w", err)
	}
	defer log.Close()
	w, ledger, err := countWrites(log)
	if err != nil {
		return w, err
	}
	return w, ledger.write(filepath.Join(s.dir, "writes.txt"))
}

// explain adds the hub's last words.
func (s *stage) explain(err error) error {
	return fmt.Errorf("%w; the hub's last words:\n%s", err, s.hub.Tail())
}

// systemUIDs are the UIDs of a set's namespaces kube-system: each is the id of its cluster.
func (s *stage) systemUIDs(ctx context.Context) (map[string]string, error) {
	ids := map[string]string{}
	for name, config := range s.configs() {
		c, err := connect(config, "bench-observer")
		if err != nil {
			return nil, err
		}
		var ns corev1.Namespace
		if err := c.Get(ctx, client.ObjectKey{Name: "kube-system"}, &ns); err != nil {
			return nil, fmt.Errorf("read the id of %s: %w", name, err)
		}
		ids[name] = string(ns.UID)
	}
	return ids, nil
}

// configs are administrators' accesses to all servers, by the names that the recorder knows.
func (s *stage) configs() map[string]*rest.Config {
	configs := map[string]*rest.Config{"hub": s.set.Server.Config()}
	for _, m := range s.set.Members {
		configs[m.Name] = rest.CopyConfig(m.Config)
	}
	return configs
}

// accesses are those of pelago-hub to all servers, by the same names.
func (s *stage) accesses(ctx context.Context) (map[string]*rest.Config, error) {
	hub, err := s.set.HubConfig()
	if err != nil {
		return nil, err
	}
	configs := map[string]*rest.Config{"hub": hub}
	for _, m := range s.set.Members {
		var secret corev1.Secret
		key := client.ObjectKey{Namespace: clusterv1alpha1.SecretNamespace, Name: m.Name}
		if err := s.observer.Get(ctx, key, &secret); err != nil {
			return nil, fmt.Errorf("read the hub's access to %s: %w", m.Name, err)
		}
		configs[m.Name] = rest.AnonymousClientConfig(m.Config)
		configs[m.Name].BearerToken = string(secret.Data[clusterv1alpha1.SecretKeyToken])
	}
	return configs, nil
}
