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

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/test/chaos/check"
	"github.com/pelago-net/pelago/test/hubset"
	"github.com/pelago-net/pelago/test/hubset/member"
)

// stage is a clusterset with churn on it and everything that watches it.
type stage struct {
	options options
	set     *hubset.Set
	replica *replica // the pelago-hub in charge
	former  *replica // another one next to it, if there is one
	trap    *trap    // nil: none
	evicted *evicted // nil: none
	hub     client.Client
	members map[string]client.Client
	names   []string
	history *check.History
	churn   *churn
	dir     string // kubeconfigs, logs, backups
	log     *os.File
	stop    context.CancelFunc
}

// newStage brings everything up: the servers, an empty backup of the hub, the product, the watches
// and the first templates.
func newStage(ctx context.Context, o options, sc scenario) (*stage, error) {
	dir := filepath.Join(o.dir, sc.name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the directory for logs: %w", err)
	}
	s := &stage{options: o, dir: dir, history: check.NewHistory(o.lag), members: map[string]client.Client{}}
	if sc.trapped {
		s.trap = &trap{}
	}
	ctx, s.stop = context.WithCancel(ctx)
	if err := s.up(ctx, sc.decisive); err != nil {
		return nil, errors.Join(fmt.Errorf("set the stage: %w", err), s.close())
	}
	return s, nil
}

func (s *stage) up(ctx context.Context, decisive bool) (err error) {
	setup := hubset.Options{
		Binaries: s.options.bin, Dir: s.dir, Real: s.options.members, Simulated: s.options.simulated,
		Member: member.Options{Nodes: 2, Ready: 200 * time.Millisecond}, HubFlags: strings.Fields(s.options.hubFlags),
	}
	if s.trap != nil {
		setup.Through = s.trap.through
	}
	if s.set, err = hubset.Open(ctx, setup); err != nil {
		return err
	}
	if err := s.set.Server.Backup(ctx, s.emptyBackup()); err != nil {
		return err
	}
	if s.hub, err = connect(s.set.Server.Config()); err != nil {
		return err
	}
	for _, m := range s.set.Members {
		if s.members[m.Name], err = connect(m.Config); err != nil {
			return err
		}
		s.names = append(s.names, m.Name)
		if err := observe(ctx, m, s.history); err != nil {
			return err
		}
	}
	if err := s.install(ctx); err != nil {
		return err
	}
	slog.Info("the clusterset is up", "members", len(s.names))
	s.churn = newChurn(s.hub, s.history, s.options.seed, s.names)
	s.churn.decisive = decisive
	if s.log, err = os.Create(filepath.Join(s.dir, "churn.log")); err != nil {
		return fmt.Errorf("begin the log of the churn: %w", err)
	}
	s.churn.log = s.log
	return s.churn.begin(ctx, s.options.templates)
}

// install is the way to a clusterset that works.
func (s *stage) install(ctx context.Context) (err error) {
	if err := s.set.Init(ctx); err != nil {
		return err
	}
	if s.replica, err = startReplica(s.set, "pelago-hub"); err != nil {
		return err
	}
	if err := s.set.Join(ctx); err != nil {
		return s.withLastWords(err)
	}
	return s.withLastWords(s.set.AwaitReady(ctx))
}

// withLastWords adds the end of the hub's log to an error.
func (s *stage) withLastWords(err error) error {
	if err == nil {
		return nil
	}
	p, _ := s.replica.current() // if it cannot be started again, the former one's are what there is
	return fmt.Errorf("%w; the hub's last words:\n%s", err, p.Tail())
}

func (s *stage) emptyBackup() string { return filepath.Join(s.dir, "empty") }

func (s *stage) close() error {
	s.stop()
	for _, r := range []*replica{s.replica, s.former} {
		if r != nil {
			r.retire()
		}
	}
	if s.trap != nil {
		s.trap.close()
	}
	var errs []error
	if s.log != nil {
		errs = append(errs, s.log.Close())
	}
	if s.set != nil {
		errs = append(errs, s.set.Close())
	}
	return errors.Join(errs...)
}

func connect(config *rest.Config) (client.Client, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, clusterv1alpha1.AddToScheme,
		policyv1alpha1.AddToScheme, workv1alpha1.AddToScheme, workv1alpha2.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	config.UserAgent, config.Timeout = "chaos", 20*time.Second
	mapper, err := mapperOf(scheme)
	if err != nil {
		return nil, err
	}
	c, err := client.New(config, client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", config.Host, err)
	}
	return c, nil
}

// sayEvery is how often it is said what is waited for.
const sayEvery = 5 * time.Second

// converged waits until members hold what the hub requests, and returns what is wrong if they do
// not within the limit.
func (s *stage) converged(ctx context.Context, orphans bool) (violations []check.Violation, took time.Duration, err error) {
	start := time.Now()
	said := start
	for end := start.Add(s.options.limit); ; {
		violations, err := s.compare(ctx, orphans)
		if err == nil && len(violations) == 0 {
			return nil, time.Since(start), nil
		}
		if time.Since(said) > sayEvery {
			said = time.Now()
			first := ""
			if len(violations) > 0 {
				first = violations[0].String()
			}
			slog.Info("not all is as wanted yet", "since", time.Since(start).Round(time.Second), "violations", len(violations),
				"first", first, "error", err)
		}
		if time.Now().After(end) {
			return violations, time.Since(start), err
		}
		select {
		case <-ctx.Done():
			return violations, time.Since(start), ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func (s *stage) compare(ctx context.Context, orphans bool) ([]check.Violation, error) {
	h, err := atHub(ctx, s.hub, s.names)
	if err != nil {
		return nil, err
	}
	wanted, err := check.Wanted(h)
	if err != nil {
		return nil, err
	}
	actual, err := found(ctx, s.hub, s.members)
	if err != nil {
		return nil, err
	}
	violations := check.Compare(wanted, actual, orphans)
	if s.evicted != nil {
		missing, err := s.evicted.missing(ctx)
		return append(violations, missing...), err
	}
	return violations, nil
}
