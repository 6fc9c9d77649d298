package kinds

import (
	"bufio"
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/ext"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/cel/library"
	"sigs.k8s.io/yaml"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// RuleError is the failure of one rule.
type RuleError struct {
	// Origin is the source of the rule: "KindRules farms", or "the rules that are built in".
	Origin string
	// Rule is its field in spec.rules.
	Rule string
	// Expression is its text, shortened.
	Expression string
	Err        error
}

func (e *RuleError) Error() string {
	return fmt.Sprintf("rule %s of %s (%s): %v", e.Rule, e.Origin, e.Expression, e.Err)
}

func (e *RuleError) Unwrap() error { return e.Err }

// rule is one expression with its name for errors. Each evaluation of a rule that does not compile
// fails.
type rule struct {
	of      RuleError
	compile error
	*expression
}

func newRule(origin, name string, text pelagov1alpha1.Expression, result *cel.Type, vars ...cel.EnvOption) *rule {
	r := &rule{of: RuleError{Origin: origin, Rule: name, Expression: clip(string(text))}}
	r.expression, r.compile = compile(string(text), vars, result)
	return r
}

func (r *rule) failed(err error) error {
	out := r.of
	out.Err = err
	return &out
}

func (r *rule) evaluate(vars map[string]any) (any, error) {
	if r.compile != nil {
		return nil, r.failed(fmt.Errorf("it does not compile: %w", r.compile))
	}
	out, err := r.eval(vars)
	if err != nil {
		return nil, r.failed(err)
	}
	return out, nil
}

// evalMap is evaluate for a map or null.
func (r *rule) evalMap(vars map[string]any) (map[string]any, error) {
	v, err := r.evaluate(vars)
	if err != nil || v == nil {
		return nil, err
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, r.failed(fmt.Errorf("the result has to be a map, but is %T", v))
	}
	return m, nil
}

// compileRules returns the operations of the rules. The errors are *RuleError, one for each rule
// that does not compile.
func compileRules(origin string, rules pelagov1alpha1.Rules) (Kind, []error) {
	var k Kind
	var errs []error
	mapType := cel.MapType(cel.StringType, cel.DynType)
	make := func(name string, text pelagov1alpha1.Expression, result *cel.Type, vars ...cel.EnvOption) *rule {
		if text == "" {
			return nil
		}
		r := newRule(origin, name, text, result, vars...)
		if r.compile != nil {
			errs = append(errs, r.failed(r.compile))
		}
		return r
	}
	requirements := make("requirements", rules.Requirements, mapType, varObject)
	if r := make("replicas", rules.Replicas, cel.IntType, varObject); r != nil {
		k.Replicas = r.replicas(requirements)
	}
	if r := make("components", rules.Components, cel.ListType(cel.DynType), varObject); r != nil {
		k.Components = r.components
	}
	if r := make("revise", rules.Revise, mapType, varObject, varReplicas); r != nil {
		k.Revise = r.revise
	}
	if r := make("prune", rules.Prune, mapType, varObject); r != nil {
		k.Prune = r.prune
	}
	if r := make("retain", rules.Retain, mapType, varDesired, varObserved); r != nil {
		k.Retain = r.retain
	}
	if r := make("reflect", rules.Reflect, mapType, varObserved); r != nil {
		k.Reflect = r.reflect
	}
	if r := make("aggregate", rules.Aggregate, mapType, varObject, varItems); r != nil {
		k.Aggregate = r.aggregate
	}
	if r := make("healthy", rules.Healthy, cel.BoolType, varObserved); r != nil {
		k.Healthy = r.healthy
	}
	if r := make("dependencies", rules.Dependencies, cel.ListType(cel.DynType), varObject); r != nil {
		k.Dependencies = r.dependencies
	}
	return k, errs
}

func (r *rule) replicas(requirements *rule) func(*unstructured.Unstructured) (int32, *workv1alpha2.ReplicaRequirements, error) {
	return func(obj *unstructured.Unstructured) (int32, *workv1alpha2.ReplicaRequirements, error) {
		v, err := r.evaluate(map[string]any{"object": obj.Object})
		if err != nil {
			return 0, nil, err
		}
		n, ok := v.(int64)
		if !ok || n < 0 || n > math.MaxInt32 {
			return 0, nil, r.failed(fmt.Errorf("%v is no number of replicas", v))
		}
		if requirements == nil {
			return int32(n), nil, nil
		}
		m, err := requirements.evalMap(map[string]any{"object": obj.Object})
		if err != nil || m == nil {
			return int32(n), nil, err
		}
		each, err := decodeStrict[workv1alpha2.ReplicaRequirements](m)
		if err != nil {
			return 0, nil, requirements.failed(err)
		}
		each.Namespace = obj.GetNamespace()
		return int32(n), each, nil
	}
}

func (r *rule) components(template *unstructured.Unstructured) ([]workv1alpha2.Component, error) {
	v, err := r.evaluate(map[string]any{"object": template.Object})
	if err != nil {
		return nil, err
	}
	all, err := ComponentsIn(v)
	if err != nil {
		return nil, r.failed(err)
	}
	return all, nil
}

func (r *rule) revise(obj *unstructured.Unstructured, n int32) error {
	return r.patch(obj, map[string]any{"object": obj.Object, "replicas": int64(n)})
}

func (r *rule) prune(obj *unstructured.Unstructured) error {
	return r.patch(obj, map[string]any{"object": obj.Object})
}

func (r *rule) retain(desired, observed *unstructured.Unstructured) error {
	return r.patch(desired, map[string]any{"desired": desired.Object, "observed": observed.Object})
}

// patch applies the result of the rule, a merge patch, which cannot change the identity of the
// object.
func (r *rule) patch(obj *unstructured.Unstructured, vars map[string]any) error {
	m, err := r.evalMap(vars)
	if err != nil {
		return err
	}
	for _, field := range []string{"apiVersion", "kind"} {
		if _, there := m[field]; there {
			return r.failed(fmt.Errorf("%s cannot be changed", field))
		}
	}
	meta, there := m["metadata"]
	if in, ok := meta.(map[string]any); there && !ok {
		return r.failed(fmt.Errorf("metadata cannot be removed"))
	} else if ok {
		for _, field := range []string{"name", "namespace", "uid", "resourceVersion"} {
			if _, there := in[field]; there {
				return r.failed(fmt.Errorf("metadata.%s cannot be changed", field))
			}
		}
	}
	mergePatch(obj.Object, m)
	return nil
}

// mergePatch applies a merge patch (RFC 7386): null removes, maps are merged, any other value
// replaces.
func mergePatch(into, patch map[string]any) {
	for key, v := range patch {
		switch v := v.(type) {
		case nil:
			delete(into, key)
		case map[string]any:
			child, ok := into[key].(map[string]any)
			if !ok {
				child = map[string]any{}
			}
			mergePatch(child, v)
			into[key] = child
		default:
			into[key] = v
		}
	}
}

func (r *rule) reflect(observed *unstructured.Unstructured) (map[string]any, error) {
	m, err := r.evalMap(map[string]any{"observed": observed.Object})
	return present(m), err
}

// present removes null fields: API servers refuse them in a status, and rules need no conditionals
// then.
func present(m map[string]any) map[string]any {
	for key, v := range m {
		if v == nil {
			delete(m, key)
		}
	}
	return m
}

func (r *rule) aggregate(template *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (map[string]any, error) {
	all, err := untypedReports(items)
	if err != nil {
		return nil, err
	}
	list := make([]any, len(items))
	for i := range items {
		item := map[string]any{"clusterName": items[i].ClusterName, "applied": items[i].Applied, "health": string(items[i].Health)}
		if all[i].status != nil {
			item["status"] = all[i].status
		}
		list[i] = item
	}
	m, err := r.evalMap(map[string]any{"object": template.Object, "items": list})
	return present(m), err
}

func (r *rule) healthy(observed *unstructured.Unstructured) (bool, error) {
	v, err := r.evaluate(map[string]any{"observed": observed.Object})
	if err != nil {
		return false, err
	}
	yes, ok := v.(bool)
	if !ok {
		return false, r.failed(fmt.Errorf("the result has to be true or false, but is %v", v))
	}
	return yes, nil
}

func (r *rule) dependencies(template *unstructured.Unstructured) ([]DependentReference, error) {
	v, err := r.evaluate(map[string]any{"object": template.Object})
	if err != nil {
		return nil, err
	}
	refs, err := ReferencesIn(v, template.GetNamespace())
	if err != nil {
		return nil, r.failed(err)
	}
	return refs, nil
}

// decodeStrict converts to a Go type; an unknown field is an error.
func decodeStrict[T any](m map[string]any) (*T, error) {
	out := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(m, out, true); err != nil {
		return nil, err
	}
	return out, nil
}

// expression is a compiled rule, safe for concurrent use.
type expression struct {
	program cel.Program
}

// language is the environment of expressions: CEL's functions and macros, optional fields
// (object.?spec.?replicas), extended strings, two-variable comprehensions, Kubernetes' functions of
// lists and regular expressions, and those of library.go.
var language = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(append(ownFunctions(),
		cel.OptionalTypes(), cel.DefaultUTCTimeZone(true), cel.CrossTypeNumericComparisons(true), cel.EagerlyValidateDeclarations(true),
		cel.ASTValidators(cel.ValidateDurationLiterals(), cel.ValidateTimestampLiterals(), cel.ValidateRegexLiterals()),
		ext.Strings(ext.StringsVersion(2)), ext.TwoVarComprehensions(), library.Lists(), library.Regex(),
	)...)
})

// guards bounds the calls of programs in this language.
var guards = sync.OnceValues(func() (cel.ProgramOption, error) {
	env, err := language()
	if err != nil {
		return nil, err
	}
	return guard(env)
})

// variables are declared for the rules of an operation.
type variables []cel.EnvOption

var (
	varObject   = cel.Variable("object", cel.DynType)
	varDesired  = cel.Variable("desired", cel.DynType)
	varObserved = cel.Variable("observed", cel.DynType)
	varReplicas = cel.Variable("replicas", cel.IntType)
	varItems    = cel.Variable("items", cel.ListType(cel.DynType))
)

// compile compiles an expression and checks the type of its result.
func compile(text string, vars variables, result *cel.Type) (*expression, error) {
	base, err := language()
	if err != nil {
		return nil, fmt.Errorf("prepare CEL: %w", err)
	}
	env, err := base.Extend(vars...)
	if err != nil {
		return nil, fmt.Errorf("prepare CEL: %w", err)
	}
	checked, issues := env.Compile(text)
	if issues.Err() != nil {
		return nil, fmt.Errorf("%s", firstIssue(issues))
	}
	if out := checked.OutputType(); !result.IsAssignableType(out) && !out.IsExactType(cel.DynType) && !out.IsExactType(cel.NullType) {
		return nil, fmt.Errorf("the result has to be %s, but is %s", result, out)
	}
	if err := available(checked.NativeRep().Expr()); err != nil {
		return nil, err
	}
	guarded, err := guards()
	if err != nil {
		return nil, err
	}
	program, err := env.Program(checked, guarded, cel.EvalOptions(cel.OptTrackCost), cel.CostLimit(stepLimit),
		cel.CostTracking(&library.CostEstimator{}))
	if err != nil {
		return nil, err
	}
	return &expression{program: program}, nil
}

// firstIssue is the first error, with line and column.
func firstIssue(issues *cel.Issues) string {
	first := issues.Errors()[0]
	return fmt.Sprintf("line %d, column %d: %s", first.Location.Line(), first.Location.Column()+1, first.Message)
}

// available returns an error if the expression calls an unavailable function.
func available(e ast.Expr) error {
	var err error
	ast.PostOrderVisit(e, ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() != ast.CallKind {
			return
		}
		name := e.AsCall().FunctionName()
		if instead, refused := unavailable[name]; refused && err == nil {
			err = fmt.Errorf("the function %s is not available: %s", name, instead)
		}
	}))
	return err
}

// eval returns the result in the types of JSON.
func (x *expression) eval(vars map[string]any) (any, error) {
	b := &budget{left: workLimit}
	all := map[string]any{budgetName: b}
	for name, v := range vars {
		all[name] = v
	}
	out, _, err := x.program.Eval(all)
	if err != nil {
		return nil, errors.New(Shorten(err.Error(), maxEvalError)) // it may quote a value
	}
	return result(b, out)
}

// maxEvalError bounds the error of an evaluation, in bytes.
const maxEvalError = 500

// Shorten shortens a text to n bytes.
func Shorten(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n-len("…")], "") + "…"
}

// clip shortens an expression to 80 characters for messages.
func clip(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > 80 {
		return string(runes[:80]) + "…"
	}
	return text
}

// bundledFiles are KindRules for kinds of other projects, in the form that users write.
//
//go:embed bundled/*.yaml
var bundledFiles embed.FS

// bundled are the rules of bundledFiles by kind, each compiled on first use.
var bundled = sync.OnceValue(func() map[schema.GroupVersionKind]func() Kind {
	all, err := readBundled()
	if err != nil {
		panic(fmt.Sprintf("read the rules that are built in: %v", err)) // a test reads them
	}
	out := map[schema.GroupVersionKind]func() Kind{}
	for _, r := range all {
		kind := sync.OnceValue(func() Kind {
			k, _ := compileRules("the rules that are built in", r.Spec.Rules) // a test compiles all
			return k
		})
		for _, k := range r.Spec.Kinds {
			out[schema.FromAPIVersionAndKind(k.APIVersion, k.Kind)] = kind
		}
	}
	return out
})

func readBundled() ([]pelagov1alpha1.KindRules, error) {
	files, err := fs.Glob(bundledFiles, "bundled/*.yaml")
	if err != nil {
		return nil, err
	}
	var out []pelagov1alpha1.KindRules
	for _, name := range files {
		text, err := bundledFiles.ReadFile(name)
		if err != nil {
			return nil, err
		}
		some, err := decodeRules(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out = append(out, some...)
	}
	return out, nil
}

// decodeRules reads KindRules from a file of several documents. An unknown field is an error.
func decodeRules(text []byte) ([]pelagov1alpha1.KindRules, error) {
	var out []pelagov1alpha1.KindRules
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		var r pelagov1alpha1.KindRules
		if err := yaml.UnmarshalStrict(document, &r); err != nil {
			return nil, err
		}
		if r.Kind != "" { // else comments only
			out = append(out, r)
		}
	}
}
