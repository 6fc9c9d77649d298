package migrate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/deploy/manifests"
)

// Promotion is what makes an object of a cluster a template at the hub.
type Promotion struct {
	// Needs are what the template is to find at the hub: its namespace, what it refers to.
	Needs            []*unstructured.Unstructured
	Policy, Template *unstructured.Unstructured // Policy nil: the template needs none
}

// Promote creates first what the template needs, then the policy, then the template, an object of a
// cluster, at the hub, with owner as the field manager: without its policy, another one could claim
// the template. Existing identical objects are accepted, so that an interrupted run can be repeated;
// one that differs is an error before anything is created, because the policy would make it
// overwrite the cluster's object.
func Promote(ctx context.Context, hub client.Client, owner client.FieldOwner, p Promotion, out io.Writer) error {
	objects := p.Needs
	if p.Policy != nil {
		objects = append(objects, p.Policy)
	}
	objects = append(objects, p.Template)
	there := map[*unstructured.Unstructured]bool{}
	for _, x := range objects {
		if have, err := holds(ctx, hub, owner, x); err != nil {
			return err
		} else if have {
			there[x] = true
		}
	}
	for _, x := range objects {
		if there[x] {
			fmt.Fprintf(out, "%s unchanged\n", titleOf(x))
			continue
		}
		if err := hub.Create(ctx, x, owner); err != nil {
			err = fmt.Errorf("create %s at the hub: %w: remove the cause, and run the command again", titleOf(x), err)
			if x == p.Template && p.Policy != nil && !there[p.Policy] { // else it would send whatever gets that name later
				if failed := hub.Delete(context.WithoutCancel(ctx), p.Policy); client.IgnoreNotFound(failed) != nil {
					err = errors.Join(err, fmt.Errorf("delete %s at the hub: %w", titleOf(p.Policy), failed))
				}
			}
			return err
		}
		fmt.Fprintf(out, "%s created\n", titleOf(x))
	}
	return nil
}

func titleOf(u *unstructured.Unstructured) string {
	return u.GetKind() + " " + manifests.Title(client.ObjectKeyFromObject(u))
}

// holds reports whether the hub has an object, and writing the wanted one would not change it.
// Another object of that name is an error.
func holds(ctx context.Context, hub client.Client, owner client.FieldOwner, want *unstructured.Unstructured) (bool, error) {
	have := &unstructured.Unstructured{}
	have.SetGroupVersionKind(want.GroupVersionKind())
	if err := hub.Get(ctx, client.ObjectKeyFromObject(want), have); apierrors.IsNotFound(err) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("get %s at the hub: %w", titleOf(want), err)
	}
	if have.GetDeletionTimestamp() != nil {
		return false, fmt.Errorf("%s at the hub is being deleted: run the command again when it is gone", titleOf(want))
	}
	next := want.DeepCopy()
	// the hub's controllers write there
	next.Object["metadata"] = have.DeepCopy().Object["metadata"]
	if status, ok := have.Object["status"]; ok {
		next.Object["status"] = status
	}
	next.SetLabels(merged(have.GetLabels(), want.GetLabels()))
	next.SetAnnotations(merged(have.GetAnnotations(), want.GetAnnotations()))
	// The server sets the defaults that the wanted object lacks.
	err := hub.Update(ctx, next, client.DryRunAll, owner)
	if err != nil && !apierrors.IsInvalid(err) {
		return false, fmt.Errorf("compare %s at the hub: %w", titleOf(want), err)
	}
	// these may change although the content does not
	for _, u := range []*unstructured.Unstructured{have, next} {
		u.SetManagedFields(nil)
		u.SetResourceVersion("")
	}
	if err != nil || !equality.Semantic.DeepEqual(have.Object, next.Object) {
		return false, fmt.Errorf("%s is at the hub already and differs, see `pelago promote … --dry-run -o yaml | kubectl diff -f -`: change it "+
			"accordingly, or delete it", titleOf(want))
	}
	return true, nil
}

// merged is a with the values of b.
func merged(a, b map[string]string) map[string]string {
	if len(b) == 0 {
		return a
	}
	out := maps.Clone(b)
	for key, value := range a {
		if _, ok := b[key]; !ok {
			out[key] = value
		}
	}
	return out
}
