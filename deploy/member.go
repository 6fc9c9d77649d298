package deploy

import (
	"context"

	"k8s.io/client-go/rest"
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
