package operator

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/client-go/rest"

	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/member"
	"github.com/pelago-net/pelago/deploy/spec"
)

// installer installs in the operator's own cluster. The functions are nil but in tests.
type installer struct {
	config *rest.Config

	joins   func(membership, bool) error
	removes func() error
	deploys func(spec.BrokerObject) (broker.Info, error)
}

// progress logs the steps of an installation.
func progress(format string, args ...any) {
	slog.Info("installing", "step", fmt.Sprintf(format, args...))
}

func (i installer) open() (manifests.Cluster, error) {
	return manifests.Open(rest.CopyConfig(i.config))
}

// member joins the cluster, or updates it. With keep the hub is not asked.
func (i installer) member(ctx context.Context, m membership, keep bool) error {
	if i.joins != nil {
		return i.joins(m, keep)
	}
	c, err := i.open()
	if err != nil {
		return err
	}
	return join(ctx, c, m.Object, m.info, keep)
}

// join joins a cluster as an object describes it.
func join(ctx context.Context, c manifests.Cluster, o spec.Object, info broker.Info, keep bool) error {
	ctx, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	if err := info.CheckExpiry(time.Now()); err != nil && !keep {
		return fmt.Errorf("use %s: %w", broker.InfoFile, err)
	}
	have, err := member.Read(ctx, c.Client)
	if err != nil {
		return err
	}
	plan, err := member.NewPlan(o.Member, o.Given, have, keep)
	if err != nil {
		return err
	}
	if err := c.RequireMemberVersion("this cluster"); err != nil {
		return err
	}
	return plan.Apply(ctx, c, member.Options{Info: info, Progress: progress})
}

// removeTimeout bounds the wait until the nodes of a cluster are clean.
const removeTimeout = 2 * time.Minute

// remove removes Pelago from the cluster.
func (i installer) remove(ctx context.Context) error {
	if i.removes != nil {
		return i.removes()
	}
	c, err := i.open()
	if err != nil {
		return err
	}
	return remove(ctx, c)
}

// remove removes Pelago from a cluster.
func remove(ctx context.Context, c manifests.Cluster) error {
	ctx, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	former, err := member.Former(ctx, c.Client)
	if err != nil {
		return err
	}
	if former.ClusterID == "" {
		return fmt.Errorf("the cluster at %s has not joined a clusterset", c.Config.Host)
	}
	return member.Remove(ctx, c.Client, former, member.Removal{Timeout: removeTimeout, Progress: progress})
}

// broker makes the cluster the hub of a clusterset.
func (i installer) broker(ctx context.Context, b spec.BrokerObject) (broker.Info, error) {
	if i.deploys != nil {
		return i.deploys(b)
	}
	ctx, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	c, err := i.open()
	if err != nil {
		return broker.Info{}, err
	}
	if err := c.RequireHubVersion(); err != nil {
		return broker.Info{}, err
	}
	plan, err := broker.NewPlan(ctx, c.Client, b.Broker, b.Given)
	if err != nil {
		return broker.Info{}, err
	}
	return plan.Apply(ctx, c, progress)
}
