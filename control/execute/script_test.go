package execute

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/test/script"
)

// TestScripts: a step has a Work of the hub, and the object as the member has it. The output is
// what is sent to the member, or that the member has it already.
func TestScripts(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := workv1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	script.Run(t, scheme, nil, func(t *testing.T, w *script.World) func() string {
		in := kinds.New()
		return func() string {
			var works workv1alpha1.WorkList
			w.List(&works)
			var out strings.Builder
			for i := range works.Items {
				out.WriteString(sent(t, w, in, &works.Items[i]))
			}
			return out.String()
		}
	})
}

// sent is what is sent of one Work.
func sent(t *testing.T, w *script.World, in *kinds.Interpreter, work *workv1alpha1.Work) string {
	t.Helper()
	var out strings.Builder
	for _, m := range manifestsOf(work) {
		out.WriteString(sentOf(t, w, in, work, m))
	}
	return out.String()
}

// sentOf is what is sent of one manifest.
func sentOf(t *testing.T, w *script.World, in *kinds.Interpreter, work *workv1alpha1.Work, m manifest) string {
	t.Helper()
	if m.err != nil {
		return "# error: " + m.err.Error() + "\n"
	}
	u := m.object
	want, err := desiredOf(u, work, "hub", in)
	if err != nil {
		return "# error: " + err.Error() + "\n"
	}
	have := &unstructured.Unstructured{}
	have.SetGroupVersionKind(u.GroupVersionKind())
	switch err := w.Get(t.Context(), client.ObjectKeyFromObject(u), have); {
	case apierrors.IsNotFound(err):
		have = nil
	case err != nil:
		t.Fatal(err)
	}
	set, err := applySet(in, want, have, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	if have != nil && contains(set.Object, have.Object) {
		return "# the member has it\n"
	}
	return script.YAML(t, set.Object)
}
