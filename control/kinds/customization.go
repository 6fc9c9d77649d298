package kinds

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	configv1alpha1 "github.com/pelago-net/pelago/api/config/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/kinds/lua"
)

// script is one function in Lua of a customization. Each evaluation of a script that does not
// compile fails.
type script struct {
	of       RuleError
	function string
	compile  error
	program  *lua.Program
	// exhausted is called when an evaluation exceeds its bounds.
	exhausted func(error)
}

func (s *script) failed(err error) error {
	out := s.of
	out.Err = err
	return &out
}

// call is Program.Call with the function of the script.
func (s *script) call(args []any, references ...[]any) ([]any, error) {
	if s.compile != nil {
		return nil, s.failed(fmt.Errorf("it does not compile: %w", s.compile))
	}
	out, err := s.program.Call(s.function, kubeLibrary, args, references...)
	if err == nil {
		return out, nil
	}
	err = s.failed(err)
	if errors.Is(err, lua.ErrWork) && s.exhausted != nil {
		s.exhausted(err)
	}
	return nil, err
}

// compileScripts returns the operations of a customization. The errors are *RuleError, one for each
// script that does not compile.
func compileScripts(origin string, c configv1alpha1.CustomizationRules, exhausted func(error)) (Kind, []error) {
	var k Kind
	var errs []error
	make := func(field, function string, of *configv1alpha1.Script) *script {
		if of == nil || of.LuaScript == "" {
			return nil
		}
		s := &script{of: RuleError{Origin: origin, Rule: field, Expression: "function " + function}, function: function, exhausted: exhausted}
		if s.program, s.compile = lua.Compile(of.LuaScript); s.compile != nil {
			errs = append(errs, s.failed(s.compile))
		}
		return s
	}
	if s := make("replicaResource", "GetReplicas", c.ReplicaResource); s != nil {
		k.Replicas = s.replicas
	}
	if s := make("componentResource", "GetComponents", c.ComponentResource); s != nil {
		k.Components = s.components
	}
	if s := make("replicaRevision", "ReviseReplica", c.ReplicaRevision); s != nil {
		k.Revise = s.revise
	}
	if s := make("retention", "Retain", c.Retention); s != nil {
		k.Retain = s.retain
	}
	if s := make("statusReflection", "ReflectStatus", c.StatusReflection); s != nil {
		k.Reflect = s.reflect
	}
	if s := make("statusAggregation", "AggregateStatus", c.StatusAggregation); s != nil {
		k.Aggregate = s.aggregate
	}
	if s := make("healthInterpretation", "InterpretHealth", c.HealthInterpretation); s != nil {
		k.Healthy = s.healthy
	}
	if s := make("dependencyInterpretation", "GetDependencies", c.DependencyInterpretation); s != nil {
		k.Dependencies = s.dependencies
	}
	return k, errs
}

func (s *script) replicas(obj *unstructured.Unstructured) (int32, *workv1alpha2.ReplicaRequirements, error) {
	out, err := s.call([]any{obj.Object}, nil, nil)
	if err != nil {
		return 0, nil, err
	}
	n, ok := out[0].(int64)
	if !ok || n < 0 || n > math.MaxInt32 {
		return 0, nil, s.failed(fmt.Errorf("%v is no number of replicas", out[0]))
	}
	if out[1] == nil {
		return int32(n), nil, nil
	}
	m, ok := out[1].(map[string]any)
	if !ok {
		return 0, nil, s.failed(fmt.Errorf("the requirements have to be a map, but are %T", out[1]))
	}
	each, err := decodeStrict[workv1alpha2.ReplicaRequirements](m)
	if err != nil {
		return 0, nil, s.failed(err)
	}
	each.Namespace = obj.GetNamespace()
	return int32(n), each, nil
}

func (s *script) components(template *unstructured.Unstructured) ([]workv1alpha2.Component, error) {
	out, err := s.call([]any{template.Object}, []any{[]any{}})
	if err != nil {
		return nil, err
	}
	all, err := ComponentsIn(out[0])
	if err != nil {
		return nil, s.failed(err)
	}
	return all, nil
}

func (s *script) revise(obj *unstructured.Unstructured, n int32) error {
	return s.replace(obj, []any{obj.Object, int64(n)}, obj.Object)
}

func (s *script) retain(desired, observed *unstructured.Unstructured) error {
	m, err := s.object([]any{desired.Object, observed.Object}, desired.Object, observed.Object)
	if err != nil {
		return err
	}
	if err := ReplaceRetained(desired, m); err != nil {
		return s.failed(err)
	}
	return nil
}

// replace replaces the object by the result, which has to have the same identity.
func (s *script) replace(obj *unstructured.Unstructured, args []any, references ...any) error {
	m, err := s.object(args, references...)
	if err != nil {
		return err
	}
	if err := Replace(obj, m); err != nil {
		return s.failed(err)
	}
	return nil
}

// object calls a function that returns an object.
func (s *script) object(args []any, references ...any) (map[string]any, error) {
	out, err := s.call(args, references)
	if err != nil {
		return nil, err
	}
	m, ok := out[0].(map[string]any)
	if !ok {
		return nil, s.failed(fmt.Errorf("the result has to be the object, but is %T", out[0]))
	}
	return m, nil
}

// ReplaceRetained replaces the content of a desired object by the result of a retention, which may
// be the observed object, as in many scripts for Karmada: what API servers fill in is left out.
func ReplaceRetained(desired *unstructured.Unstructured, by map[string]any) error {
	metadata, ok := by["metadata"].(map[string]any)
	if !ok {
		return errors.New("metadata cannot be removed")
	}
	own, _ := desired.Object["metadata"].(map[string]any) // it has a name
	for _, field := range serverFields {
		if value, there := own[field]; there {
			metadata[field] = value
		} else {
			delete(metadata, field)
		}
	}
	if _, there := desired.Object["status"]; !there {
		delete(by, "status")
	}
	return Replace(desired, by)
}

// Replace replaces the content of an object, which keeps its identity.
func Replace(obj *unstructured.Unstructured, by map[string]any) error {
	for _, path := range [][]string{
		{"apiVersion"}, {"kind"}, {"metadata", "name"}, {"metadata", "namespace"}, {"metadata", "uid"}, {"metadata", "resourceVersion"},
	} {
		was, _, _ := unstructured.NestedString(obj.Object, path...)
		is, _, err := unstructured.NestedString(by, path...)
		if err != nil || is != was {
			return fmt.Errorf("%s cannot be changed", strings.Join(path, "."))
		}
	}
	obj.Object = by
	return nil
}

func (s *script) reflect(observed *unstructured.Unstructured) (map[string]any, error) {
	out, err := s.call([]any{observed.Object}, []any{observed.Object["status"]})
	if err != nil || out[0] == nil {
		return nil, err
	}
	m, ok := out[0].(map[string]any)
	if !ok {
		return nil, s.failed(fmt.Errorf("the result has to be a map, but is %T", out[0]))
	}
	return m, nil
}

func (s *script) aggregate(template *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (map[string]any, error) {
	list, references := make([]any, len(items)), []any{template.Object}
	for i := range items {
		item, err := untyped(&items[i])
		if err != nil {
			return nil, err
		}
		list[i] = item
		references = append(references, map[string]any{"status": item["status"]})
	}
	out, err := s.call([]any{template.Object, list}, references)
	if err != nil || out[0] == nil {
		return nil, err
	}
	m, ok := out[0].(map[string]any)
	if !ok {
		return nil, s.failed(fmt.Errorf("the result has to be the object, but is %T", out[0]))
	}
	status, ok := m["status"].(map[string]any)
	if !ok && m["status"] != nil {
		return nil, s.failed(fmt.Errorf("the status has to be a map, but is %T", m["status"]))
	}
	return status, nil
}

func (s *script) healthy(observed *unstructured.Unstructured) (bool, error) {
	out, err := s.call([]any{observed.Object}, nil)
	if err != nil {
		return false, err
	}
	yes, ok := out[0].(bool)
	if !ok {
		return false, s.failed(fmt.Errorf("the result has to be true or false, but is %v", out[0]))
	}
	return yes, nil
}

func (s *script) dependencies(template *unstructured.Unstructured) ([]DependentReference, error) {
	out, err := s.call([]any{template.Object}, []any{[]any{}})
	if err != nil || out[0] == nil {
		return nil, err
	}
	refs, err := ReferencesIn(out[0], template.GetNamespace())
	if err != nil {
		return nil, s.failed(err)
	}
	return refs, nil
}

// kubeLibrary is the module kube of scripts, with the names that Karmada's has.
var kubeLibrary = lua.Library{
	"accuratePodRequirements": func(args []any) (any, error) {
		pod, err := podOf(args)
		if err != nil {
			return nil, err
		}
		if r := podRequirements(pod, ""); r != nil {
			return untyped(r)
		}
		return nil, nil
	},
	"getPodDependencies": func(args []any) (any, error) {
		pod, err := podOf(args)
		if err != nil {
			return nil, err
		}
		namespace := ""
		if len(args) > 1 {
			namespace, _ = args[1].(string) // nil: that of the template
		}
		out := []any{}
		for _, d := range podDependencies(namespace, pod, nil) {
			v, err := untyped(&d)
			if err != nil {
				return nil, err
			}
			out = append(out, v)
		}
		return out, nil
	},
	"getResourceQuantity": func(args []any) (any, error) {
		sum, err := addQuantities(args)
		return sum.AsApproximateFloat64(), err
	},
	"resourceAdd": func(args []any) (any, error) {
		sum, err := addQuantities(args)
		return sum.String(), err
	},
}

// podOf reads the spec of a pod template, the first argument.
func podOf(args []any) (*corev1.PodSpec, error) {
	if len(args) == 0 {
		return nil, errors.New("a pod template is missing")
	}
	template, _ := args[0].(map[string]any)      // else it has no spec
	spec, _ := template["spec"].(map[string]any) // nil: an empty one
	return typed[corev1.PodSpec](spec)
}

func addQuantities(args []any) (*resource.Quantity, error) {
	sum := new(resource.Quantity)
	for _, arg := range args {
		if arg == nil {
			continue
		}
		q, err := resource.ParseQuantity(clip(fmt.Sprint(arg)))
		if err != nil {
			return sum, err
		}
		sum.Add(q)
	}
	return sum, nil
}

// MissingFunctions returns the functions and modules that the scripts of a customization use and
// that do not exist here, each with its script, and the scripts that do not compile.
func MissingFunctions(c configv1alpha1.CustomizationRules) []string {
	var out []string
	for field, s := range map[string]*configv1alpha1.Script{
		"replicaResource": c.ReplicaResource, "componentResource": c.ComponentResource, "replicaRevision": c.ReplicaRevision,
		"retention": c.Retention, "statusReflection": c.StatusReflection, "statusAggregation": c.StatusAggregation,
		"healthInterpretation": c.HealthInterpretation, "dependencyInterpretation": c.DependencyInterpretation,
	} {
		if s == nil || s.LuaScript == "" {
			continue
		}
		missing, err := lua.Missing(s.LuaScript, kubeLibrary)
		switch {
		case err != nil:
			out = append(out, fmt.Sprintf("%s does not compile: %v", field, err))
		case len(missing) > 0:
			out = append(out, fmt.Sprintf("%s uses %s", field, strings.Join(missing, ", ")))
		}
	}
	slices.Sort(out)
	return out
}
