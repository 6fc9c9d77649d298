package migrate

import (
	"context"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/pelago-net/pelago/control/agent/clusterdns"
)

// unplug removes the block of service discovery from the configuration of CoreDNS, in which the
// agent adds its own; CoreDNS refuses two servers for one zone.
func (s *Submariner) unplug(ctx context.Context) error {
	changed, err := s.unplugged(ctx)
	if err != nil {
		return err
	}
	for i := range changed {
		if err := s.Member.Update(ctx, &changed[i]); err != nil {
			return fmt.Errorf("update ConfigMap %s/%s: %w", changed[i].Namespace, changed[i].Name, err)
		}
	}
	return nil
}

// unplugged are the ConfigMaps of CoreDNS that have the block, without it.
func (s *Submariner) unplugged(ctx context.Context) (changed []corev1.ConfigMap, err error) {
	targets := clusterdns.Targets("")
	if c := s.state.spec.CoreDNSCustomConfig; c != nil && c.ConfigMapName != "" {
		targets = append(targets, clusterdns.TargetOf(c.ConfigMapName))
	}
	for _, t := range targets {
		cm := corev1.ConfigMap{}
		if err := s.Member.Get(ctx, t.ConfigMap, &cm); apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return nil, fmt.Errorf("get ConfigMap %s: %w", t.ConfigMap, err)
		}
		before := maps.Clone(cm.Data)
		delete(cm.Data, "lighthouse.server")
		for key, text := range cm.Data {
			if cm.Data[key], err = withoutBlock(text); err != nil {
				return nil, fmt.Errorf("remove Submariner's block from key %s of ConfigMap %s: %w", key, t.ConfigMap, err)
			}
		}
		if !maps.Equal(before, cm.Data) {
			changed = append(changed, cm)
		}
	}
	return changed, nil
}

// withoutBlock removes the block of service discovery. Without its end, all that follows would be
// removed with it.
func withoutBlock(text string) (string, error) {
	const first, last = "#lighthouse-start", "#lighthouse-end"
	before, rest, _ := strings.Cut(text, first)
	_, after, complete := strings.Cut(rest, last)
	switch starts, ends := strings.Count(text, first), strings.Count(text, last); {
	case starts == 0 && ends == 0:
		return text, nil
	case starts != 1 || ends != 1 || !complete:
		return "", fmt.Errorf("its markers are damaged (%d times %q, %d times %q; want one of each, in this order): delete them by hand, and "+
			"what is left of the block", starts, first, ends, last)
	}
	return before + strings.TrimPrefix(after, "\n"), nil
}
