package manifests

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/semver"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcscrd "sigs.k8s.io/mcs-api/config/crd"
)

// crdRevision counts the changes of the definitions in crds/ since the first release. Raise it with
// every change of a field, so that an older tool leaves the newer definitions alone.
const crdRevision = 7

// LabelCRDRevision marks a CRD as ours and holds the revision of the tool that wrote it, decimal.
const LabelCRDRevision = "pelago.io/crd-revision"

// crdTimeout bounds the wait for a CRD to be served.
const crdTimeout = 2 * time.Minute

// applyCRDs installs the definitions that are absent or older, and waits until all of them are
// served. A definition of another tool stays as it is, with one exception: an older release of the
// MCS API that carries its project's release label, which exists for that purpose.
func applyCRDs(ctx context.Context, c client.Client, crds []*unstructured.Unstructured, progress Progress) error {
	var errs []error
	for _, crd := range crds {
		own(crd)
		have := new(apiextensionsv1.CustomResourceDefinition)
		err := c.Get(ctx, client.ObjectKeyFromObject(crd), have)
		switch {
		case apierrors.IsNotFound(err):
			errs = append(errs, Apply(ctx, c, crd))
		case err != nil:
			errs = append(errs, fmt.Errorf("get CRD %s: %w", crd.GetName(), err))
		case replaces(have.Labels, crd.GetLabels()):
			errs = append(errs, Apply(ctx, c, crd))
		default:
			progress("CRD %s is kept as it is: another tool or a newer version installed it", crd.GetName())
			want := new(apiextensionsv1.CustomResourceDefinition)
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(crd.Object, want); err != nil {
				errs = append(errs, fmt.Errorf("read CRD %s: %w", crd.GetName(), err))
			} else if fields := pruned(have, want); len(fields) > 0 {
				progress("warning: CRD %s does not know %s: what needs them has no effect; upgrade it with the tool that installed it",
					crd.GetName(), strings.Join(fields, ", "))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, crd := range crds {
		if err := established(ctx, c, crd.GetName()); err != nil {
			return err
		}
	}
	return nil
}

// pruned returns the fields of a wanted definition that the installed one lacks, in the versions
// that both have: the API server prunes unknown fields from objects.
func pruned(have, want *apiextensionsv1.CustomResourceDefinition) []string {
	var out []string
	for _, h := range have.Spec.Versions {
		for _, w := range want.Spec.Versions {
			if h.Name != w.Name || !h.Served || h.Schema == nil || w.Schema == nil {
				continue
			}
			out = append(out, missing(*h.Schema.OpenAPIV3Schema, *w.Schema.OpenAPIV3Schema, "")...)
			if w.Subresources != nil && w.Subresources.Status != nil && (h.Subresources == nil || h.Subresources.Status == nil) {
				out = append(out, "subresource status")
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// missing returns the paths of the properties of a schema that another lacks; path is its own.
func missing(have, want apiextensionsv1.JSONSchemaProps, path string) (out []string) {
	if ptr.Deref(have.XPreserveUnknownFields, false) || have.AdditionalProperties != nil {
		return nil
	}
	for name, w := range want.Properties {
		h, ok := have.Properties[name]
		switch {
		case path == "" && slices.Contains([]string{"apiVersion", "kind", "metadata"}, name):
			// known of every kind
		case !ok:
			out = append(out, path+name)
		default:
			out = append(out, missing(h, w, path+name+".")...)
		}
	}
	if have.Items != nil && want.Items != nil && have.Items.Schema != nil && want.Items.Schema != nil {
		out = append(out, missing(*have.Items.Schema, *want.Items.Schema, path)...)
	}
	return out
}

// own labels a definition as installed by us.
func own(crd *unstructured.Unstructured) {
	labels := crd.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[LabelCRDRevision] = strconv.Itoa(crdRevision)
	crd.SetLabels(labels)
}

// replaces reports whether a CRD with the labels want may be applied over one with the labels have.
func replaces(have, want map[string]string) bool {
	if release := want[mcscrd.ReleaseVersionLabel]; release != "" {
		return olderMCS(have, want) || (have[LabelCRDRevision] != "" && sameMCS(have, want))
	}
	revision, err := strconv.Atoi(have[LabelCRDRevision])
	return err == nil && revision <= crdRevision
}

// olderMCS reports whether the release and revision labels of the MCS API rise from have to want.
func olderMCS(have, want map[string]string) bool {
	installed := have[mcscrd.ReleaseVersionLabel]
	if !semver.IsValid(installed) {
		return false
	}
	order := semver.Compare(installed, want[mcscrd.ReleaseVersionLabel])
	return order < 0 || (order == 0 && schemaRevision(have) < schemaRevision(want))
}

func sameMCS(have, want map[string]string) bool {
	return have[mcscrd.ReleaseVersionLabel] == want[mcscrd.ReleaseVersionLabel] && schemaRevision(have) == schemaRevision(want)
}

func schemaRevision(labels map[string]string) int {
	n, err := strconv.Atoi(labels[mcscrd.CustomResourceDefinitionSchemaRevisionLabel])
	if err != nil {
		return 0
	}
	return n
}

// established waits until the API server serves the kind.
func established(ctx context.Context, c client.Client, name string) error {
	err := poll(ctx, 50*time.Millisecond, crdTimeout, func(ctx context.Context) error {
		crd := new(apiextensionsv1.CustomResourceDefinition)
		if err := c.Get(ctx, client.ObjectKey{Name: name}, crd); err != nil {
			return err
		}
		missing := errors.New("condition Established is not true")
		for _, condition := range crd.Status.Conditions {
			if condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue {
				return nil
			}
			if condition.Type == apiextensionsv1.NamesAccepted && condition.Status == apiextensionsv1.ConditionFalse {
				missing = fmt.Errorf("names not accepted: %s", condition.Message)
			}
		}
		return missing
	})
	if err != nil {
		return fmt.Errorf("wait until CRD %s is served: %w", name, err)
	}
	return nil
}
