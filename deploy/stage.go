package deploy

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// stages are manifests in the order in which they are applied.
type stages struct {
	// base holds namespaces and ServiceAccounts, which give no rights.
	base []*unstructured.Unstructured
	// policies holds admission policies and their bindings.
	policies []*unstructured.Unstructured
	// rest holds rights and workloads.
	rest []*unstructured.Unstructured
}

func split(objs []*unstructured.Unstructured) stages {
	var s stages
	for _, u := range objs {
		switch u.GetKind() {
		case "Namespace", "ServiceAccount":
			s.base = append(s.base, u)
		case "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding":
			s.policies = append(s.policies, u)
		default:
			s.rest = append(s.rest, u)
		}
	}
	return s
}

// applyAll applies all objects and reports every failure.
func applyAll(ctx context.Context, c client.Client, objs []*unstructured.Unstructured) error {
	var errs []error
	for _, u := range objs {
		errs = append(errs, apply(ctx, c, u))
	}
	return errors.Join(errs...)
}
