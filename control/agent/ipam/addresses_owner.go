package ipam

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/topology"
)

// Kinds of owners, as written into claims.
const (
	kindCluster   = "ClusterGlobalEgressIP"
	kindNamespace = "GlobalEgressIP"
	kindIngress   = "GlobalIngressIP"
)

// request names an owner.
type request struct{ Kind, Namespace, Name string }

func (r request) String() string { return fmt.Sprintf("%s %s/%s", r.Kind, r.Namespace, r.Name) }

func requestOf(o pelagov1alpha1.AddressOwner) request {
	return request{Kind: o.Kind, Namespace: o.Namespace, Name: o.Name}
}

// clusterPool is the owner whose addresses are allocated first.
var clusterPool = request{Kind: kindCluster, Name: submarinerv1.ClusterGlobalEgressIPName}

// object is an owner as read from the API, with what it requests. Object is nil if the owner is
// gone.
type object struct {
	client.Object
	AddressOwner
	refused *refusal
}

// read reads the owner that req names.
func read(ctx context.Context, from client.Reader, req request) (object, error) {
	var o client.Object
	switch req.Kind {
	case kindCluster:
		o = new(submarinerv1.ClusterGlobalEgressIP)
	case kindNamespace:
		o = new(submarinerv1.GlobalEgressIP)
	case kindIngress:
		o = new(submarinerv1.GlobalIngressIP)
	default: // a claim of something that this controller does not know
		return object{}, fmt.Errorf("read the owner of a GlobalAddress: unknown kind %q", req.Kind)
	}
	err := from.Get(ctx, client.ObjectKey{Namespace: req.Namespace, Name: req.Name}, o)
	if apierrors.IsNotFound(err) {
		return object{}, nil
	}
	if err != nil {
		return object{}, fmt.Errorf("read %s: %w", req, err)
	}
	return translate(o), nil
}

// translate returns what an object requests.
func translate(o client.Object) object {
	obj := object{Object: o, AddressOwner: AddressOwner{UID: o.GetUID()}}
	switch o := o.(type) {
	case *submarinerv1.ClusterGlobalEgressIP:
		obj.Count, obj.Shown = o.Spec.Count(), topology.ParseAddresses(o.Status.AllocatedIPs)
		if o.Name != submarinerv1.ClusterGlobalEgressIPName {
			obj.refused = &refusal{submarinerv1.ReasonInvalidInstance, fmt.Sprintf(
				"only the ClusterGlobalEgressIP named %s is honoured", submarinerv1.ClusterGlobalEgressIPName)}
		}
	case *submarinerv1.GlobalEgressIP:
		obj.Count, obj.Shown = o.Spec.Count(), topology.ParseAddresses(o.Status.AllocatedIPs)
		if _, err := metav1.LabelSelectorAsSelector(o.Spec.PodSelector); err != nil {
			obj.refused = &refusal{submarinerv1.ReasonInvalidInput, fmt.Sprintf("podSelector selects nothing: %v", err)}
		}
	case *submarinerv1.GlobalIngressIP:
		// not created by Pelago
		if o.Labels[pelagov1alpha1.LabelManagedBy] != pelagov1alpha1.ManagedBy {
			return object{}
		}
		obj.Count, obj.Shown = 1, topology.ParseAddresses([]string{o.Status.AllocatedIP})
	}
	if obj.refused != nil {
		obj.Count = 0
	}
	return obj
}

// show writes addresses and condition into the status of the object in memory and reports whether
// that changed anything.
func (o object) show(have []netip.Addr, ready topology.Gateways, b pendingBlocks, s supply) (changed bool, now metav1.Condition) {
	switch obj := o.Object.(type) {
	case *submarinerv1.ClusterGlobalEgressIP:
		now = egressCondition(o.refused, o.Count, have, b, s)
		changed = showEgress(&obj.Status, obj, have, now)
	case *submarinerv1.GlobalEgressIP:
		now = egressCondition(o.refused, o.Count, have, b, s)
		changed = showEgress(&obj.Status, obj, have, now)
	case *submarinerv1.GlobalIngressIP:
		was := meta.FindStatusCondition(obj.Status.Conditions, submarinerv1.ConditionAllocated)
		now = ingressCondition(have, obj.Status.AllocatedIP, was, ready, obj.UID, s)
		now.ObservedGeneration = obj.Generation
		changed = meta.SetStatusCondition(&obj.Status.Conditions, now)
		ip := ""
		if len(have) > 0 {
			ip = have[0].String()
		}
		changed = changed || obj.Status.AllocatedIP != ip
		obj.Status.AllocatedIP = ip
	}
	return changed, now
}

func showEgress(status *submarinerv1.GlobalEgressIPStatus, o client.Object, have []netip.Addr, now metav1.Condition) bool {
	var texts []string
	for _, ip := range have {
		texts = append(texts, ip.String())
	}
	changed := !slices.Equal(status.AllocatedIPs, texts)
	status.AllocatedIPs = texts
	now.ObservedGeneration = o.GetGeneration()
	changed = meta.SetStatusCondition(&status.Conditions, now) || changed
	if nat := natCondition(o.GetAnnotations()); nat != nil {
		nat.ObservedGeneration = o.GetGeneration()
		return meta.SetStatusCondition(&status.Conditions, *nat) || changed
	}
	return meta.RemoveStatusCondition(&status.Conditions, submarinerv1.ConditionNATBehavior) || changed
}
