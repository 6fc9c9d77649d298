package member

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// PushAccount is the account by which a hub writes a push member.
type PushAccount struct {
	// Cluster is the id of the member, HubID that of the hub.
	Cluster, HubID string
}

// name is that of the ServiceAccount and of the Secret with its token, in the namespace
// karmada-cluster of the member.
func (a PushAccount) name() string { return "karmada-" + a.Cluster }

// Manifests is what Install applies, each object with the hub's id.
func (a PushAccount) Manifests() ([]*unstructured.Unstructured, error) {
	return manifests.Objects(map[string]any{"Account": a.name(), "Role": "karmada-controller-manager:" + a.name(), "HubID": a.HubID}, "push/*.yaml")
}

// Install makes the account in the member and returns its token and the CA of the member's API
// server, PEM. What exists and does not carry the hub's id is another's: the namespace is shared,
// anything else refused.
func (a PushAccount) Install(ctx context.Context, c client.Client, progress manifests.Progress) (token, ca []byte, err error) {
	objs, err := a.Manifests()
	if err != nil {
		return nil, nil, err
	}
	var want []*unstructured.Unstructured
	for _, u := range objs {
		owner, exists, err := hubOf(ctx, c, u)
		if err != nil {
			return nil, nil, err
		}
		switch {
		case !exists || owner == a.HubID:
			want = append(want, u)
		case u.GetKind() == "Namespace":
		default:
			return nil, nil, fmt.Errorf("%s %s in the member belongs to another hub (%s is %q): remove the cluster from that hub first, "+
				"or join it under another name",
				u.GetKind(), manifests.Title(client.ObjectKeyFromObject(u)), pelagov1alpha1.AnnotationHubID, owner)
		}
	}
	progress("Making ServiceAccount %s/%s in the member", clusterv1alpha1.SecretNamespace, a.name())
	if err := manifests.ApplyAll(ctx, c, want); err != nil {
		return nil, nil, err
	}
	return manifests.AccountToken(ctx, c, client.ObjectKey{Namespace: clusterv1alpha1.SecretNamespace, Name: a.name()})
}

// Remove deletes what Install has made: the token is worth nothing from then on. The namespace goes
// if Install made it and no other account is left in it.
func (a PushAccount) Remove(ctx context.Context, c client.Client, progress manifests.Progress) error {
	objs, err := a.Manifests()
	if err != nil {
		return err
	}
	var ours []*unstructured.Unstructured
	for _, u := range objs {
		owner, exists, err := hubOf(ctx, c, u)
		if err != nil {
			return err
		}
		if !exists || owner != a.HubID {
			continue
		}
		if u.GetKind() == "Namespace" {
			others, err := a.others(ctx, c)
			if err != nil {
				return err
			}
			if others {
				continue
			}
		}
		ours = append(ours, u)
	}
	progress("Removing ServiceAccount %s/%s and its rights from the member", clusterv1alpha1.SecretNamespace, a.name())
	return manifests.DeleteAll(ctx, c, ours, metav1.DeletePropagationBackground)
}

// others reports whether the namespace karmada-cluster of the member holds other accounts.
func (a PushAccount) others(ctx context.Context, c client.Client) (bool, error) {
	list := &corev1.ServiceAccountList{}
	if err := c.List(ctx, list, client.InNamespace(clusterv1alpha1.SecretNamespace)); err != nil {
		return false, fmt.Errorf("list the ServiceAccounts of namespace %s: %w", clusterv1alpha1.SecretNamespace, err)
	}
	return slices.ContainsFunc(list.Items, func(s corev1.ServiceAccount) bool {
		return s.Name != a.name() && s.Name != "default"
	}), nil
}

// hubOf returns the id of the hub that an existing object belongs to.
func hubOf(ctx context.Context, c client.Client, u *unstructured.Unstructured) (hub string, exists bool, err error) {
	have := &metav1.PartialObjectMetadata{}
	have.SetGroupVersionKind(u.GroupVersionKind())
	err = c.Get(ctx, client.ObjectKeyFromObject(u), have)
	if client.IgnoreNotFound(err) != nil {
		return "", false, fmt.Errorf("get %s %s: %w", u.GetKind(), manifests.Title(client.ObjectKeyFromObject(u)), err)
	}
	return have.Annotations[pelagov1alpha1.AnnotationHubID], err == nil, nil
}
