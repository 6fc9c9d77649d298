package services

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/kube"
)

func (r *importReconciler) sliceSet() kube.ObjectSet[*discoveryv1.EndpointSlice] {
	return sliceSet(r.local, r.cluster.owner.Owns)
}

func (r *importReconciler) importSet() kube.ObjectSet[*mcs.ServiceImport] {
	return kube.ObjectSet[*mcs.ServiceImport]{
		Client: r.local, Owns: r.cluster.owner.Owns,
		Copy: func(dst, src *mcs.ServiceImport) {
			dst.Spec = src.Spec
			weights := maps.Clone(dst.Annotations)
			maps.DeleteFunc(weights, func(key, _ string) bool { return !strings.HasPrefix(key, submarinerv1.AnnotationWeightPrefix) })
			// Labels that are no longer exported are removed; weights are set by users of this
			// cluster.
			dst.Labels, dst.Annotations = src.Labels, maps.Clone(src.Annotations)
			maps.Copy(dst.Annotations, weights) // never nil: the owner's are there
		},
	}
}

// apply writes the member's objects of one service. The import announces the slices: it is created
// after them and deleted before them.
func (r *importReconciler) apply(ctx context.Context, have present, want result) error {
	sliceSet := r.sliceSet()
	if err := sliceSet.Ensure(ctx, have.slices, want.slices); err != nil {
		return err
	}
	copies, err := r.unambiguous(ctx, have.copies, want.copies)
	if err != nil {
		return err
	}
	return errors.Join(
		r.applyImport(ctx, have.imported, want.imported),
		r.importSet().Apply(ctx, have.copies, copies),
		sliceSet.Prune(ctx, have.slices, want.slices),
	)
}

// applyWithoutHub refreshes a service that was imported earlier, as long as the hub's cache has not
// synced: this cluster's own part, and the readiness of the other clusters' endpoints.
func (r *importReconciler) applyWithoutHub(ctx context.Context, have present, s importState) error {
	if have.imported == nil || !r.cluster.owner.Owns(have.imported) {
		return nil
	}
	var own, want, others, judged []*discoveryv1.EndpointSlice
	verdict := r.dead.Load()
	for _, slice := range have.slices {
		source := slice.Labels[mcs.LabelSourceCluster]
		if source == r.cluster.id {
			own = append(own, slice)
		} else if verdict != nil && r.cluster.owner.Owns(slice) {
			_, dead := (*verdict)[source]
			peer, err := r.readPeer(ctx, source)
			if err != nil {
				return err
			}
			next := judgedSlice(slice, dead)
			if refused, is := refusalOf(peer); is && refused.peer != nil {
				next = unreadySlice(slice)
			}
			others, judged = append(others, slice), append(judged, next)
		}
	}
	for _, c := range have.imported.Status.Clusters {
		if c.Cluster == r.cluster.id && s.exported {
			want = r.cluster.ownSlices(s)
		}
	}
	return errors.Join(r.sliceSet().Apply(ctx, own, want), r.sliceSet().Ensure(ctx, others, judged))
}

// applyImport writes the merged import and its status. One of another owner is kept, and reported
// by an Event.
func (r *importReconciler) applyImport(ctx context.Context, have, want *mcs.ServiceImport) error {
	var present []*mcs.ServiceImport
	set := r.importSet()
	set.Client = r.counted
	if have != nil {
		present = append(present, have)
	}
	if want == nil {
		return set.Prune(ctx, present, nil)
	}
	if have != nil && !r.cluster.owner.Owns(have) {
		r.events.Event(have, corev1.EventTypeWarning, "NotImported", kube.ErrForeign.Error()+": delete it to let the exported service of this name be imported")
		return nil
	}
	status := *want.Status.DeepCopy()
	if err := set.Ensure(ctx, present, []*mcs.ServiceImport{want}); err != nil {
		return err
	}
	return r.applyStatus(ctx, cmp.Or(have, want), status) // want as created
}

func (r *importReconciler) applyStatus(ctx context.Context, current *mcs.ServiceImport, status mcs.ServiceImportStatus) error {
	next := current.DeepCopy()
	next.Status.Clusters, next.Status.EndpointSliceObjects = status.Clusters, status.EndpointSliceObjects
	for _, c := range status.Conditions {
		meta.SetStatusCondition(&next.Status.Conditions, c)
	}
	return kube.PatchStatus(ctx, r.local, current, next)
}

// unambiguous renames copies whose name is taken by another service's copy: service a in namespace
// b-c and service a-b in namespace c would get the same name.
func (r *importReconciler) unambiguous(ctx context.Context, have, want []*mcs.ServiceImport) ([]*mcs.ServiceImport, error) {
	mine := map[string]bool{}
	for _, h := range have {
		mine[h.Name] = true
	}
	for _, w := range want {
		if mine[w.Name] {
			continue
		}
		var other mcs.ServiceImport
		err := r.local.Get(ctx, client.ObjectKeyFromObject(w), &other)
		switch {
		case err == nil && !slices.Equal(importedService(&other), importedService(w)):
			w.Name += "-" + NameHash(importedService(w)...)
		case client.IgnoreNotFound(err) != nil:
			return nil, fmt.Errorf("read ServiceImport %s/%s: %w", w.Namespace, w.Name, err)
		}
	}
	return want, nil
}
