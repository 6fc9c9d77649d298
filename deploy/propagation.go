package deploy

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// PropagationOptions are the choices of `pelago init` that the manifests depend on.
type PropagationOptions struct {
	// Workloads says that the API server runs workloads, pelago-hub among them.
	Workloads bool
	// Image and PullPolicy are those of pelago-hub; see MemberOptions.
	Image, PullPolicy string
}

func (o PropagationOptions) manifests() ([]*unstructured.Unstructured, error) {
	return PropagationManifests(MemberOptions{Image: o.Image, PullPolicy: o.PullPolicy}, o.Workloads)
}

// Propagation makes an API server a hub that propagates workloads, in this order: namespaces, which give no rights; CRDs,
// until they are served; admission policies, until each of them is seen to refuse; the rights of pelago-hub, and pelago-hub
// itself where pods run. It may be run again at any time, also by a newer version, and leads to the same state. The API server
// must be 1.31 or newer, and must not be Karmada's.
func Propagation(ctx context.Context, cfg *rest.Config, o PropagationOptions, progress Progress) error {
	c, err := newClient(cfg)
	if err != nil {
		return err
	}
	crds, err := PropagationCRDs()
	if err != nil {
		return err
	}
	objs, err := o.manifests()
	if err != nil {
		return err
	}
	stages := split(objs)
	progress("Creating namespaces")
	if err := applyAll(ctx, c, stages.base); err != nil {
		return err
	}
	progress("Installing %d custom resource definitions", len(crds))
	if err := applyCRDs(ctx, c, crds, progress); err != nil {
		return err
	}
	progress("Installing admission policies")
	if err := applyAll(ctx, c, stages.policies); err != nil {
		return err
	}
	progress("Waiting until every admission policy refuses what it should")
	if err := awaitPolicies(ctx, propagationCanaries(c)); err != nil {
		return err
	}
	if o.Workloads {
		progress("Granting rights to pelago-hub and starting it")
	} else {
		progress("Granting rights to pelago-hub")
	}
	return applyAll(ctx, c, stages.rest)
}

// hubCanary is what the policies of Propagation refuse to everybody. It is not canary, which the broker's refuse: an answer
// names one policy alone.
const hubCanary = "pelago-hub-canary"

// propagationCanaries holds a forbidden request for each policy of Propagation, by the policy's name.
func propagationCanaries(c client.Client) map[string]func(context.Context) error {
	create := func(apiVersion, kind string, spec map[string]any) func(context.Context) error {
		return func(ctx context.Context) error {
			u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind,
				"metadata": map[string]any{"name": hubCanary, "namespace": SystemNamespace}}}
			if spec != nil {
				u.Object["spec"] = spec
			}
			return c.Create(ctx, u, client.DryRunAll)
		}
	}
	return map[string]func(context.Context) error{
		"pelago-permanent-ids": create("policy.karmada.io/v1alpha1", "PropagationPolicy", map[string]any{
			"resourceSelectors": []any{map[string]any{"apiVersion": "v1", "kind": "ConfigMap"}}}),
		"pelago-deletion-protected": create("v1", "ConfigMap", nil),
	}
}
