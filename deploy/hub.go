package deploy

import (
	"context"

	"k8s.io/client-go/rest"
)

// HubBase installs the namespace and the CRDs of the broker: what its ConfigMaps need to be written. It gives no
// rights.
func HubBase(ctx context.Context, cfg *rest.Config, progress Progress) error {
	c, err := newClient(cfg)
	if err != nil {
		return err
	}
	crds, err := HubCRDs()
	if err != nil {
		return err
	}
	objs, err := HubManifests()
	if err != nil {
		return err
	}
	progress("Creating namespace %s", BrokerNamespace)
	if err := applyAll(ctx, c, split(objs).base); err != nil {
		return err
	}
	progress("Installing %d custom resource definitions", len(crds))
	return applyCRDs(ctx, c, crds, progress)
}

// Hub installs the admission policies of the broker and, once each of them is seen to refuse, the rights of members
// and of the registration credential. HubBase must have been run, the ConfigMap submariner-globalnet-info must exist,
// and the API server must be 1.31 or newer (CEL functions of IP addresses).
func Hub(ctx context.Context, cfg *rest.Config, progress Progress) error {
	c, err := newClient(cfg)
	if err != nil {
		return err
	}
	objs, err := HubManifests()
	if err != nil {
		return err
	}
	progress("Installing admission policies")
	if err := applyAll(ctx, c, split(objs).policies); err != nil {
		return err
	}
	progress("Waiting until every admission policy refuses what it should")
	if err := awaitPolicies(ctx, brokerCanaries(c)); err != nil {
		return err
	}
	progress("Granting rights to members")
	return applyAll(ctx, c, split(objs).rest)
}
