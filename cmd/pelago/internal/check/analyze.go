package check

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
	"sigs.k8s.io/yaml"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	"github.com/pelago-net/pelago/control/hub/policy"
)

// files is what manifests contain.
type files struct {
	unreadable []problem
	propagate  []filePolicy
	override   []fileOverride
	exports    []*unstructured.Unstructured
	// templates are all objects but policies.
	templates []*unstructured.Unstructured
}

// problem is one of a file.
type problem struct{ object, reason string }

// filePolicy is a propagation policy of either kind.
type filePolicy struct {
	title, namespace, name string
	spec                   policyv1alpha1.PropagationSpec
	invalid                field.ErrorList
}

// fileOverride is an override policy of either kind.
type fileOverride struct {
	title, namespace string
	spec             policyv1alpha1.OverrideSpec
	invalid          field.ErrorList
	apply            policy.OverridePolicies // the policy, for any cluster
}

// Analyze evaluates the checks of manifests: files, and directories with those below them.
func Analyze(paths []string) (Result, error) {
	f := &files{}
	for _, path := range paths {
		err := filepath.WalkDir(path, func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			if slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) || name == path {
				return f.read(name)
			}
			return nil
		})
		if err != nil {
			return Result{}, fmt.Errorf("read the manifests of %s: %w", path, err)
		}
	}
	return Run(&Set{Clusters: []Cluster{{Context: "manifests", Files: f}}}, Selection{}), nil
}

// read reads the documents of a file. What cannot be decoded is a problem of the file.
func (f *files) read(name string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var object map[string]any
		if err := yaml.Unmarshal(document, &object); err != nil {
			f.unreadable = append(f.unreadable, problem{"file " + name, err.Error()})
			continue
		}
		if len(object) == 0 {
			continue
		}
		u := &unstructured.Unstructured{Object: object}
		if u.GetKind() == "" || u.GetAPIVersion() == "" {
			f.unreadable = append(f.unreadable, problem{"file " + name, "a document has no apiVersion or no kind"})
			continue
		}
		if u.IsList() {
			err := u.EachListItem(func(o runtime.Object) error {
				if item, ok := o.(*unstructured.Unstructured); ok {
					f.add(name, item)
				}
				return nil
			})
			if err != nil {
				f.unreadable = append(f.unreadable, problem{"file " + name, err.Error()})
			}
			continue
		}
		f.add(name, u)
	}
}

// add sorts an object.
func (f *files) add(name string, u *unstructured.Unstructured) {
	group := u.GroupVersionKind().Group
	title := u.GetKind() + " " + u.GetName()
	wide := strings.HasPrefix(u.GetKind(), "Cluster")
	if !wide && u.GetNamespace() == "" && (group == policyv1alpha1.GroupVersion.Group || group == mcs.GroupName || namespaced[u.GetKind()]) {
		u.SetNamespace("default")
	}
	if u.GetNamespace() != "" {
		title = u.GetKind() + " " + u.GetNamespace() + "/" + u.GetName()
	}
	strict := func(into any) bool {
		raw, err := yaml.Marshal(u.Object)
		if err == nil {
			err = yaml.UnmarshalStrict(raw, into)
		}
		if err != nil {
			f.unreadable = append(f.unreadable, problem{title + " in " + name, err.Error()})
		}
		return err == nil
	}
	switch {
	case group == policyv1alpha1.GroupVersion.Group && strings.HasSuffix(u.GetKind(), "PropagationPolicy"):
		var p policyv1alpha1.ClusterPropagationPolicy // the two kinds have the same fields
		if strict(&p) {
			f.propagate = append(f.propagate, filePolicy{title, u.GetNamespace(), u.GetName(), p.Spec.Defaulted(u.GetNamespace()), policyv1alpha1.ValidatePropagation(u, p.Spec)})
		}
	case group == policyv1alpha1.GroupVersion.Group && strings.HasSuffix(u.GetKind(), "OverridePolicy"):
		var p policyv1alpha1.ClusterOverridePolicy
		if !strict(&p) {
			return
		}
		o := fileOverride{title: title, namespace: u.GetNamespace(), spec: p.Spec, invalid: p.Spec.Validate(u.GetNamespace())}
		p.Spec.TargetCluster = nil
		for i := range p.Spec.OverrideRules {
			p.Spec.OverrideRules[i].TargetCluster = nil
		}
		if wide {
			o.apply.Cluster = []policyv1alpha1.ClusterOverridePolicy{p}
		} else {
			p.Namespace = u.GetNamespace()
			o.apply.Namespaced = []policyv1alpha1.OverridePolicy{{TypeMeta: p.TypeMeta, ObjectMeta: p.ObjectMeta, Spec: p.Spec}}
		}
		f.override = append(f.override, o)
	case group == policyv1alpha1.GroupVersion.Group:
	case group == mcs.GroupName && u.GetKind() == mcs.ServiceExportKindName:
		var e mcs.ServiceExport
		if strict(&e) {
			f.exports, f.templates = append(f.exports, u), append(f.templates, u)
		}
	default:
		f.templates = append(f.templates, u)
	}
}

// namespaced are common kinds with a namespace, which is default where a manifest has none.
var namespaced = map[string]bool{"Deployment": true, "StatefulSet": true, "DaemonSet": true, "Job": true, "CronJob": true, "Service": true, "ConfigMap": true,
	"Secret": true, "Ingress": true, "ServiceAccount": true, "Pod": true, "PersistentVolumeClaim": true, "HorizontalPodAutoscaler": true, "NetworkPolicy": true}

func manifestsRead(_ *Set, c *Cluster, r *report) {
	for _, p := range c.Files.unreadable {
		r.fail(p.object, "%s", p.reason)
	}
}

func policiesValid(_ *Set, c *Cluster, r *report) {
	for _, p := range c.Files.propagate {
		for _, err := range p.invalid {
			r.fail(p.title, "%v", err)
		}
	}
	for _, p := range c.Files.override {
		for _, err := range p.invalid {
			r.fail(p.title, "%v", err)
		}
	}
}

// selects returns the templates that selectors match, with their precision.
func (f *files) selects(selectors []policyv1alpha1.ResourceSelector, namespace string) map[*unstructured.Unstructured]policy.Precision {
	out := map[*unstructured.Unstructured]policy.Precision{}
	for _, t := range f.templates {
		precision, err := policy.Match(selectors, namespace, t)
		if err == nil && precision != policy.NoMatch && (namespace == "" || t.GetNamespace() == namespace) {
			out[t] = precision
		}
	}
	return out
}

func policiesSelect(_ *Set, c *Cluster, r *report) {
	for _, p := range c.Files.propagate {
		if len(p.invalid) == 0 && len(c.Files.selects(p.spec.ResourceSelectors, p.namespace)) == 0 {
			r.warn(p.title, "it selects none of the %d objects", len(c.Files.templates))
		}
	}
	for _, p := range c.Files.override {
		if len(p.invalid) == 0 && len(p.spec.ResourceSelectors) > 0 && len(c.Files.selects(p.spec.ResourceSelectors, p.namespace)) == 0 {
			r.warn(p.title, "it selects none of the %d objects", len(c.Files.templates))
		}
	}
}

func overridesApply(_ *Set, c *Cluster, r *report) {
	for _, p := range c.Files.override {
		if len(p.invalid) > 0 {
			continue
		}
		var refused, skipped []string
		selected := 0
		for _, t := range c.Files.templates {
			if p.namespace != "" && t.GetNamespace() != p.namespace {
				continue
			}
			if len(p.spec.ResourceSelectors) > 0 {
				if precision, err := policy.Match(p.spec.ResourceSelectors, p.namespace, t); err != nil || precision == policy.NoMatch {
					continue
				}
			}
			selected++
			_, applied, err := policy.ApplyOverrides(t, &clusterv1alpha1.Cluster{}, p.apply)
			switch {
			case err != nil:
				refused = append(refused, err.Error())
			case len(applied.Skipped) > 0:
				skipped = append(skipped, applied.Skipped[0].String())
			}
		}
		for _, reason := range refused {
			r.fail(p.title, "%s", reason)
		}
		if len(skipped) > 0 && len(skipped) == selected {
			r.warn(p.title, "no object has the path: %s", skipped[0])
		}
	}
}

func onePolicy(_ *Set, c *Cluster, r *report) {
	all := c.Files.propagate
	for i, a := range all {
		for _, b := range all[i+1:] {
			if (a.namespace == "") != (b.namespace == "") || a.spec.Priority != b.spec.Priority || len(a.invalid)+len(b.invalid) > 0 {
				continue
			}
			others := c.Files.selects(b.spec.ResourceSelectors, b.namespace)
			var both []string
			for t, precision := range c.Files.selects(a.spec.ResourceSelectors, a.namespace) {
				if others[t] == precision {
					both = append(both, t.GetKind()+" "+t.GetNamespace()+"/"+t.GetName())
				}
			}
			if len(both) > 0 {
				slices.Sort(both)
				first := a
				if cmp.Compare(b.name, a.name) < 0 {
					first = b
				}
				r.warn(a.title, "%s selects %s as well; %s gets it", b.title, strings.Join(both[:min(3, len(both))], ", "), first.title)
			}
		}
	}
}

func exportsHaveService(_ *Set, c *Cluster, r *report) {
	for _, e := range c.Files.exports {
		found := slices.ContainsFunc(c.Files.templates, func(t *unstructured.Unstructured) bool {
			return t.GetKind() == "Service" && t.GetAPIVersion() == "v1" && t.GetNamespace() == e.GetNamespace() && t.GetName() == e.GetName()
		})
		if !found {
			r.warn("ServiceExport "+e.GetNamespace()+"/"+e.GetName(), "no Service of this name is among the manifests")
		}
	}
}
