package kinds

import (
	"errors"
	"fmt"
	"math"
	"strings"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	configv1alpha1 "github.com/pelago-net/pelago/api/config/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// script is one function in Lua of a customization. Each evaluation of a script that does not compile fails.
type script struct {
	of       RuleError
	function string
	compile  error
	proto    *lua.FunctionProto
	// exhausted is called when an evaluation exceeds its bounds.
	exhausted func(error)
}

func (s *script) failed(err error) error {
	out := s.of
	out.Err = err
	return &out
}

// call calls the function with values of JSON, each evaluation in a state of its own. It returns as many results as there are
// references, the inputs that each result resembles (fromLua).
func (s *script) call(args []any, references ...[]any) (out []any, err error) {
	if s.compile != nil {
		return nil, s.failed(fmt.Errorf("it does not compile: %w", s.compile))
	}
	m := &meter{left: luaWork}
	defer func() {
		if r := recover(); r != nil { // conversions run outside of a protected call
			err = s.failed(errors.New(shorten(fmt.Sprint(r), maxEvalError)))
		}
		if m.left < 0 {
			out, err = nil, s.failed(errLuaWork)
			if s.exhausted != nil {
				s.exhausted(err)
			}
		}
	}()
	l := newLua(m)
	defer l.Close()
	l.SetContext(m)
	if err := l.CallByParam(lua.P{Fn: l.NewFunctionFromProto(s.proto), Protect: true}); err != nil {
		return nil, s.failed(luaError(err))
	}
	f, ok := l.GetGlobal(s.function).(*lua.LFunction)
	if !ok {
		return nil, s.failed(fmt.Errorf("the script does not define the function %s", s.function))
	}
	values := make([]lua.LValue, len(args))
	for i, arg := range args {
		values[i] = m.toLua(l, arg)
	}
	if err := l.CallByParam(lua.P{Fn: f, NRet: len(references), Protect: true}, values...); err != nil {
		return nil, s.failed(luaError(err))
	}
	out = make([]any, len(references))
	for i := range out {
		if out[i], err = m.fromLua(l.Get(i-len(references)), luaDepth, references[i]...); err != nil {
			return nil, s.failed(err)
		}
	}
	return out, nil
}

// luaError is the message of an error without the stack; it may quote a value.
func luaError(err error) error {
	text := err.Error()
	if of := new(lua.ApiError); errors.As(err, &of) && of.Object != nil {
		text = of.Object.String()
	}
	return errors.New(shorten(strings.TrimSpace(text), maxEvalError))
}

// compileScripts returns the operations of a customization. The errors are *RuleError, one for each script that does not compile.
func compileScripts(origin string, c configv1alpha1.CustomizationRules, exhausted func(error)) (Kind, []error) {
	var k Kind
	var errs []error
	make := func(field, function string, of *configv1alpha1.Script) *script {
		if of == nil || of.LuaScript == "" {
			return nil
		}
		s := &script{of: RuleError{Origin: origin, Rule: field, Expression: "function " + function}, function: function, exhausted: exhausted}
		if s.proto, s.compile = compileLua(of.LuaScript); s.compile != nil {
			errs = append(errs, s.failed(s.compile))
		}
		return s
	}
	if s := make("replicaResource", "GetReplicas", c.ReplicaResource); s != nil {
		k.Replicas = s.replicas
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

func (s *script) revise(obj *unstructured.Unstructured, n int32) error {
	return s.replace(obj, []any{obj.Object, int64(n)}, obj.Object)
}

func (s *script) retain(desired, observed *unstructured.Unstructured) error {
	return s.replace(desired, []any{desired.Object, observed.Object}, desired.Object, observed.Object)
}

// replace replaces the object by the result, which has to have the same identity.
func (s *script) replace(obj *unstructured.Unstructured, args []any, references ...any) error {
	out, err := s.call(args, references)
	if err != nil {
		return err
	}
	m, ok := out[0].(map[string]any)
	if !ok {
		return s.failed(fmt.Errorf("the result has to be the object, but is %T", out[0]))
	}
	for _, path := range [][]string{
		{"apiVersion"}, {"kind"}, {"metadata", "name"}, {"metadata", "namespace"}, {"metadata", "uid"}, {"metadata", "resourceVersion"},
	} {
		was, _, _ := unstructured.NestedString(obj.Object, path...)
		is, _, err := unstructured.NestedString(m, path...)
		if err != nil || is != was {
			return s.failed(fmt.Errorf("%s cannot be changed", strings.Join(path, ".")))
		}
	}
	obj.Object = m
	return nil
}

func (s *script) reflect(observed *unstructured.Unstructured) (map[string]any, error) {
	return s.status([]any{observed.Object}, observed.Object["status"])
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

func (s *script) status(args []any, reference any) (map[string]any, error) {
	out, err := s.call(args, []any{reference})
	if err != nil || out[0] == nil {
		return nil, err
	}
	m, ok := out[0].(map[string]any)
	if !ok {
		return nil, s.failed(fmt.Errorf("the result has to be a map, but is %T", out[0]))
	}
	return m, nil
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
	refs, err := referencesIn(out[0], template.GetNamespace())
	if err != nil {
		return nil, s.failed(err)
	}
	return refs, nil
}
