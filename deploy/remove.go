package deploy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// removeTimeout bounds the wait until the system namespace is gone.
const removeTimeout = 2 * time.Minute

// StopMember ends the agent in all its roles and the DNS server, and has the node daemon's pods take everything off their
// nodes that the
// daemon has put there. Nodes that are not clean after the timeout, because they are away, are reported as progress, not
// as an error.
func StopMember(ctx context.Context, cfg *rest.Config, timeout time.Duration, progress Progress) error {
	c, err := newClient(cfg)
	if err != nil {
		return err
	}
	progress("Stopping the agent and the DNS server")
	for _, name := range []string{ExecutionDeployment, AgentDeployment, DNSDeployment} {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: SystemNamespace}}
		if err := c.Delete(ctx, d, client.PropagationPolicy(metav1.DeletePropagationForeground)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete Deployment %s: %w", name, err)
		}
	}
	progress("Cleaning the nodes")
	return cleanNodes(ctx, c, timeout, progress)
}

// cleanNodes makes the node daemon's pods clean their nodes, one time, and waits for them.
func cleanNodes(ctx context.Context, c client.Client, timeout time.Duration, progress Progress) error {
	key := client.ObjectKey{Namespace: SystemNamespace, Name: NodeDaemonSet}
	have := &appsv1.DaemonSet{}
	if err := c.Get(ctx, key, have); err != nil {
		return client.IgnoreNotFound(err)
	}
	want, err := cleaner(MemberOptions{Image: have.Spec.Template.Spec.Containers[0].Image,
		PullPolicy: string(have.Spec.Template.Spec.Containers[0].ImagePullPolicy)})
	if err != nil {
		return err
	}
	if err := apply(ctx, c, want); err != nil {
		return err
	}
	err = wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, timeout, true, func(ctx context.Context) (bool, error) {
		if err := c.Get(ctx, key, have); err != nil {
			return false, nil // asked again until the time is over
		}
		s := have.Status
		return s.ObservedGeneration >= have.Generation && s.UpdatedNumberScheduled >= s.DesiredNumberScheduled && s.NumberReady >= s.DesiredNumberScheduled, nil
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		s := have.Status
		progress("After %s only %d of %d nodes are clean: restart the others, or run `pelago-node cleanup` there",
			timeout, min(s.NumberReady, s.UpdatedNumberScheduled), s.DesiredNumberScheduled)
		return nil
	}
	return err
}

// cleaner is the DaemonSet of the node daemon with pods that clean the node and then wait for their end.
func cleaner(o MemberOptions) (*unstructured.Unstructured, error) {
	objs, err := MemberManifests(o)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(objs, func(u *unstructured.Unstructured) bool { return u.GetKind() == "DaemonSet" })
	u := objs[i]
	containers, _, err := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers")
	if err != nil {
		return nil, fmt.Errorf("read the containers of DaemonSet %s: %w", NodeDaemonSet, err)
	}
	clean := containers[0].(map[string]any)
	delete(clean, "readinessProbe")
	delete(clean, "livenessProbe") // init containers have none
	delete(clean, "ports")
	rest := map[string]any{"name": clean["name"], "image": clean["image"], "imagePullPolicy": clean["imagePullPolicy"],
		"command": []any{"sleep", "86400"}}
	clean["name"], clean["args"] = "clean", []any{"cleanup"}
	err = errors.Join(
		unstructured.SetNestedSlice(u.Object, []any{clean}, "spec", "template", "spec", "initContainers"),
		unstructured.SetNestedSlice(u.Object, []any{rest}, "spec", "template", "spec", "containers"),
		unstructured.SetNestedField(u.Object, "100%", "spec", "updateStrategy", "rollingUpdate", "maxUnavailable"),
	)
	return u, err
}

// RemoveMember deletes what Member, Execution and MemberBase made, but for the CRDs: deleting one deletes all objects of its kind,
// and other software may use them.
func RemoveMember(ctx context.Context, cfg *rest.Config, progress Progress) error {
	c, err := newClient(cfg)
	if err != nil {
		return err
	}
	objs, err := MemberManifests(MemberOptions{})
	if err != nil {
		return err
	}
	execution, err := ExecutionManifests(MemberOptions{})
	if err != nil {
		return err
	}
	objs = append(objs, execution...)
	err = c.Get(ctx, client.ObjectKey{Namespace: SystemNamespace, Name: HubName}, new(corev1.ServiceAccount))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get ServiceAccount %s/%s: %w", SystemNamespace, HubName, err)
	}
	hub := err == nil
	if hub {
		objs = slices.DeleteFunc(objs, func(u *unstructured.Unstructured) bool { return u.GetKind() == "Namespace" })
	}
	progress("Removing workloads and rights")
	if err := deleteAll(ctx, c, objs, metav1.DeletePropagationForeground); err != nil {
		return err
	}
	if hub {
		progress("Namespace %s stays: this cluster is a hub as well", SystemNamespace)
		return nil
	}
	progress("Waiting until namespace %s is gone", SystemNamespace)
	err = wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, removeTimeout, true, func(ctx context.Context) (bool, error) {
		err := c.Get(ctx, client.ObjectKey{Name: SystemNamespace}, new(corev1.Namespace))
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
	if err != nil {
		return fmt.Errorf("wait until namespace %s is gone: %w: see what is left in it with `kubectl -n %s get all`", SystemNamespace, err, SystemNamespace)
	}
	return nil
}

// deleteAll deletes all objects, the last first, and reports every failure.
func deleteAll(ctx context.Context, c client.Client, objs []*unstructured.Unstructured, how metav1.DeletionPropagation) error {
	var errs []error
	for _, u := range slices.Backward(objs) {
		if err := c.Delete(ctx, u, client.PropagationPolicy(how)); client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("delete %s %s: %w", u.GetKind(), name(u), err))
		}
	}
	return errors.Join(errs...)
}
