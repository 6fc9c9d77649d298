package migrate

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/agent/ipam"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/member"
)

// adopt makes the agent the owner of the objects that Submariner's controllers have created. It
// allocates the addresses in their status to them before the agent runs, since the agent could
// otherwise give these addresses to other objects.
func (s *Submariner) adopt(ctx context.Context) error {
	former, err := member.Former(ctx, s.Member)
	if err != nil {
		return err
	}
	if former.ClusterID != s.state.spec.ClusterID {
		return fmt.Errorf("ConfigMap %s/%s is of cluster %q: want %q", config.SystemNamespace, config.ConfigMapName, former.ClusterID, s.state.spec.ClusterID)
	}
	if former.Globalnet() {
		pool := ipam.NewPool(former.GlobalCIDRs...)
		if err := s.adoptIngress(ctx, pool); err != nil {
			return err
		}
		if err := s.adoptEgress(ctx, pool); err != nil {
			return err
		}
	}
	return s.adoptImports(ctx, former)
}

// adoptIngress adopts the GlobalIngressIPs. The GlobalIngressIP of a headless service's pod gets
// the pod as its owner, by which the agent distinguishes it from another pod with the same name.
func (s *Submariner) adoptIngress(ctx context.Context, pool *ipam.Pool) error {
	list := &submarinerv1.GlobalIngressIPList{}
	if err := s.Member.List(ctx, list); err != nil {
		return fmt.Errorf("list GlobalIngressIPs: %w", err)
	}
	for i := range list.Items {
		g := &list.Items[i]
		before := g.DeepCopy()
		if g.Labels[pelagov1alpha1.LabelManagedBy] != pelagov1alpha1.ManagedBy {
			metav1.SetMetaDataLabel(&g.ObjectMeta, pelagov1alpha1.LabelManagedBy, pelagov1alpha1.ManagedBy)
			metav1.SetMetaDataAnnotation(&g.ObjectMeta, AnnotationAdopted, "submariner")
			if err := s.ownByPod(ctx, g); err != nil {
				return err
			}
			if err := s.Member.Patch(ctx, g, client.MergeFrom(before)); err != nil {
				return fmt.Errorf("adopt GlobalIngressIP %s/%s: %w", g.Namespace, g.Name, err)
			}
		}
		if err := s.latest(ctx, g, &g.Status.Conditions); err != nil {
			return err
		}
		if err := s.claim(ctx, pool, "GlobalIngressIP", g, g.Status.AllocatedIP); err != nil {
			return err
		}
	}
	return nil
}

func (s *Submariner) ownByPod(ctx context.Context, g *submarinerv1.GlobalIngressIP) error {
	if g.Spec.Target != submarinerv1.HeadlessServicePod || g.Spec.PodRef == nil {
		return nil
	}
	pod := &corev1.Pod{}
	err := s.Member.Get(ctx, client.ObjectKey{Namespace: g.Namespace, Name: g.Spec.PodRef.Name}, pod)
	if apierrors.IsNotFound(err) || err == nil && pod.Status.PodIP != g.Annotations[submarinerv1.AnnotationPodIP] {
		return nil // stale: the agent removes it
	}
	if err != nil {
		return fmt.Errorf("get Pod %s/%s: %w", g.Namespace, g.Spec.PodRef.Name, err)
	}
	g.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}}
	return nil
}

func (s *Submariner) adoptEgress(ctx context.Context, pool *ipam.Pool) error {
	var cluster submarinerv1.ClusterGlobalEgressIPList
	var namespaced submarinerv1.GlobalEgressIPList
	for _, list := range []client.ObjectList{&cluster, &namespaced} {
		if err := s.Member.List(ctx, list); err != nil {
			return fmt.Errorf("list %T: %w", list, err)
		}
	}
	adopt := func(kind string, o client.Object, status *submarinerv1.GlobalEgressIPStatus) error {
		if err := s.latest(ctx, o, &status.Conditions); err != nil {
			return err
		}
		return s.claim(ctx, pool, kind, o, status.AllocatedIPs...)
	}
	for i := range cluster.Items {
		if err := adopt("ClusterGlobalEgressIP", &cluster.Items[i], &cluster.Items[i].Status); err != nil {
			return err
		}
	}
	for i := range namespaced.Items {
		if err := adopt("GlobalEgressIP", &namespaced.Items[i], &namespaced.Items[i].Status); err != nil {
			return err
		}
	}
	return nil
}

// latest removes all but the last condition of each type: Submariner keeps a history, which
// Pelago's definitions do not allow.
func (s *Submariner) latest(ctx context.Context, o client.Object, conditions *[]metav1.Condition) error {
	before := o.DeepCopyObject().(client.Object)
	var last []metav1.Condition
	for _, c := range slices.Backward(*conditions) {
		if !slices.ContainsFunc(last, func(l metav1.Condition) bool { return l.Type == c.Type }) {
			last = append(last, c)
		}
	}
	if len(last) == len(*conditions) {
		return nil
	}
	slices.Reverse(last)
	*conditions = last
	if err := s.Member.Status().Patch(ctx, o, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("write the conditions of %T %s: %w", o, manifests.Title(client.ObjectKeyFromObject(o)), err)
	}
	return nil
}

// claim allocates addresses to an object. An address outside the cluster's GlobalCIDR, or of
// another object, is only reported; the agent then allocates a different one.
func (s *Submariner) claim(ctx context.Context, pool *ipam.Pool, kind string, of client.Object, texts ...string) error {
	for _, text := range texts {
		if text == "" {
			continue
		}
		title := kind + " " + manifests.Title(client.ObjectKeyFromObject(of))
		ip, err := netip.ParseAddr(text)
		if err != nil || !pool.Contains(ip) {
			s.Progress("warning: %s has the address %s, which is not in the GlobalCIDR %s: it gets another", title, text, pool)
			continue
		}
		owner := pelagov1alpha1.AddressOwner{Kind: kind, Namespace: of.GetNamespace(), Name: of.GetName(), UID: string(of.GetUID())}
		if err := s.claimFor(ctx, ip, owner, title); err != nil {
			return err
		}
	}
	return nil
}

func (s *Submariner) claimFor(ctx context.Context, ip netip.Addr, owner pelagov1alpha1.AddressOwner, title string) error {
	a := &pelagov1alpha1.GlobalAddress{ObjectMeta: metav1.ObjectMeta{Name: strings.ReplaceAll(ip.String(), ".", "-")},
		Spec: pelagov1alpha1.GlobalAddressSpec{IP: ip.String(), Owner: owner}}
	if err := kube.Claim(ctx, s.Member, s.Member, a); err != nil {
		return fmt.Errorf("allocate %s to %s: %w", ip, title, err)
	}
	if a.Spec.Owner != owner {
		s.Progress("warning: the address %s of %s is allocated to %s %s/%s: it gets another", ip, title, a.Spec.Owner.Kind, a.Spec.Owner.Namespace, a.Spec.Owner.Name)
	}
	return nil
}

// adoptImports adopts the ServiceImports in the services' namespaces, so that their clients see
// updates instead of a deletion, and keeps the ClusterSetIPs of services that this cluster exports.
func (s *Submariner) adoptImports(ctx context.Context, former config.Config) error {
	imports, err := s.listMCS(ctx, mcs.ServiceImportKindName)
	if err != nil {
		return err
	}
	exports, err := s.listMCS(ctx, mcs.ServiceExportKindName)
	if err != nil {
		return err
	}
	owner := kube.Owner{HubID: former.HubID}
	for i := range imports {
		u := &imports[i]
		if u.GetNamespace() == s.Namespace || !owner.Owns(u) && !submariners(u) {
			continue
		}
		title := manifests.Title(client.ObjectKeyFromObject(u))
		if !owner.Owns(u) {
			before := u.DeepCopy()
			owner.Mark(u)
			annotations := u.GetAnnotations()
			annotations[AnnotationAdopted] = "submariner"
			u.SetAnnotations(annotations)
			if err := s.Member.Patch(ctx, u, client.MergeFrom(before)); err != nil {
				return fmt.Errorf("adopt ServiceImport %s: %w", title, err)
			}
		}
		exported := slices.ContainsFunc(exports, func(e unstructured.Unstructured) bool {
			return e.GetNamespace() == u.GetNamespace() && e.GetName() == u.GetName()
		})
		ips, _, _ := unstructured.NestedStringSlice(u.Object, "spec", "ips")
		if kind, _, _ := unstructured.NestedString(u.Object, "spec", "type"); !exported || kind != string(mcs.ClusterSetIP) {
			continue
		}
		for _, text := range ips {
			ip, err := netip.ParseAddr(text)
			if err != nil || !former.ClusterSetIPRange.IsValid() || !former.ClusterSetIPRange.Contains(ip) {
				s.Progress("warning: service %s has the ClusterSetIP %s, which is not in the hub's range %s: it gets another", title, text, former.ClusterSetIPRange)
				continue
			}
			if err := s.claimFor(ctx, ip, pelagov1alpha1.AddressOwner{Kind: mcs.ServiceImportKindName, Namespace: u.GetNamespace(), Name: u.GetName()},
				"service "+title); err != nil {
				return err
			}
		}
	}
	return nil
}

// submariners reports whether an object has a label or annotation of Submariner.
func submariners(u *unstructured.Unstructured) bool {
	keys := slices.Concat(slices.Collect(maps.Keys(u.GetLabels())), slices.Collect(maps.Keys(u.GetAnnotations())))
	return slices.ContainsFunc(keys, func(key string) bool {
		return strings.Contains(key, "submariner.io/") || strings.HasPrefix(key, "submariner-io/")
	})
}

// listMCS lists a kind of the MCS API in the version that the cluster prefers.
func (s *Submariner) listMCS(ctx context.Context, kind string) ([]unstructured.Unstructured, error) {
	mapping, err := s.Member.RESTMapper().RESTMapping(schema.GroupKind{Group: mcs.GroupName, Kind: kind})
	if meta.IsNoMatchError(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find kind %s: %w", kind, err)
	}
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(mapping.GroupVersionKind)
	if err := s.Member.List(ctx, list); err != nil {
		return nil, fmt.Errorf("list %ss: %w", kind, err)
	}
	return list.Items, nil
}
