package kinds

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/ext"
	"k8s.io/apiserver/pkg/cel/library"
)

// expression is a rule that can be evaluated, by several goroutines at a time.
type expression struct {
	program cel.Program
}

// language is what expressions may use: CEL's own functions and macros, optional fields (object.?spec.?replicas), the
// functions of strings, maps with two variables, Kubernetes' of lists and regular expressions, and those of library.go.
var language = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(append(ownFunctions(),
		cel.OptionalTypes(), cel.DefaultUTCTimeZone(true), cel.CrossTypeNumericComparisons(true), cel.EagerlyValidateDeclarations(true),
		cel.ASTValidators(cel.ValidateDurationLiterals(), cel.ValidateTimestampLiterals(), cel.ValidateRegexLiterals()),
		ext.Strings(ext.StringsVersion(2)), ext.TwoVarComprehensions(), library.Lists(), library.Regex(),
	)...)
})

// guards bounds the calls of a program in this language.
var guards = sync.OnceValues(func() (cel.ProgramOption, error) {
	env, err := language()
	if err != nil {
		return nil, err
	}
	return guard(env)
})

// variables are those that the rules of an operation may use.
type variables []cel.EnvOption

var (
	varObject   = cel.Variable("object", cel.DynType)
	varDesired  = cel.Variable("desired", cel.DynType)
	varObserved = cel.Variable("observed", cel.DynType)
	varReplicas = cel.Variable("replicas", cel.IntType)
	varItems    = cel.Variable("items", cel.ListType(cel.DynType))
)

// compile checks an expression, whose result has to be of a type.
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

// firstIssue is what is wrong first, with line and column.
func firstIssue(issues *cel.Issues) string {
	first := issues.Errors()[0]
	return fmt.Sprintf("line %d, column %d: %s", first.Location.Line(), first.Location.Column()+1, first.Message)
}

// available refuses the functions of the libraries that rules may not use.
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

// eval returns the result as JSON has it.
func (x *expression) eval(vars map[string]any) (any, error) {
	b := &budget{left: workLimit}
	all := map[string]any{budgetName: b}
	for name, v := range vars {
		all[name] = v
	}
	out, _, err := x.program.Eval(all)
	if err != nil {
		return nil, errors.New(cut(err.Error())) // it may quote a value
	}
	return result(b, out)
}

// cut shortens the text of an error.
func cut(text string) string {
	if len(text) <= 500 {
		return text
	}
	return strings.ToValidUTF8(text[:500], "") + "…"
}

// clip shortens the text of an expression for messages.
func clip(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > 80 {
		return string(runes[:80]) + "…"
	}
	return text
}
