package binding

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/control/kube"
)

// Manager is the field manager of control/hub/propagate in bindings.
const Manager = "pelago-hub"

// runOnce are the kinds whose objects run again when they are recreated under the same name. For
// all other kinds, an update in place has the same result.
var runOnce = []schema.GroupKind{{Group: "batch", Kind: "Job"}, {Kind: "Pod"}}

// Replaced reports whether the template of a binding is a Job or Pod that was deleted and
// recreated; uid is the UID of the new object. In a hub that was restored with new UIDs, the UIDs
// differ too, but the template is the same and must not run again. Timestamps cannot tell these
// cases apart: an import may create bindings before templates. The managed fields can: the importer
// is the manager of the recorded UID until control/hub/propagate has written another one. In a hub
// that was Karmada's, Karmada's components have written it.
func Replaced(ctx context.Context, live client.Reader, b Binding, uid types.UID) (bool, error) {
	ref := b.Spec.Resource
	kind := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).GroupKind()
	if ref.UID == "" || ref.UID == uid || !slices.Contains(runOnce, kind) {
		return false, nil
	}
	now := New(client.ObjectKeyFromObject(b)) // caches drop managed fields
	if err := live.Get(ctx, client.ObjectKeyFromObject(b), now.Object); err != nil {
		return false, fmt.Errorf("read %s, whose template has another UID: %w", b, err)
	}
	if now.GetUID() != b.GetUID() || now.Spec.Resource.UID != ref.UID {
		return false, kube.StaleCache(b.Object, b.GetResourceVersion(), now.GetResourceVersion())
	}
	return slices.ContainsFunc(now.GetManagedFields(), func(f metav1.ManagedFieldsEntry) bool {
		return (f.Manager == Manager || strings.HasPrefix(f.Manager, "karmada-")) && recordsUID(f.FieldsV1)
	}), nil
}

// recordsUID reports whether spec.resource.uid is among the fields.
func recordsUID(f *metav1.FieldsV1) bool {
	var fields struct {
		Spec struct {
			Resource map[string]json.RawMessage `json:"f:resource"`
		} `json:"f:spec"`
	}
	if f == nil || json.Unmarshal(f.GetRawBytes(), &fields) != nil {
		return false
	}
	_, ok := fields.Spec.Resource["f:uid"]
	return ok
}
