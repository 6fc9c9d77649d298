package broker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/spec"
)

// TokenLife is how long a member's token is valid unless it is renewed; the agent renews it.
const TokenLife = 7 * 24 * time.Hour

// AccountName is the ServiceAccount of a member at the hub.
func AccountName(clusterID string) string { return "cluster-" + clusterID }

// RegistrationName is the Secret at the hub to which a member's tokens are bound.
func RegistrationName(clusterID string) string { return AccountName(clusterID) + ".registration" }

// tokenRoleName is the Role and RoleBinding by which a member renews its token.
func tokenRoleName(clusterID string) string { return AccountName(clusterID) + ".token" }

// Identity creates the member's ServiceAccount and its registration Secret, and returns the
// Secret's UID: the proof with which, and only with which, the registration credential gets the
// member's token. The caller keeps it. If the Secret exists, known must be its UID (from an earlier
// call).
func Identity(ctx context.Context, hub client.Client, namespace, clusterID string, known types.UID) (types.UID, error) {
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{submarinerv1.LabelClusterID: clusterID}}
	}
	account := &corev1.ServiceAccount{ObjectMeta: meta(AccountName(clusterID))}
	if err := hub.Create(ctx, account); err != nil && !apierrors.IsAlreadyExists(err) {
		return "", fmt.Errorf("create ServiceAccount %s at the hub: %w", account.Name, err)
	}
	secret := &corev1.Secret{ObjectMeta: meta(RegistrationName(clusterID)), Type: pelagov1alpha1.SecretTypeRegistration}
	switch err := hub.Create(ctx, secret); {
	case err == nil:
		return secret.UID, nil
	case !apierrors.IsAlreadyExists(err):
		return "", fmt.Errorf("create Secret %s at the hub: %w", secret.Name, err)
	case known == "":
		return "", fmt.Errorf("cluster %q has been registered before and its credential is gone from Secret %s/submariner-broker-secret here: "+
			"restore that Secret, or run `pelago unjoin --clusterid %s` with an administrator's access to the hub, then join again",
			clusterID, manifests.SystemNamespace, clusterID)
	default:
		return known, nil
	}
}

// Token issues a token of the member. proof is what Identity returned.
func Token(ctx context.Context, hub client.Client, namespace, clusterID string, proof types.UID) (string, error) {
	token, err := issue(ctx, hub, namespace, AccountName(clusterID), TokenLife, &authenticationv1.BoundObjectReference{
		APIVersion: "v1", Kind: "Secret", Name: RegistrationName(clusterID), UID: proof,
	})
	if apierrors.IsConflict(err) {
		return "", fmt.Errorf("issue a token for ServiceAccount %s at the hub: cluster %q was registered again by another joiner: "+
			"choose another id, or run `pelago unjoin --clusterid %s` with an administrator's access to the hub, then join again: %w",
			AccountName(clusterID), clusterID, clusterID, err)
	}
	return token, wrap(err, "issue a token for ServiceAccount %s at the hub", AccountName(clusterID))
}

// issue requests a token of a ServiceAccount, bound to an object unless that is nil.
func issue(
	ctx context.Context, hub client.Client, namespace, name string, life time.Duration, bound *authenticationv1.BoundObjectReference,
) (string, error) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}
	seconds := int64(life / time.Second)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds, BoundObjectRef: bound}}
	err := hub.SubResource("token").Create(ctx, account, request)
	return request.Status.Token, err
}

// Member is what is published of a cluster.
type Member struct {
	Entry
	// PodCIDR holds the ranges of hosts outside the cluster as well, where they are routed.
	PodCIDR, ServiceCIDR []netip.Prefix
	// Needed are addresses that the cluster works by: other clusters get no range with one of them.
	Needed []netip.Addr
	// Fabric is the clusterset's.
	Fabric netip.Prefix
	// NetworkOnly: the hub refuses to register the cluster for workloads.
	NetworkOnly bool
	// Unapproved: no other cluster connects to it before an administrator of the hub accepts it.
	Unapproved bool
}

// Admit publishes the cluster and gives its ServiceAccount a member's rights, which end when the
// Cluster object is deleted.
func Admit(ctx context.Context, hub client.Client, namespace string, m Member) error {
	cluster, err := publish(ctx, hub, namespace, m)
	if err != nil {
		return err
	}
	id := m.ClusterID
	owner := []metav1.OwnerReference{{
		APIVersion: submarinerv1.GroupVersion.String(), Kind: "Cluster", Name: cluster.Name, UID: cluster.UID,
	}}
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, Namespace: namespace, OwnerReferences: owner,
			Labels: map[string]string{submarinerv1.LabelClusterID: id}}
	}
	bind := func(name, role string) *rbacv1.RoleBinding {
		return &rbacv1.RoleBinding{ObjectMeta: meta(name),
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: AccountName(id), Namespace: namespace}}}
	}
	objs := []client.Object{
		&rbacv1.Role{ObjectMeta: meta(tokenRoleName(id)), Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{""}, Resources: []string{"serviceaccounts/token"}, Verbs: []string{"create"}, ResourceNames: []string{AccountName(id)},
		}}},
		bind(tokenRoleName(id), tokenRoleName(id)),
	}
	if !m.WorkloadsOnly { // which neither reads nor writes what the network exchanges
		objs = append(objs, bind(AccountName(id), manifests.MemberRole))
	}
	for _, obj := range objs {
		if err := createOwned(ctx, hub, obj, cluster.UID); err != nil {
			return fmt.Errorf("create %s %s at the hub: %w", manifests.Kind(hub, obj), obj.GetName(), err)
		}
	}
	return nil
}

// createOwned creates an object, or accepts an existing one with an owner reference to the same
// Cluster. If it is owned by an earlier Cluster with that name, createOwned waits until the garbage
// collector has deleted it.
func createOwned(ctx context.Context, hub client.Client, obj client.Object, owner types.UID) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return wait.PollUntilContextCancel(ctx, 500*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		err := hub.Create(ctx, obj.DeepCopyObject().(client.Object))
		if !apierrors.IsAlreadyExists(err) {
			return err == nil, err
		}
		have := obj.DeepCopyObject().(client.Object)
		if err := hub.Get(ctx, client.ObjectKeyFromObject(obj), have); err != nil {
			return false, client.IgnoreNotFound(err)
		}
		return slices.ContainsFunc(have.GetOwnerReferences(), func(r metav1.OwnerReference) bool { return r.UID == owner }), nil
	})
}

// publish creates the Cluster object, or finds it as it should be.
func publish(ctx context.Context, hub client.Client, namespace string, m Member) (*submarinerv1.Cluster, error) {
	want := &submarinerv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{
			Name: m.ClusterID, Namespace: namespace,
			Labels: map[string]string{submarinerv1.LabelClusterID: m.ClusterID},
			Annotations: map[string]string{
				pelagov1alpha1.AnnotationClusterUID: m.ClusterUID, pelagov1alpha1.AnnotationClusterIndex: strconv.Itoa(m.ClusterIndex),
			},
		},
		Spec: submarinerv1.ClusterSpec{
			ClusterID:        m.ClusterID,
			GlobalCIDR:       texts(m.GlobalCIDR),
			ClusterCIDR:      texts(m.PodCIDR),
			ServiceCIDR:      texts(m.ServiceCIDR),
			ClusterSetIPCIDR: texts(m.ClusterSetIPCIDR),
		},
	}
	if len(m.Needed) > 0 {
		want.Annotations[pelagov1alpha1.AnnotationNeeded] = addressTexts(m.Needed)
	}
	if m.Unapproved {
		want.Annotations[pelagov1alpha1.AnnotationUnapproved] = "true"
	}
	if m.NetworkOnly {
		want.Annotations[pelagov1alpha1.AnnotationNetworkOnly] = "true"
	}
	if m.WorkloadsOnly {
		want.Annotations[pelagov1alpha1.AnnotationWorkloadsOnly] = "true"
	} else {
		fabric, err := config.FabricPrefix(m.Fabric, uint16(m.ClusterIndex))
		if err != nil {
			return nil, fmt.Errorf("publish cluster %q: %w", m.ClusterID, err)
		}
		want.Annotations[pelagov1alpha1.AnnotationFabricCIDR] = fabric.String()
	}
	err := hub.Create(ctx, want)
	if err == nil {
		return want, nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create Cluster %s at the hub: %w", m.ClusterID, err)
	}
	var changed *submarinerv1.Cluster
	err = retry.RetryOnConflict(retry.DefaultRetry, func() (err error) {
		changed, err = republish(ctx, hub, want)
		return err
	})
	return changed, err
}

// republish updates a registered Cluster: its ranges of pods and services may grow, and the
// addresses that it needs may change. All else is as it was registered.
func republish(ctx context.Context, hub client.Client, want *submarinerv1.Cluster) (*submarinerv1.Cluster, error) {
	id := want.Name
	have := &submarinerv1.Cluster{}
	if err := hub.Get(ctx, client.ObjectKeyFromObject(want), have); err != nil {
		return nil, fmt.Errorf("get Cluster %s at the hub: %w", id, err)
	}
	unjoin := fmt.Sprintf("remove it first with `pelago unjoin --clusterid %s`", id)
	if uid := have.Annotations[pelagov1alpha1.AnnotationClusterUID]; uid != want.Annotations[pelagov1alpha1.AnnotationClusterUID] {
		return nil, spec.Refuse("clusterID", "cluster id %q belongs to another cluster (its namespace kube-system has UID %s): choose another id, or %s", id, uid, unjoin)
	}
	for _, r := range []struct {
		field, name string
		have, want  []string
		grows       bool
	}{
		{"clusterCIDR", "ranges of pods and external hosts", have.Spec.ClusterCIDR, want.Spec.ClusterCIDR, true},
		{"serviceCIDR", "service ranges", have.Spec.ServiceCIDR, want.Spec.ServiceCIDR, true},
		{"globalCIDR", "GlobalCIDRs", have.Spec.GlobalCIDR, want.Spec.GlobalCIDR, false},
		{"clustersetIPCIDR", "ClusterSetIP ranges", have.Spec.ClusterSetIPCIDR, want.Spec.ClusterSetIPCIDR, false},
		{"", "fabric range", fabricOf(have), fabricOf(want), false},
	} {
		if slices.Equal(r.have, r.want) || r.grows && contain(r.want, r.have) {
			continue
		}
		remedy := "give the former"
		if r.grows {
			remedy = "give ranges that contain all of the former"
		}
		err := fmt.Errorf("cluster %q is registered with %s %v, not %v: %s, or %s", id, r.name, r.have, r.want, remedy, unjoin)
		if r.field == "" {
			return nil, err
		}
		return nil, spec.Within(r.field, err)
	}
	next := have.DeepCopy()
	next.Spec.ClusterCIDR, next.Spec.ServiceCIDR = want.Spec.ClusterCIDR, want.Spec.ServiceCIDR
	if needed, ok := want.Annotations[pelagov1alpha1.AnnotationNeeded]; ok {
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, pelagov1alpha1.AnnotationNeeded, needed)
	}
	if equality.Semantic.DeepEqual(have, next) {
		return have, nil
	}
	grown := !equality.Semantic.DeepEqual(have.Spec, next.Spec)
	switch err := hub.Update(ctx, next); {
	case err == nil:
		return next, nil
	case apierrors.IsForbidden(err) && !grown:
		return have, nil // a hub of a release that does not keep the addresses
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("update the ranges of Cluster %s at the hub: %w; if its release does not let ranges grow, run `pelago deploy-broker` there again", id, err)
	default:
		return nil, fmt.Errorf("update Cluster %s at the hub: %w", id, err)
	}
}

// contain reports whether each of the ranges lies in one of others.
func contain(others, ranges []string) bool {
	return !slices.ContainsFunc(ranges, func(text string) bool {
		r, err := netip.ParsePrefix(text)
		return err != nil || !slices.ContainsFunc(others, func(text string) bool {
			o, err := netip.ParsePrefix(text)
			return err == nil && o.Bits() <= r.Bits() && o.Contains(r.Addr())
		})
	})
}

// fabricOf is a Cluster's share of the fabric where it counts: with globalnet nothing is routed
// there.
func fabricOf(c *submarinerv1.Cluster) []string {
	if len(c.Spec.GlobalCIDR) > 0 {
		return nil
	}
	return []string{c.Annotations[pelagov1alpha1.AnnotationFabricCIDR]}
}

func addressTexts(addresses []netip.Addr) string {
	var out []string
	for _, a := range addresses {
		out = append(out, a.String())
	}
	return strings.Join(out, ",")
}

func texts(prefixes []netip.Prefix) []string {
	var out []string
	for _, p := range prefixes {
		out = append(out, p.String())
	}
	return out
}

// WorkloadsOnly reports whether a cluster has joined with --workloads-only.
func WorkloadsOnly(ctx context.Context, hub client.Client, clusterID string) (bool, error) {
	c := &submarinerv1.Cluster{}
	err := hub.Get(ctx, client.ObjectKey{Namespace: manifests.BrokerNamespace, Name: clusterID}, c)
	// without the kind there is no broker
	if client.IgnoreNotFound(err) != nil && !meta.IsNoMatchError(err) {
		return false, fmt.Errorf("get Cluster %s at the hub: %w", clusterID, err)
	}
	return c.Annotations[pelagov1alpha1.AnnotationWorkloadsOnly] == "true", nil
}

// NetworkOnly reports whether a cluster has joined with --network-only: the hub refuses its
// workloads.
func NetworkOnly(ctx context.Context, hub client.Client, namespace, clusterID string) (bool, error) {
	return marked(ctx, hub, namespace, clusterID, pelagov1alpha1.AnnotationNetworkOnly)
}

// Unapproved reports whether an administrator of the hub has to accept a registered cluster before
// others connect to it.
func Unapproved(ctx context.Context, hub client.Client, namespace, clusterID string) (bool, error) {
	return marked(ctx, hub, namespace, clusterID, pelagov1alpha1.AnnotationUnapproved)
}

// marked reports whether an annotation of a registered cluster is "true".
func marked(ctx context.Context, hub client.Client, namespace, clusterID, annotation string) (bool, error) {
	c := &submarinerv1.Cluster{}
	if err := hub.Get(ctx, client.ObjectKey{Namespace: namespace, Name: clusterID}, c); err != nil {
		return false, fmt.Errorf("get Cluster %s at the hub: %w", clusterID, err)
	}
	return c.Annotations[annotation] == "true", nil
}

// Unregister removes everything that the hub holds of a cluster. It needs an administrator's
// access. Rights go first, so that the member cannot write again what is being removed; the entry
// in the book goes last, so that the ranges are not allocated while objects name them.
func Unregister(ctx context.Context, hub client.Client, namespace, clusterID string) error {
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name, Namespace: namespace} }
	for _, obj := range []client.Object{
		&rbacv1.RoleBinding{ObjectMeta: meta(AccountName(clusterID))},
		&rbacv1.RoleBinding{ObjectMeta: meta(tokenRoleName(clusterID))},
		&rbacv1.Role{ObjectMeta: meta(tokenRoleName(clusterID))},
		&corev1.Secret{ObjectMeta: meta(RegistrationName(clusterID))},
		&corev1.ServiceAccount{ObjectMeta: meta(AccountName(clusterID))},
		&coordinationv1.Lease{ObjectMeta: meta(AccountName(clusterID))},
	} {
		if err := client.IgnoreNotFound(hub.Delete(ctx, obj)); err != nil {
			return wrap(err, "delete %s %s at the hub", manifests.Kind(hub, obj), obj.GetName())
		}
	}
	var errs []error
	for _, obj := range []client.Object{
		&submarinerv1.Endpoint{}, &pelagov1alpha1.ServiceContribution{}, &discoveryv1.EndpointSlice{}, &submarinerv1.Cluster{},
	} {
		err := hub.DeleteAllOf(ctx, obj, client.InNamespace(namespace), client.MatchingLabels{submarinerv1.LabelClusterID: clusterID})
		errs = append(errs, wrap(err, "delete the %s objects of cluster %q at the hub", manifests.Kind(hub, obj), clusterID))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return Release(ctx, hub, namespace, clusterID)
}
