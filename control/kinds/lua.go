package kinds

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"strings"

	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/ast"
	"github.com/yuin/gopher-lua/parse"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Bounds of a script in Lua. The work of an evaluation is counted, not timed: a result must not depend on the load of the machine.
const (
	// luaWork bounds the work of an evaluation, in units of about 16 bytes or 10 ns; an instruction is luaInstruction of them.
	luaWork        = 4 << 20
	luaInstruction = 8
	// luaText bounds each text that a script makes, and each script, in bytes.
	luaText = 256 << 10
	// luaDepth bounds the nesting of values, so that a table that contains itself is an error.
	luaDepth = 64
	// luaFrames bounds nested calls, luaValues the values on the stack.
	luaFrames = 200
	luaValues = 1 << 16
)

// errLuaWork ends an evaluation that exceeds luaWork.
var errLuaWork = errors.New("the script was stopped: it exceeded the limit of work for one object; look for a loop without end")

// meter counts the work of one evaluation. The interpreter calls Done before each instruction.
type meter struct {
	context.Context
	left int
}

// stopped is what Done returns when no work is left.
var stopped = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Done implements context.Context.
func (m *meter) Done() <-chan struct{} {
	if m.left -= luaInstruction; m.left < 0 {
		return stopped
	}
	return nil
}

// Err implements context.Context.
func (m *meter) Err() error { return errLuaWork }

// spend counts work before it is done. L raises an error if not enough is left.
func (m *meter) spend(l *lua.LState, units float64) {
	if units > float64(m.left) {
		m.left = -1
		l.RaiseError("%v", errLuaWork)
	}
	m.left -= int(units)
}

// text counts a text that is about to be made.
func (m *meter) text(l *lua.LState, bytes float64) {
	if bytes > luaText {
		l.RaiseError("a text of more than %d bytes", luaText)
	}
	m.spend(l, bytes/16)
}

// Hidden functions, called by rewritten operators: identifiers of Lua cannot contain dots.
const (
	luaConcat = "kinds.concat"
	luaIndex  = "kinds.index"
)

// compileLua compiles a script. Operators that can do unbounded work in one instruction become calls of counted functions.
func compileLua(text string) (proto *lua.FunctionProto, err error) {
	if len(text) > luaText {
		return nil, fmt.Errorf("the script is longer than %d bytes", luaText)
	}
	defer func() {
		if r := recover(); r != nil { // the compiler panics at its limits, of registers and constants
			proto, err = nil, errors.New(shorten(fmt.Sprint(r), maxEvalError))
		}
	}()
	for _, open := range []string{"(", "{", "[", "not", "-", "#", "..", "^", "function", "if", "do", "while", "for", "repeat"} {
		if strings.Count(text, open) > 20_000 {
			return nil, fmt.Errorf("the script has more than 20000 times %q", open)
		}
	}
	chunk, err := parse.Parse(strings.NewReader(text), "script")
	if err != nil {
		return nil, errors.New(shorten(strings.Join(strings.Fields(err.Error()), " "), maxEvalError))
	}
	count(reflect.ValueOf(chunk))
	return lua.Compile(chunk, "script")
}

// count replaces, in a syntax tree, concatenations and computed indexes of what is assigned by calls.
func count(v reflect.Value) {
	switch v.Kind() {
	case reflect.Interface:
		if v.IsNil() {
			return
		}
		count(v.Elem())
		if c, ok := v.Interface().(*ast.StringConcatOpExpr); ok {
			v.Set(reflect.ValueOf(countedCall(luaConcat, c.Line(), c.Lhs, c.Rhs)))
		}
	case reflect.Pointer:
		if v.IsNil() {
			return
		}
		count(v.Elem())
		switch x := v.Interface().(type) {
		case *ast.AssignStmt:
			for _, left := range x.Lhs {
				if at, ok := left.(*ast.AttrGetExpr); ok {
					at.Key = countedKey(at.Key)
				}
			}
		case *ast.Field:
			x.Key = countedKey(x.Key)
		}
	case reflect.Slice:
		for i := range v.Len() {
			count(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				count(v.Field(i))
			}
		}
	}
}

func countedKey(key ast.Expr) ast.Expr {
	if _, name := key.(*ast.StringExpr); name || key == nil {
		return key
	}
	return countedCall(luaIndex, key.Line(), key)
}

func countedCall(name string, line int, args ...ast.Expr) *ast.FuncCallExpr {
	call := &ast.FuncCallExpr{Func: &ast.IdentExpr{Value: name}, Args: args}
	call.SetLine(line)
	call.SetLastLine(line)
	call.Func.SetLine(line)
	call.Func.SetLastLine(line)
	return call
}

// newLua returns a state with the libraries string, math and table, the functions of the language that read no file, no clock and
// no metatable, and `require "kube"`.
func newLua(m *meter) *lua.LState {
	l := lua.NewState(lua.Options{
		SkipOpenLibs: true, CallStackSize: luaFrames, MinimizeStackMemory: true, RegistrySize: 1024, RegistryMaxSize: luaValues,
	})
	for _, open := range []lua.LGFunction{lua.OpenBase, lua.OpenString, lua.OpenMath, lua.OpenTable} {
		l.Push(l.NewFunction(open))
		l.Call(0, 0)
	}
	globals := l.G.Global
	for _, name := range []string{
		"_G", "_GOPHER_LUA_VERSION", "_printregs", "_VERSION", "collectgarbage", "dofile", "getfenv", "getmetatable", "load", "loadfile",
		"loadstring", "module", "newproxy", "pcall", "print", "rawset", "setfenv", "setmetatable", "xpcall",
	} {
		globals.RawSetString(name, lua.LNil)
	}
	maths, _ := globals.RawGetString("math").(*lua.LTable) // OpenMath has set it
	maths.RawSetString("random", lua.LNil)
	maths.RawSetString("randomseed", lua.LNil)
	m.guardText(globals.RawGetString("string"))
	m.guardTable(globals.RawGetString("table"))
	set := func(t *lua.LTable, name string, f func(l *lua.LState) int) { t.RawSetString(name, l.NewFunction(f)) }
	set(globals, luaConcat, m.concat)
	set(globals, luaIndex, func(l *lua.LState) int {
		if n, ok := l.Get(1).(lua.LNumber); ok && n > 0 && n < lua.LNumber(lua.MaxArrayIndex) {
			m.spend(l, float64(n)) // an array is filled up to the index
		}
		l.SetTop(1)
		return 1
	})
	library := l.NewTable()
	set(library, "accuratePodRequirements", m.podRequirements)
	set(library, "getPodDependencies", m.podDependencies)
	set(library, "getResourceQuantity", func(l *lua.LState) int {
		q := quantityAt(l, 1)
		l.Push(lua.LNumber(q.AsApproximateFloat64()))
		return 1
	})
	set(library, "resourceAdd", func(l *lua.LState) int {
		sum := resource.Quantity{}
		for i := range l.GetTop() {
			if l.Get(i+1) != lua.LNil {
				sum.Add(quantityAt(l, i+1))
			}
		}
		l.Push(lua.LString(sum.String()))
		return 1
	})
	set(globals, "require", func(l *lua.LState) int {
		if name := l.CheckString(1); name != "kube" {
			l.RaiseError("the module %q is not available: only kube is", shorten(name, 64))
		}
		l.Push(library)
		return 1
	})
	return l
}

// quantityAt reads a resource quantity, a text or a number.
func quantityAt(l *lua.LState, at int) resource.Quantity {
	q, err := resource.ParseQuantity(shorten(lua.LVAsString(l.Get(at)), 64))
	if err != nil {
		l.ArgError(at, err.Error())
	}
	return q
}

// concat is the operator `..`.
func (m *meter) concat(l *lua.LState) int {
	var texts [2]string
	for i := range texts {
		v := l.Get(i + 1)
		if !lua.LVCanConvToString(v) {
			l.RaiseError("attempt to concatenate a %s value", v.Type())
		}
		texts[i] = lua.LVAsString(v)
	}
	m.text(l, float64(len(texts[0])+len(texts[1])))
	l.Push(lua.LString(texts[0] + texts[1]))
	return 1
}

// directive is one conversion of string.format; Lua limits width and precision to two digits.
var directive = regexp.MustCompile(`%[-+ #0]{0,5}[0-9]{0,2}(\.[0-9]{0,2})?[cdeEfgGioqsuxX%]`)

// guardText has the functions of strings count their work.
func (m *meter) guardText(library lua.LValue) {
	size := func(l *lua.LState, at int) float64 { return float64(len(lua.LVAsString(l.Get(at)))) }
	// A pattern backtracks at each of its repetitions, and begins at each byte.
	match := func(l *lua.LState) {
		pattern := lua.LVAsString(l.Get(2))
		repetitions := strings.Count(pattern, "*") + strings.Count(pattern, "+") + strings.Count(pattern, "-") + strings.Count(pattern, "?")
		if !strings.HasPrefix(pattern, "^") {
			repetitions++
		}
		m.spend(l, (float64(len(pattern))+math.Pow(size(l, 1)+1, float64(max(repetitions, 1))))/4)
	}
	cost := map[string]func(l *lua.LState){
		"rep":   func(l *lua.LState) { m.text(l, size(l, 1)*max(0, float64(l.OptNumber(2, 0)))) },
		"find":  match,
		"match": match, "gmatch": match,
		"gsub": func(l *lua.LState) {
			match(l)
			switch by := l.Get(3).(type) {
			case *lua.LFunction:
				l.Replace(3, l.NewFunction(func(l *lua.LState) int {
					args := make([]lua.LValue, l.GetTop())
					for i := range args {
						args[i] = l.Get(i + 1)
					}
					if err := l.CallByParam(lua.P{Fn: by, NRet: 1}, args...); err != nil {
						l.RaiseError("%v", err)
					}
					m.spend(l, size(l, -1)/16)
					return 1
				}))
			case *lua.LTable:
				l.Replace(3, l.NewFunction(func(l *lua.LState) int {
					l.Push(by.RawGet(l.Get(1)))
					m.spend(l, size(l, -1)/16)
					return 1
				}))
			default:
				m.spend(l, (size(l, 1)+1)*(size(l, 3)+1)/16)
			}
		},
		"format": func(l *lua.LState) {
			text, total := l.CheckString(1), 0.0
			if strings.Contains(directive.ReplaceAllString(text, ""), "%") {
				l.RaiseError("invalid conversion in the format")
			}
			for i := range l.GetTop() {
				total += 4*size(l, i+1) + 100
			}
			m.text(l, total+100*float64(strings.Count(text, "%")))
		},
	}
	guardFunctions(library, cost, func(l *lua.LState) {
		for i := range l.GetTop() {
			m.spend(l, size(l, i+1)/16)
		}
	}, "dump")
}

// guardTable has the functions of tables count their work.
func (m *meter) guardTable(library lua.LValue) {
	cost := map[string]func(l *lua.LState){
		"insert": func(l *lua.LState) {
			if l.GetTop() > 2 {
				m.spend(l, float64(l.CheckTable(1).Len())+max(0, min(float64(l.CheckNumber(2)), float64(lua.MaxArrayIndex))))
			}
		},
		"concat": func(l *lua.LState) {
			total, separator := 0.0, len(l.OptString(2, ""))
			l.CheckTable(1).ForEach(func(_, v lua.LValue) { total += float64(len(lua.LVAsString(v)) + separator) })
			m.text(l, total)
		},
		"sort": func(l *lua.LState) {
			n := float64(l.CheckTable(1).Len())
			m.spend(l, n*math.Log2(n+1))
		},
	}
	guardFunctions(library, cost, func(l *lua.LState) { m.spend(l, float64(l.CheckTable(1).Len())/16) }, "getn")
}

// guardFunctions has each function of a library call its cost, or otherwise, before it runs, and removes one.
func guardFunctions(library lua.LValue, cost map[string]func(*lua.LState), otherwise func(*lua.LState), removed string) {
	functions, _ := library.(*lua.LTable) // the library has been opened
	functions.RawSetString(removed, lua.LNil)
	functions.ForEach(func(name, v lua.LValue) {
		f, ok := v.(*lua.LFunction)
		if !ok {
			return
		}
		before, run := cost[name.String()], f.GFunction
		if before == nil {
			before = otherwise
		}
		f.GFunction = func(l *lua.LState) int {
			before(l)
			return run(l)
		}
	})
}

// podSpecAt reads the spec of a pod template.
func (m *meter) podSpecAt(l *lua.LState, at int) *corev1.PodSpec {
	v, err := m.fromLua(l.CheckTable(at), luaDepth)
	if err != nil {
		l.ArgError(at, err.Error())
	}
	template, _ := v.(map[string]any)            // else it has no spec
	spec, _ := template["spec"].(map[string]any) // nil: an empty one
	pod, err := typed[corev1.PodSpec](spec)
	if err != nil {
		l.ArgError(at, err.Error())
	}
	return pod
}

// podRequirements is kube.accuratePodRequirements(template): what a pod requests, nil if nothing.
func (m *meter) podRequirements(l *lua.LState) int {
	r := podRequirements(m.podSpecAt(l, 1), "")
	if r == nil {
		l.Push(lua.LNil)
		return 1
	}
	v, err := untyped(r)
	if err != nil {
		l.RaiseError("%v", err)
	}
	l.Push(m.toLua(l, v))
	return 1
}

// podDependencies is kube.getPodDependencies(template, namespace): what a pod refers to.
func (m *meter) podDependencies(l *lua.LState) int {
	out := l.NewTable()
	for _, d := range podDependencies(l.OptString(2, ""), m.podSpecAt(l, 1), nil) {
		v, err := untyped(&d)
		if err != nil {
			l.RaiseError("%v", err)
		}
		out.Append(m.toLua(l, v))
	}
	l.Push(out)
	return 1
}

// toLua converts a value of JSON. null is absent in a table.
func (m *meter) toLua(l *lua.LState, v any) lua.LValue {
	m.spend(l, 8)
	switch v := v.(type) {
	case map[string]any:
		t := l.CreateTable(0, len(v))
		for key, x := range v {
			if x != nil {
				t.RawSetString(key, m.toLua(l, x))
			}
		}
		return t
	case []any:
		t := l.CreateTable(len(v), 0)
		for _, x := range v {
			t.Append(m.toLua(l, x))
		}
		return t
	case string:
		return lua.LString(v)
	case bool:
		return lua.LBool(v)
	case int64:
		return lua.LNumber(v)
	case int32:
		return lua.LNumber(v)
	case float64:
		return lua.LNumber(v)
	}
	return lua.LNil
}

// fromLua converts to the types of JSON. An empty table is a list or a map as in the first of the references, values of the same
// place in the script's inputs, that has one there; without reference it is absent. A number equal to that of a reference has its
// type and precision.
func (m *meter) fromLua(v lua.LValue, depth int, references ...any) (any, error) {
	if m.left -= luaInstruction; m.left < 0 {
		return nil, errLuaWork
	}
	if depth == 0 {
		return nil, fmt.Errorf("tables nested more than %d deep", luaDepth)
	}
	switch v := v.(type) {
	case *lua.LNilType:
		return nil, nil
	case lua.LBool:
		return bool(v), nil
	case lua.LString:
		return string(v), nil
	case lua.LNumber:
		return fromNumber(float64(v), references)
	case *lua.LTable:
		return m.fromTable(v, depth, references)
	}
	return nil, fmt.Errorf("a %s is no value of an object", v.Type())
}

func fromNumber(n float64, references []any) (any, error) {
	if math.IsNaN(n) || math.IsInf(n, 0) {
		return nil, fmt.Errorf("%v is no number of JSON", n)
	}
	for _, r := range references {
		switch r := r.(type) {
		case int64:
			if float64(r) == n {
				return r, nil
			}
		case float64:
			if r == n {
				return r, nil
			}
		}
	}
	if n == math.Trunc(n) && math.Abs(n) < 1<<53 {
		return int64(n), nil
	}
	return n, nil
}

func (m *meter) fromTable(t *lua.LTable, depth int, references []any) (any, error) {
	entries, positions := map[string]any{}, 0
	var err error
	t.ForEach(func(key, v lua.LValue) {
		switch key := key.(type) {
		case lua.LNumber:
			positions++
		case lua.LString:
			var x any
			if err == nil {
				x, err = m.fromLua(v, depth-1, below(references, func(r any) any {
					in, _ := r.(map[string]any)
					return in[string(key)]
				})...)
			}
			if x != nil {
				entries[string(key)] = x
			}
		default:
			err = errors.Join(err, fmt.Errorf("a %s is no key", key.Type()))
		}
	})
	switch {
	case err != nil:
		return nil, err
	case positions == 0 && len(entries) > 0:
		return entries, nil
	case positions > 0 && (len(entries) > 0 || positions != t.Len()):
		return nil, errors.New("a table has to be either a list without gaps or a map")
	case positions == 0:
		for _, r := range references {
			switch r.(type) {
			case map[string]any:
				return map[string]any{}, nil
			case []any:
				return []any{}, nil
			}
		}
		return nil, nil
	}
	list := make([]any, positions)
	for i := range list {
		list[i], err = m.fromLua(t.RawGetInt(i+1), depth-1, below(references, func(r any) any {
			if in, _ := r.([]any); i < len(in) {
				return in[i]
			}
			return nil
		})...)
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// below returns what the references have at one place of theirs.
func below(references []any, at func(any) any) []any {
	var out []any
	for _, r := range references {
		if x := at(r); x != nil {
			out = append(out, x)
		}
	}
	return out
}
