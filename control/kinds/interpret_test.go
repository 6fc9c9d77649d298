package kinds

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// row is one case of testdata: an operation on an object, and what comes out of it.
type row struct {
	Name     string           `json:"name"`
	Do       string           `json:"do"`
	Object   map[string]any   `json:"object"`
	Observed map[string]any   `json:"observed"`
	Items    []item           `json:"items"`
	Number   int32            `json:"number"`
	Assigned map[string]int64 `json:"assigned"`
	Want     any              `json:"want"`
	Error    string           `json:"error"`
}

// item is what a cluster reflects.
type item struct {
	Cluster string         `json:"cluster"`
	Status  map[string]any `json:"status"`
}

// decodeYAML reads whole numbers as int64, as objects of the API are read.
func decodeYAML(t *testing.T, raw []byte, into any) {
	t.Helper()
	raw, err := yaml.YAMLToJSON(raw)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		t.Fatal(err)
	}
}

// plain brings a result into the form of what is read from YAML.
func plain(t *testing.T, v any) any {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var out any
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func (r *row) items(t *testing.T) []workv1alpha2.AggregatedStatusItem {
	t.Helper()
	var out []workv1alpha2.AggregatedStatusItem
	for _, i := range r.Items {
		x := workv1alpha2.AggregatedStatusItem{ClusterName: i.Cluster, Applied: true}
		if i.Status != nil {
			raw, err := json.Marshal(i.Status)
			if err != nil {
				t.Fatal(err)
			}
			x.Status = &runtime.RawExtension{Raw: raw}
		}
		out = append(out, x)
	}
	return out
}

func (r *row) run(t *testing.T) (any, error) {
	t.Helper()
	in, obj := New(), &unstructured.Unstructured{Object: r.Object}
	switch r.Do {
	case "prune":
		err := in.Prune(obj)
		return obj.Object, err
	case "retain":
		out, err := in.Retain(obj, &unstructured.Unstructured{Object: r.Observed})
		if err != nil {
			return nil, err
		}
		return out.Object, nil
	case "reflect":
		return in.ReflectStatus(obj)
	case "aggregate":
		return in.AggregateStatus(obj, r.items(t))
	case "health":
		return in.Health(obj)
	case "dependencies":
		refs, err := in.Dependencies(obj)
		var out []string
		for _, d := range refs {
			text := d.Kind + "/" + d.Name
			if d.APIVersion != "v1" {
				text = d.APIVersion + " " + text
			}
			if d.Namespace != obj.GetNamespace() {
				text = d.Namespace + " " + text
			}
			out = append(out, text)
		}
		return out, err
	case "replicas":
		n, each, ok, err := in.Replicas(obj)
		if !ok {
			return nil, err
		}
		return map[string]any{"replicas": n, "each": each}, err
	case "components":
		return componentsOf(in, obj)
	case "revise":
		err := in.Revise(obj, r.Number)
		return obj.Object, err
	case "completions":
		return Completions(obj, r.Assigned)
	case "set-completions":
		err := SetCompletions(obj, int64(r.Number))
		return obj.Object, err
	}
	t.Fatalf("no such operation: %s", r.Do)
	return nil, nil
}

func componentsOf(in *Interpreter, obj *unstructured.Unstructured) (any, error) {
	all, ok, err := in.Components(obj)
	if err == nil && !ok {
		err = errors.New("the kind has no components")
	}
	return all, err
}

func TestKinds(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no testdata: %v", err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var rows []row
		decodeYAML(t, raw, &rows)
		for _, r := range rows {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml")+"/"+r.Name, func(t *testing.T) {
				before := plain(t, r)
				got, err := r.run(t)
				if r.Error != "" {
					if err == nil || !strings.Contains(err.Error(), r.Error) {
						t.Fatalf("the error is %v, want one with %q", err, r.Error)
					}
					if r.Do != "health" {
						return
					}
				} else if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(r.Want, plain(t, got)); diff != "" {
					t.Errorf("-want +got\n%s", diff)
				}
				switch r.Do {
				case "prune", "revise", "set-completions":
				default:
					if diff := cmp.Diff(before, plain(t, r)); diff != "" {
						t.Errorf("the input was changed: -before +after\n%s", diff)
					}
				}
			})
		}
	}
}

// A template that has the aggregated status has nothing to be written: aggregation is in the form
// of the API server.
func TestAggregationIsStable(t *testing.T) {
	raw, err := os.ReadFile("testdata/aggregate.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var rows []row
	decodeYAML(t, raw, &rows)
	for _, r := range rows {
		if r.Error != "" || r.Want == nil {
			continue
		}
		obj := &unstructured.Unstructured{Object: r.Object}
		first, err := New().AggregateStatus(obj, r.items(t))
		if err != nil {
			t.Fatal(err)
		}
		obj.Object["status"] = first
		second, err := New().AggregateStatus(obj, r.items(t))
		if err != nil {
			t.Fatal(err)
		}
		if second == nil {
			continue // a finished Job
		}
		if diff := cmp.Diff(first, second); diff != "" {
			t.Errorf("%s: -first +second\n%s", r.Name, diff)
		}
	}
}

func TestSourcesGoBeforeWhatIsBuiltIn(t *testing.T) {
	web := schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}
	custom := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Farm"}
	in := New(
		func(gvk schema.GroupVersionKind) Kind {
			if gvk != web {
				return Kind{}
			}
			return Kind{Healthy: func(*unstructured.Unstructured) (bool, error) { return false, nil }}
		},
		func(gvk schema.GroupVersionKind) Kind {
			no := errors.New("no such field")
			return Kind{
				Healthy: func(*unstructured.Unstructured) (bool, error) { return true, no },
				Revise: func(obj *unstructured.Unstructured, n int32) error {
					return unstructured.SetNestedField(obj.Object, int64(n), "spec", "hens")
				},
			}
		},
	)
	object := func(gvk schema.GroupVersionKind) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: map[string]any{}}
		o.SetGroupVersionKind(gvk)
		o.SetNamespace("shop")
		o.SetName("x")
		return o
	}
	if h, err := in.Health(object(web)); h != workv1alpha2.ResourceUnhealthy || err != nil {
		t.Errorf("the first source says %s, %v", h, err)
	}
	h, err := in.Health(object(custom))
	if want := "read the health of Farm shop/x: no such field"; h != workv1alpha2.ResourceUnknown || err == nil || err.Error() != want {
		t.Errorf("an error gives %s, %v", h, err)
	}
	farm := object(custom)
	if err := in.Revise(farm, 7); err != nil {
		t.Fatal(err)
	}
	if n, _, err := unstructured.NestedInt64(farm.Object, "spec", "hens"); n != 7 || err != nil {
		t.Errorf("hens: %d, %v", n, err)
	}
	if n, _, ok, err := in.Replicas(object(web)); n != 1 || !ok || err != nil {
		t.Errorf("what no source knows is built in: %d %v %v", n, ok, err)
	}
}
