package kinds

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
)

// askAgain is the pause between two questions to a hub that does not answer.
const askAgain = 2 * time.Second

// Follower gives the interpreter of an agent the KindRules of the hub, as they change.
type RuleFollower struct {
	Cache cache.Cache   // of the hub
	Live  client.Reader // asks the hub itself
	Rules *Custom
	Log   *slog.Logger
}

// Start follows until ctx ends. A hub that has no KindRules, or does not let a member read them, is an older one: then
// there are no rules, until it has.
func (f *RuleFollower) Start(ctx context.Context) error {
	defer f.Rules.Release()
	informer, err := f.Cache.GetInformer(ctx, &pelagov1alpha1.KindRules{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch the KindRules of the hub: %w", err)
	}
	changed := make(chan struct{}, 1)
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { notify(changed) }, UpdateFunc: func(_, _ any) { notify(changed) }, DeleteFunc: func(any) { notify(changed) },
	})
	if err != nil {
		return fmt.Errorf("watch the KindRules of the hub: %w", err)
	}
	defer func() { _ = informer.RemoveEventHandler(registration) }() // it fails only for a handler that is not there
	go f.older(ctx)
	if !toolscache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return nil // the process ends
	}
	notify(changed) // also if there are none
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
		var list pelagov1alpha1.KindRulesList
		if err := f.Cache.List(ctx, &list); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("list the KindRules of the hub: %w", err)
		}
		f.Rules.Set(list.Items)
	}
}

func notify(changed chan<- struct{}) {
	select {
	case changed <- struct{}{}:
	default: // a look is due already
	}
}

// older ends the wait for rules at a hub that has none.
func (f *RuleFollower) older(ctx context.Context) {
	for {
		var list pelagov1alpha1.KindRulesList
		err := f.Live.List(ctx, &list, client.Limit(1))
		switch {
		case err == nil:
			return
		case apierrors.IsNotFound(err), apierrors.IsForbidden(err), meta.IsNoMatchError(err):
			f.Log.Warn("The hub gives no KindRules: kinds are interpreted by what is built in. Upgrade the hub with `pelago init`.",
				"error", err)
			f.Rules.Release()
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(askAgain):
		}
	}
}
