package migrate

import (
	"context"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/deploy/member"
)

// Back removes Pelago, restores what the switch has replaced, and starts Submariner's operator,
// which makes the rest again from its objects. It can be repeated.
func (s *Submariner) Back(ctx context.Context) error {
	cm := s.kept()
	err := s.Member.Get(ctx, client.ObjectKeyFromObject(cm), cm)
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("ConfigMap %s/%s does not exist: this cluster was not switched, or has been switched back already; `pelago unjoin` ends a preparation", cm.Namespace, cm.Name)
	}
	if err != nil {
		return fmt.Errorf("get ConfigMap %s/%s: %w", cm.Namespace, cm.Name, err)
	}
	if err := s.release(ctx); err != nil {
		return err
	}
	former, err := member.Former(ctx, s.Member)
	if err != nil {
		return err
	}
	if former.ClusterID != "" {
		if _, err := member.RemoveMember(ctx, s.Member, member.Removal{HubID: former.HubID, Timeout: s.Timeout, Force: true, Progress: s.Progress}); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(cm.Data)) {
		if err := restore(ctx, s.Member, cm.Data[name], s.Progress); err != nil {
			return fmt.Errorf("restore what ConfigMap %s/%s keeps: %w", cm.Namespace, cm.Name, err)
		}
	}
	if err := s.scaler().scale(ctx, submarinerControllers, true); err != nil {
		return err
	}
	if err := s.Member.Delete(ctx, cm); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete ConfigMap %s/%s: %w", cm.Namespace, cm.Name, err)
	}
	s.Progress("Submariner's operator runs and makes its other components again. Remove the cluster at the hub with `pelago unjoin --context HUB --clusterid ID`, " +
		"which also removes workloads that the hub has sent there")
	return nil
}

// release gives the adopted GlobalIngressIPs back, with their addresses: the removal of Pelago
// deletes those with its label.
func (s *Submariner) release(ctx context.Context) error {
	list := &submarinerv1.GlobalIngressIPList{}
	if err := s.Member.List(ctx, list); meta.IsNoMatchError(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("list GlobalIngressIPs: %w", err)
	}
	for i := range list.Items {
		g := &list.Items[i]
		if g.Annotations[AnnotationAdopted] == "" {
			continue
		}
		before := g.DeepCopy()
		delete(g.Annotations, AnnotationAdopted)
		delete(g.Labels, pelagov1alpha1.LabelManagedBy)
		g.OwnerReferences = nil
		if err := s.Member.Patch(ctx, g, client.MergeFrom(before)); err != nil {
			return fmt.Errorf("give GlobalIngressIP %s/%s back: %w", g.Namespace, g.Name, err)
		}
	}
	return nil
}
