package view

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
)

// hubColumn stands for the hub in the column CLUSTER: no cluster can have this name.
const hubColumn = "(hub)"

// Listing are the objects of one cluster, in the columns of its API server.
type Listing struct {
	Cluster string // "": the hub
	Table   metav1.Table
	Works   *workv1alpha1.WorkList // of a cluster without access, instead of Table
	// watch calls changed with each object that changes after the list, as a list of one object, until
	// the context ends.
	watch func(ctx context.Context, changed func(Listing) error) error
}

// List requests the selected objects of a cluster, "" for the hub, as a table with the objects in
// it. A member without a named object has no row of it.
func List(ctx context.Context, m Member, mapping *meta.RESTMapping, cluster string, s Selection) (Listing, error) {
	out := Listing{Cluster: cluster}
	resource := mapping.Resource
	namespaced := mapping.Scope.Name() == meta.RESTScopeNameNamespace
	if namespaced && len(s.Names) > 0 && s.Namespace == "" {
		return out, errors.New("a name needs a namespace: leave out --all-namespaces, or the name")
	}
	path := []string{"/apis", resource.Group, resource.Version}
	if resource.Group == "" {
		path = []string{"/api", resource.Version}
	}
	table := func() *rest.Request {
		return m.Typed.CoreV1().RESTClient().Get().AbsPath(path...).NamespaceIfScoped(s.Namespace, namespaced && s.Namespace != "").
			Resource(resource.Resource).SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Param("includeObject", "Object")
	}
	names := s.Names
	if len(names) == 0 {
		names = []string{""} // all
	}
	for _, name := range names {
		request := table()
		if name != "" {
			request = request.Name(name)
		} else if s.Labels != nil {
			request = request.Param("labelSelector", s.Labels.String())
		}
		result := request.Do(ctx)
		raw, _ := result.Raw() // without the server's message, which Error has
		err := result.Error()
		switch {
		case cluster != "" && name != "" && apierrors.IsNotFound(err):
			continue
		case apierrors.IsNotFound(err):
			return out, NotAtHub(mapping, client.ObjectKey{Namespace: s.Namespace, Name: name})
		case err != nil:
			return out, fmt.Errorf("list %s: %w", resource.Resource, err)
		}
		var found metav1.Table
		if err := json.Unmarshal(raw, &found); err != nil {
			return out, fmt.Errorf("read the list of %s: %w", resource.Resource, err)
		}
		out.Table.ColumnDefinitions, out.Table.Rows = found.ColumnDefinitions, append(out.Table.Rows, found.Rows...)
		out.Table.ResourceVersion = found.ResourceVersion
	}
	columns, since := out.Table.ColumnDefinitions, out.Table.ResourceVersion
	out.watch = func(ctx context.Context, changed func(Listing) error) error {
		return watchTables(ctx, table, s, since, func(t metav1.Table) error {
			if t.ColumnDefinitions == nil { // only the first event of a watch has them
				t.ColumnDefinitions = columns
			}
			columns = t.ColumnDefinitions
			return changed(Listing{Cluster: cluster, Table: t})
		})
	}
	return out, nil
}

// PrintListings writes a table of the objects and a table of what Works report.
func PrintListings(out io.Writer, output string, objects, works []Listing, of Selection) error {
	var tables []Table
	if len(objects) > 0 || len(works) == 0 {
		t, err := Listings(objects, "No objects found.", of.AllNamespaces)
		if err != nil {
			return err
		}
		tables = append(tables, t)
	}
	if len(works) > 0 {
		t := WorkListing(works, of)
		t.Title = "Clusters without access, as their Works say (--member-context CLUSTER=CONTEXT gives access):"
		tables = append(tables, t)
	}
	return PrintTables(out, output, tables...)
}

// listed is the form of an object in -o json and -o yaml.
type listed struct {
	Cluster string `json:"cluster,omitempty"`
	// Adoption is Y if the object comes from the hub, N if not.
	Adoption string         `json:"adoption,omitempty"`
	Object   map[string]any `json:"object"`
}

// Listings puts the objects of several clusters into one table. Its columns are those of the first
// cluster that has any; columns of other API servers are matched by name.
func Listings(all []Listing, empty string, namespaces bool) (Table, error) {
	out := Table{Empty: empty}
	var shape []metav1.TableColumnDefinition
	for _, l := range all {
		if shape == nil && len(l.Table.Rows) > 0 {
			shape = l.Table.ColumnDefinitions
		}
	}
	if shape == nil {
		return out, nil
	}
	titles := listingTitles(shape, namespaces)
	out.Header, out.Wide = titles.Cells, titles.Wide
	for _, l := range all {
		for _, r := range l.Table.Rows {
			line, err := listingRow(l, r, shape, namespaces)
			if err != nil {
				return out, err
			}
			out.Rows = append(out.Rows, line)
		}
	}
	return out, nil
}

// arrange appends the cell of each column to cells, or to wide if kubectl prints it with -o wide
// only; the cluster follows the first.
func arrange(
	cells, wide *[]string, shape []metav1.TableColumnDefinition, cluster string, cell func(metav1.TableColumnDefinition) string,
) {
	for i, c := range shape {
		switch {
		case i == 0:
			*cells = append(*cells, cell(c), cluster)
		case c.Priority == 0:
			*cells = append(*cells, cell(c))
		default:
			*wide = append(*wide, cell(c))
		}
	}
}

// listingTitles are the titles of the columns.
func listingTitles(shape []metav1.TableColumnDefinition, namespaces bool) (out Row) {
	if namespaces {
		out.Cells = []string{"NAMESPACE"}
	}
	arrange(&out.Cells, &out.Wide, shape, "CLUSTER", func(c metav1.TableColumnDefinition) string { return strings.ToUpper(c.Name) })
	out.Cells = append(out.Cells, "ADOPTION")
	return out
}

func listingRow(l Listing, r metav1.TableRow, shape []metav1.TableColumnDefinition, namespaces bool) (Row, error) {
	var object unstructured.Unstructured
	if err := json.Unmarshal(r.Object.Raw, &object.Object); err != nil {
		return Row{}, fmt.Errorf("read an object of cluster %s: %w", cmp.Or(l.Cluster, hubColumn), err)
	}
	adoption := ""
	if l.Cluster != "" {
		adoption = "N"
		if object.GetLabels()[workv1alpha1.LabelManaged] == "true" {
			adoption = "Y"
		}
	}
	out := Row{Object: listed{l.Cluster, adoption, object.Object}, Name: resourceName(object.GroupVersionKind(), object.GetName())}
	if namespaces {
		out.Cells = []string{object.GetNamespace()}
	}
	arrange(&out.Cells, &out.Wide, shape, cmp.Or(l.Cluster, hubColumn), func(c metav1.TableColumnDefinition) string {
		at := slices.IndexFunc(l.Table.ColumnDefinitions, func(d metav1.TableColumnDefinition) bool {
			return strings.EqualFold(d.Name, c.Name)
		})
		if at >= 0 && at < len(r.Cells) && r.Cells[at] != nil {
			return fmt.Sprint(r.Cells[at])
		}
		return "-"
	})
	out.Cells = append(out.Cells, cmp.Or(adoption, "-"))
	return out, nil
}

// reportedObject is the form in -o json and -o yaml of an object that is known from its Work only.
type reportedObject struct {
	Cluster   string                      `json:"cluster"`
	Namespace string                      `json:"namespace,omitempty"`
	Name      string                      `json:"name"`
	Work      string                      `json:"work"`
	Applied   string                      `json:"applied"`
	Health    workv1alpha1.ResourceHealth `json:"health,omitempty"`
	Status    json.RawMessage             `json:"status,omitempty"`
	Reported  bool                        `json:"reportedByWork"`
}

// WorkListing is a table of the objects in Works.
func WorkListing(all []Listing, of Selection) Table {
	t := Table{Header: []string{"NAME", "CLUSTER", "APPLIED", "HEALTH", "STATUS", "ADOPTION"}, Empty: "none"}
	if of.AllNamespaces {
		t.Header = append([]string{"NAMESPACE"}, t.Header...)
	}
	for _, c := range all {
		for i := range c.Works.Items {
			w := &c.Works.Items[i]
			for _, m := range w.Spec.Workload.Manifests {
				var object unstructured.Unstructured
				if json.Unmarshal(m.Raw, &object.Object) != nil || !of.selects(&object) {
					continue // an invalid manifest is no object of this kind
				}
				r := reportOf(c.Cluster, w, &object)
				cells := []string{r.Name, r.Cluster, r.Applied, cmp.Or(string(r.Health), "-"), cmp.Or(string(r.Status), "-"), "Y"}
				if of.AllNamespaces {
					cells = append([]string{r.Namespace}, cells...)
				}
				t.Rows = append(t.Rows, Row{Cells: cells, Object: r, Name: resourceName(object.GroupVersionKind(), r.Name)})
			}
		}
	}
	return t
}

// reportOf is the status of an object in its Work.
func reportOf(cluster string, w *workv1alpha1.Work, object *unstructured.Unstructured) reportedObject {
	out := reportedObject{
		Cluster: cluster, Namespace: object.GetNamespace(), Name: object.GetName(), Work: w.Name, Reported: true, Applied: "Unknown",
	}
	applied := meta.FindStatusCondition(w.Status.Conditions, workv1alpha1.ConditionApplied)
	if applied != nil && applied.ObservedGeneration >= w.Generation {
		out.Applied = string(applied.Status)
	}
	if reported := w.Status.ManifestStatuses; len(reported) > 0 {
		out.Health = reported[0].Health
		if reported[0].Status != nil {
			out.Status = json.RawMessage(reported[0].Status.Raw)
		}
	}
	return out
}

// ClusterListing is the table of `pelago get clusters`.
func ClusterListing(clusters []clusterv1alpha1.Cluster, now time.Time) Table {
	t := Table{
		Header: []string{"NAME", "VERSION", "MODE", "ACCEPTED", "READY", "AGE"},
		Wide:   []string{"ZONES", "REGION", "PROVIDER", "API-ENDPOINT", "TAINTS"},
		Empty:  "No cluster has joined the hub: see `pelago join --help`.",
	}
	for i := range clusters {
		c := &clusters[i]
		ready, accepted := "Unknown", "False"
		if c.Accepted() {
			accepted = "True"
		}
		if condition := meta.FindStatusCondition(c.Status.Conditions, clusterv1alpha1.ConditionReady); condition != nil {
			ready = string(condition.Status)
		}
		var taints []string
		for _, taint := range c.Spec.Taints {
			t := corev1.Taint(taint)
			taints = append(taints, t.ToString())
		}
		t.Rows = append(t.Rows, Row{
			Cells: []string{c.Name, cmp.Or(c.Status.KubernetesVersion, "-"), string(c.Spec.SyncMode), accepted, ready,
				age(c.CreationTimestamp.Time, now)},
			Wide: []string{cmp.Or(strings.Join(c.Spec.AllZones(), ","), "-"), cmp.Or(c.Spec.Region, "-"), cmp.Or(c.Spec.Provider, "-"),
				cmp.Or(c.Spec.APIEndpoint, "-"), cmp.Or(strings.Join(taints, ","), "-")},
			Object: c,
			Name:   resourceName(clusterv1alpha1.GroupVersion.WithKind("Cluster"), c.Name),
		})
	}
	return t
}

// resourceName is the form of an object in -o name, as in kubectl.
func resourceName(kind schema.GroupVersionKind, name string) string {
	return strings.ToLower(kind.GroupKind().String()) + "/" + name
}

// Selection selects objects.
type Selection struct {
	Kind          string
	Namespace     string // "" if AllNamespaces
	AllNamespaces bool
	Names         []string        // none: all
	Labels        labels.Selector // nil: all
	// Group and ObjectKind are those of manifests, from the discovery of the hub.
	Group, ObjectKind string
}

// selects reports whether a manifest is selected.
func (s Selection) selects(o *unstructured.Unstructured) bool {
	gvk := o.GroupVersionKind()
	return gvk.Group == s.Group && gvk.Kind == s.ObjectKind && (len(s.Names) == 0 || slices.Contains(s.Names, o.GetName())) &&
		(s.Labels == nil || s.Labels.Matches(labels.Set(o.GetLabels()))) && (s.AllNamespaces || o.GetNamespace() == "" || s.Namespace == o.GetNamespace())
}
