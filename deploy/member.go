package deploy

import (
	"context"
	"errors"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// MemberOptions are the choices of `pelago join` that the manifests depend on.
type MemberOptions struct {
	// Image is run by all workloads; DefaultImage if empty.
	Image string
	// PullPolicy is Always, IfNotPresent or Never; IfNotPresent if empty.
	PullPolicy string
	// IKE adds the container of the IKE daemon to the node daemon's pods, for the cable driver libreswan.
	IKE bool
}

// values are what the templates are filled in with.
func (o MemberOptions) values() map[string]any {
	if o.Image == "" {
		o.Image = DefaultImage
	}
	if o.PullPolicy == "" {
		o.PullPolicy = "IfNotPresent"
	}
	return map[string]any{"Image": o.Image, "PullPolicy": o.PullPolicy, "IKE": o.IKE}
}

// MemberBase installs the namespace and the CRDs of a member: what its configuration and its secrets need to be
// written.
func MemberBase(ctx context.Context, cfg *rest.Config, progress Progress) error {
	c, err := newClient(cfg)
	if err != nil {
		return err
	}
	crds, err := MemberCRDs()
	if err != nil {
		return err
	}
	objs, err := MemberManifests(MemberOptions{})
	if err != nil {
		return err
	}
	progress("Creating namespace %s", SystemNamespace)
	if err := applyAll(ctx, c, split(objs).base); err != nil {
		return err
	}
	progress("Installing %d custom resource definitions", len(crds))
	return applyCRDs(ctx, c, crds, progress)
}

// Execution installs the part of the agent that runs what the hub propagates, with its rights. Member must have been run.
func Execution(ctx context.Context, cfg *rest.Config, o MemberOptions, progress Progress) error {
	c, err := newClient(cfg)
	if err != nil {
		return err
	}
	objs, err := ExecutionManifests(o)
	if err != nil {
		return err
	}
	progress("Installing what runs the hub's workloads")
	return applyAll(ctx, c, objs)
}

// RemoveExecution takes away what Execution has installed; its rights end at once. What the hub has propagated stays.
func RemoveExecution(ctx context.Context, cfg *rest.Config, progress Progress) error {
	c, err := newClient(cfg)
	if err != nil {
		return err
	}
	objs, err := ExecutionManifests(MemberOptions{})
	if err != nil {
		return err
	}
	have := &appsv1.Deployment{}
	err = c.Get(ctx, client.ObjectKey{Namespace: SystemNamespace, Name: ExecutionDeployment}, have)
	if err == nil {
		progress("Removing what runs the hub's workloads; the workloads stay")
	}
	return errors.Join(client.IgnoreNotFound(err), deleteAll(ctx, c, objs, metav1.DeletePropagationBackground))
}

// Member installs the rights and the workloads of a member. MemberBase must have been run.
func Member(ctx context.Context, cfg *rest.Config, o MemberOptions, progress Progress) error {
	c, err := newClient(cfg)
	if err != nil {
		return err
	}
	objs, err := MemberManifests(o)
	if err != nil {
		return err
	}
	progress("Installing rights and workloads (image %s)", o.values()["Image"])
	return applyAll(ctx, c, split(objs).rest)
}
