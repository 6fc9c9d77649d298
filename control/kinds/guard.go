package kinds

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/functions"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
)

// CEL's cost limit, with the estimates of the API server, is not sufficient: a call is charged
// after it returned, and by the length of its arguments, not by their depth. [[x, x], [x, x]] has
// length 2 however deep x is, so comparing two such values takes exponential time. The guard
// charges each call before it is made, by the total size of its arguments and result, and each list
// and map that the expression constructs, by its total size.
const (
	// stepLimit is the cost that the API server allows an expression, about 0.1 s.
	stepLimit = 1_000_000
	// workLimit bounds the weight of all calls of an evaluation: 1 for a value, 1 for each eight
	// bytes of a string.
	workLimit = 2_000_000
	// textLimit bounds the strings that calls return, in bytes: CEL charges the lookup of any map
	// key as one step.
	textLimit = 256 << 10
	// depthLimit bounds the nesting of values, as the API server's JSON decoder does.
	depthLimit = 10_000
)

// budgetName is the variable that holds the budget of an evaluation. It is no identifier, so no
// expression can refer to it.
const budgetName = "@budget"

// budget is the weight that an evaluation may still use.
type budget struct{ left int }

// spend panics when the budget is exhausted; CEL returns that as the error of the evaluation.
func (b *budget) spend(n int) {
	if n < 0 || n > b.left {
		panic(interpreter.EvalCancelledError{
			Cause: interpreter.CostLimitExceeded, Message: "operation cancelled: the values that it works with are too large",
		})
	}
	b.left -= n
}

// weigh spends the weight of a value with all its elements.
func (b *budget) weigh(v any, depth int) {
	if depth > depthLimit {
		b.spend(b.left + 1)
	}
	b.spend(1)
	switch v := v.(type) {
	case string:
		b.spend(len(v) / 8)
	case []byte:
		b.spend(len(v) / 8)
	case map[string]any:
		for key, x := range v {
			b.spend(len(key) / 8)
			b.weigh(x, depth+1)
		}
	case []any:
		for _, x := range v {
			b.weigh(x, depth+1)
		}
	case types.String:
		b.spend(len(v) / 8)
	case types.Bytes:
		b.spend(len(v) / 8)
	case *types.Optional:
		if v.HasValue() {
			b.weigh(v.GetValue(), depth+1)
		}
	case traits.Mapper:
		if native, ok := v.Value().(map[string]any); ok {
			b.weigh(native, depth)
			return
		}
		for it := v.Iterator(); it.HasNext() == types.True; {
			key := it.Next()
			b.weigh(key, depth+1)
			b.weigh(v.Get(key), depth+1)
		}
	case traits.Lister:
		if native, ok := v.Value().([]any); ok {
			b.weigh(native, depth)
			return
		}
		n, _ := v.Size().(types.Int) // always an Int
		for i := types.Int(0); i < n; i++ {
			b.weigh(v.Get(i), depth+1)
		}
	}
}

// shallow is the weight of a value without its elements.
func shallow(v ref.Val) int {
	switch v := v.(type) {
	case types.String:
		return 1 + len(v)/8
	case types.Bytes:
		return 1 + len(v)/8
	}
	return 1
}

// length is that of a string or list.
func length(v ref.Val) int {
	switch v := v.(type) {
	case types.String:
		return len(v)
	case traits.Lister:
		n, _ := v.Size().(types.Int) // always an Int
		return int(n)
	}
	return 1
}

// light are the functions that do not read the elements of lists and maps.
var light = map[string]bool{
	"size": true, "type": true, "dyn": true, "value": true, "hasValue": true,
	"optional.of": true, "optional.none": true, "optional.ofNonZeroValue": true,
	// products charges what they read
	"caughtUp": true, "sums": true, "earliest": true, "latest": true,
}

// products are the functions whose result or work can grow with the product of their arguments.
var products = map[string]func([]ref.Val) int{
	"replace":  func(a []ref.Val) int { return (length(a[0])/max(1, length(a[1])) + 1) * length(a[2]) / 8 },
	"join":     joined,
	"matches":  regular,
	"find":     regular,
	"findAll":  regular,
	"sums":     func(a []ref.Val) int { return length(a[1]) * (length(a[2]) + 3) },
	"caughtUp": func(a []ref.Val) int { return length(a[1]) * 3 },
}

// repeat is a counted repetition in a regular expression, which RE2 expands.
var repeat = regexp.MustCompile(`\{(\d+),?(\d*)\}`)

// regular weighs matching a[0] by a[1]: each character against each state. Go expands a state at
// most 1,000 times.
func regular(a []ref.Val) int {
	pattern, _ := a[1].(types.String) // else the call fails
	times := 1
	for _, m := range repeat.FindAllStringSubmatch(string(pattern), -1) {
		for _, digits := range m[1:] {
			// "" is no bound; one out of range does not compile
			if n, err := strconv.Atoi(digits); err == nil && n > 1 {
				times = min(1000, times*n)
			}
		}
	}
	return (1 + length(a[0])/8) * len(pattern) * times
}

func joined(a []ref.Val) int {
	if len(a) < 2 {
		return 0
	}
	return length(a[0]) * (1 + length(a[1])/8)
}

// unavailable are functions of CEL's libraries whose result is not bounded by the size of their
// arguments.
var unavailable = map[string]string{"format": "use + and string()"}

// guarded is a call that is charged before it is made. It does not embed the call: a way to make it
// that another version of CEL adds would be promoted, and bypass the charge.
type guarded struct {
	call interpreter.InterpretableCall
	args []interpreter.InterpretableV2
	impl func([]ref.Val) ref.Val
}

var (
	_ interpreter.InterpretableCall        = (*guarded)(nil)
	_ interpreter.InterpretableConstructor = (*constructed)(nil)
)

// hidden hides the type of an argument: CEL would replace a call with a constant regular expression
// by an unguarded one.
type hidden struct{ interpreter.InterpretableV2 }

// ID, Function, OverloadID and Args implement interpreter.InterpretableCall.
func (g *guarded) ID() int64                           { return g.call.ID() }
func (g *guarded) Function() string                    { return g.call.Function() }
func (g *guarded) OverloadID() string                  { return g.call.OverloadID() }
func (g *guarded) Args() []interpreter.InterpretableV2 { return g.args }

// Eval implements interpreter.Interpretable.
func (g *guarded) Eval(vars interpreter.Activation) ref.Val {
	return g.Exec(interpreter.AsFrame(vars))
}

// Exec implements interpreter.InterpretableV2.
func (g *guarded) Exec(vars *interpreter.ExecutionFrame) ref.Val {
	values := make([]ref.Val, len(g.args))
	for i, arg := range g.args {
		values[i] = arg.Exec(vars)
	}
	for _, v := range values {
		if types.IsUnknownOrError(v) {
			return v
		}
	}
	b := budgetOf(vars)
	g.weigh(b, values)
	out := g.impl(values)
	if text, ok := out.(types.String); ok && len(text) > textLimit {
		b.spend(b.left + 1)
	}
	return types.LabelErrNode(g.ID(), out)
}

func (g *guarded) weigh(b *budget, values []ref.Val) {
	if product := products[g.Function()]; product != nil {
		b.spend(product(values))
	}
	for i, v := range values {
		if light[g.Function()] || i == 0 && grows(v) {
			b.spend(shallow(v))
		} else {
			b.weigh(v, 0)
		}
	}
}

// grows reports whether v is the accumulator of a macro, which is not read before the macro ends.
func grows(v ref.Val) bool {
	_, list := v.(traits.MutableLister)
	_, of := v.(traits.MutableMapper)
	return list || of
}

// constructed is a list or map literal, charged by its total size.
type constructed struct {
	made interpreter.InterpretableConstructor
}

// ID, InitVals and Type implement interpreter.InterpretableConstructor.
func (m *constructed) ID() int64                               { return m.made.ID() }
func (m *constructed) InitVals() []interpreter.InterpretableV2 { return m.made.InitVals() }
func (m *constructed) Type() ref.Type                          { return m.made.Type() }

// Eval implements interpreter.Interpretable.
func (m *constructed) Eval(vars interpreter.Activation) ref.Val {
	return m.Exec(interpreter.AsFrame(vars))
}

// Exec implements interpreter.InterpretableV2.
func (m *constructed) Exec(vars *interpreter.ExecutionFrame) ref.Val {
	out := m.made.Exec(vars)
	if !types.IsUnknownOrError(out) {
		budgetOf(vars).weigh(out, 0)
	}
	return out
}

// budgetOf is the budget of the evaluation; each has one.
func budgetOf(vars interpreter.Activation) *budget {
	v, _ := vars.ResolveName(budgetName)
	return v.(*budget)
}

// guard replaces the calls of a program by guarded ones.
func guard(env *cel.Env) (cel.ProgramOption, error) {
	known := map[string]*functions.Overload{}
	for name, f := range env.Functions() {
		bindings, err := f.Bindings()
		if err != nil {
			return nil, fmt.Errorf("read the function %s: %w", name, err)
		}
		for _, b := range bindings {
			known[b.Operator] = b
		}
	}
	return cel.CustomDecoratorV2(func(i interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
		if c, ok := i.(interpreter.InterpretableConstructor); ok {
			return &constructed{c}, nil
		}
		call, ok := i.(interpreter.InterpretableCall)
		if !ok {
			return i, nil
		}
		f := known[call.OverloadID()]
		if f == nil {
			f = known[call.Function()]
		}
		if f != nil && f.NonStrict {
			return i, nil // logical operators, on booleans
		}
		g := &guarded{call: call, impl: implementation(call, f)}
		for _, arg := range call.Args() {
			g.args = append(g.args, hidden{arg})
		}
		return g, nil
	}), nil
}

// implementation dispatches a call as CEL's interpreter does: equality, else the overload if the
// first argument has its trait, else the method of the first argument. Only lists are concatenated
// by copying: CEL returns a view of both, and the length of nested views takes linear time.
func implementation(call interpreter.InterpretableCall, f *functions.Overload) func([]ref.Val) ref.Val {
	name, overload := call.Function(), call.OverloadID()
	switch name {
	case operators.Equals:
		return func(a []ref.Val) ref.Val { return types.Equal(a[0], a[1]) }
	case operators.NotEquals:
		return func(a []ref.Val) ref.Val { return types.Bool(types.Equal(a[0], a[1]) != types.True) }
	}
	return func(a []ref.Val) ref.Val {
		if out := concatenated(name, a); out != nil {
			return out
		}
		if f != nil && (f.OperandTrait == 0 || len(a) > 0 && a[0].Type().HasTrait(f.OperandTrait)) {
			switch {
			case len(a) == 1 && f.Unary != nil:
				return f.Unary(a[0])
			case len(a) == 2 && f.Binary != nil:
				return f.Binary(a[0], a[1])
			case f.Function != nil:
				return f.Function(a...)
			}
		}
		if len(a) > 0 && a[0].Type().HasTrait(traits.ReceiverType) {
			return a[0].(traits.Receiver).Receive(name, overload, a[1:])
		}
		return types.NewErr("no such overload: %s", name)
	}
}

// concatenated is the sum of two lists; nil if it is another call.
func concatenated(name string, a []ref.Val) ref.Val {
	if name != operators.Add || grows(a[0]) {
		return nil
	}
	var all []ref.Val
	for _, v := range a {
		list, ok := v.(traits.Lister)
		if !ok {
			return nil
		}
		for i := range length(list) {
			all = append(all, list.Get(types.Int(i)))
		}
	}
	return types.NewRefValList(types.DefaultTypeAdapter, all)
}

// plain converts a value to the types of JSON: nil, bool, int64, float64, string, []any,
// map[string]any.
func (b *budget) plain(v ref.Val, depth int) (any, error) {
	if depth > depthLimit {
		b.spend(b.left + 1)
	}
	b.spend(shallow(v))
	switch v := v.(type) {
	case types.Null:
		return nil, nil
	case types.Bool:
		return bool(v), nil
	case types.Int:
		return int64(v), nil
	case types.Double:
		return float64(v), nil
	case types.String:
		return strings.ToValidUTF8(string(v), "\uFFFD"), nil
	case traits.Mapper:
		return b.plainMap(v, depth)
	case traits.Lister:
		n, _ := v.Size().(types.Int) // always an Int
		out := []any{}
		for i := types.Int(0); i < n; i++ {
			x, err := b.plain(v.Get(i), depth+1)
			if err != nil {
				return nil, err
			}
			out = append(out, x)
		}
		return out, nil
	case types.Timestamp, types.Duration:
		return b.plain(v.ConvertToType(types.StringType), depth)
	}
	return nil, fmt.Errorf("the result holds %s, which no object can", v.Type().TypeName())
}

func (b *budget) plainMap(v traits.Mapper, depth int) (any, error) {
	out := map[string]any{}
	for it := v.Iterator(); it.HasNext() == types.True; {
		key := it.Next()
		name, ok := key.(types.String)
		if !ok {
			return nil, fmt.Errorf("the result holds a map with a key that is no string but %s", key.Type().TypeName())
		}
		b.spend(shallow(name))
		x, err := b.plain(v.Get(key), depth+1)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", string(name), err)
		}
		out[string(name)] = x
	}
	return out, nil
}

// result is plain, with the exhausted budget as an error.
func result(b *budget, v ref.Val) (out any, err error) {
	defer func() {
		if r := recover(); r != nil {
			ended, ok := r.(interpreter.EvalCancelledError)
			if !ok {
				panic(r)
			}
			out, err = nil, ended
		}
	}()
	return b.plain(v, 0)
}
