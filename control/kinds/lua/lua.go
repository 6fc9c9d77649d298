// Package lua runs scripts in Lua 5.1 on values of JSON, with counted work: for the same input a
// script is stopped at the same instruction on any machine. It knows no operations and no kinds;
// control/kinds calls it.
package lua

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
)

// Bounds of a script in Lua. The work of an evaluation is counted, not timed: a result must not
// depend on the load of the machine.
const (
	// work bounds the work of an evaluation, in units of about 16 bytes or 10 ns; an instruction is
	// instruction of them.
	work        = 4 << 20
	instruction = 8
	// maxText bounds each text that a script makes, and each script, in bytes.
	maxText = 256 << 10
	// maxDepth bounds the nesting of values, so that a table that contains itself is an error.
	maxDepth = 64
	// maxFrames bounds nested calls, maxValues the values on the stack.
	maxFrames = 200
	maxValues = 1 << 16
)

// ErrWork ends an evaluation that exceeds work.
var ErrWork = errors.New("the script was stopped: it exceeded the limit of work for one object; look for a loop without end")

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
	if m.left -= instruction; m.left < 0 {
		return stopped
	}
	return nil
}

// Err implements context.Context.
func (m *meter) Err() error { return ErrWork }

// spend counts work before it is done. L raises an error if not enough is left.
func (m *meter) spend(l *lua.LState, units float64) {
	if units > float64(m.left) {
		m.left = -1
		l.RaiseError("%v", ErrWork)
	}
	m.left -= int(units)
}

// text counts a text that is about to be made.
func (m *meter) text(l *lua.LState, bytes float64) {
	if bytes > maxText {
		l.RaiseError("a text of more than %d bytes", maxText)
	}
	m.spend(l, bytes/16)
}

// Hidden functions, called by rewritten operators: identifiers of Lua cannot contain dots.
const (
	concatName = "kinds.concat"
	indexName  = "kinds.index"
	lengthName = "kinds.length"
)

// Library are the functions of the module kube: they take and return values of JSON.
type Library map[string]func(args []any) (any, error)

// Program is a compiled script, safe for concurrent use.
type Program struct {
	proto *lua.FunctionProto
}

// Call runs the script and calls one of its functions with values of JSON, each time in a state of
// its own. It returns as many results as there are references, the inputs that each result
// resembles (fromLua). The error is ErrWork if the script was stopped.
func (p *Program) Call(function string, kube Library, args []any, references ...[]any) (out []any, err error) {
	m := &meter{left: work}
	defer func() {
		if r := recover(); r != nil { // conversions run outside of a protected call
			err = message(fmt.Sprint(r))
		}
		if m.left < 0 {
			out, err = nil, ErrWork
		}
	}()
	l := m.open(kube)
	defer l.Close()
	l.SetContext(m)
	if err := l.CallByParam(lua.P{Fn: l.NewFunctionFromProto(p.proto), Protect: true}); err != nil {
		return nil, raised(err)
	}
	f, ok := l.GetGlobal(function).(*lua.LFunction)
	if !ok {
		return nil, fmt.Errorf("the script does not define the function %s", function)
	}
	values := make([]lua.LValue, len(args))
	for i, arg := range args {
		values[i] = m.toLua(l, arg)
	}
	if err := l.CallByParam(lua.P{Fn: f, NRet: len(references), Protect: true}, values...); err != nil {
		return nil, raised(err)
	}
	out = make([]any, len(references))
	for i := range out {
		if out[i], err = m.fromLua(l.Get(i-len(references)), maxDepth, references[i]...); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// raised is the message of an error without the stack.
func raised(err error) error {
	text := err.Error()
	if of := new(lua.ApiError); errors.As(err, &of) && of.Object != nil {
		text = of.Object.String()
	}
	return message(text)
}

// message bounds a message, which may quote a value, to 500 bytes on one line.
func message(text string) error {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > 500 {
		text = strings.ToValidUTF8(text[:500], "") + "…"
	}
	return errors.New(text)
}

// Compile compiles a script. Operators that can do unbounded work in one instruction become calls
// of counted functions.
func Compile(text string) (program *Program, err error) {
	if len(text) > maxText {
		return nil, fmt.Errorf("the script is longer than %d bytes", maxText)
	}
	defer func() {
		// the compiler panics at its limits, of registers and constants
		if r := recover(); r != nil {
			program, err = nil, message(fmt.Sprint(r))
		}
	}()
	for _, open := range []string{"(", "{", "[", "not", "-", "#", "..", "^", "function", "if", "do", "while", "for", "repeat"} {
		if strings.Count(text, open) > 20_000 {
			return nil, fmt.Errorf("the script has more than 20000 times %q", open)
		}
	}
	chunk, err := parse.Parse(strings.NewReader(text), "script")
	if err != nil {
		return nil, message(err.Error())
	}
	count(reflect.ValueOf(chunk))
	proto, err := lua.Compile(chunk, "script")
	if err != nil {
		return nil, message(err.Error())
	}
	return &Program{proto}, nil
}

// count replaces, in a syntax tree, concatenations, lengths and computed indexes of what is
// assigned by calls.
func count(v reflect.Value) {
	switch v.Kind() {
	case reflect.Interface:
		if v.IsNil() {
			return
		}
		count(v.Elem())
		switch c := v.Interface().(type) {
		case *ast.StringConcatOpExpr:
			v.Set(reflect.ValueOf(countedCall(concatName, c.Line(), c.Lhs, c.Rhs)))
		case *ast.UnaryLenOpExpr:
			v.Set(reflect.ValueOf(countedCall(lengthName, c.Line(), c.Expr)))
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
	return countedCall(indexName, key.Line(), key)
}

func countedCall(name string, line int, args ...ast.Expr) *ast.FuncCallExpr {
	call := &ast.FuncCallExpr{Func: &ast.IdentExpr{Value: name}, Args: args}
	call.SetLine(line)
	call.SetLastLine(line)
	call.Func.SetLine(line)
	call.Func.SetLastLine(line)
	return call
}

// open returns a state with the libraries string, math and table, the functions of the language
// that read no file, no clock and no metatable, and `require "kube"`.
func (m *meter) open(kube Library) *lua.LState {
	l := lua.NewState(lua.Options{
		SkipOpenLibs: true, CallStackSize: maxFrames, MinimizeStackMemory: true, RegistrySize: 1024, RegistryMaxSize: maxValues,
		RegistryGrowStep: maxValues / 16, // each step copies all values
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
	unpack, _ := globals.RawGetString("unpack").(*lua.LFunction) // OpenBase has set it
	values := unpack.GFunction
	unpack.GFunction = func(l *lua.LState) int {
		list := l.CheckTable(1)
		m.spend(l, max(0, float64(l.OptInt(3, list.Len()))-float64(l.OptInt(2, 1))+1))
		return values(l)
	}
	m.guardText(globals.RawGetString("string"))
	m.guardTable(globals.RawGetString("table"))
	set := func(t *lua.LTable, name string, f func(l *lua.LState) int) { t.RawSetString(name, l.NewFunction(f)) }
	set(globals, concatName, m.concat)
	set(globals, indexName, func(l *lua.LState) int {
		if n, ok := l.Get(1).(lua.LNumber); ok && n > 0 && n < lua.LNumber(lua.MaxArrayIndex) {
			m.spend(l, float64(n)) // an array is filled up to the index
		}
		l.SetTop(1)
		return 1
	})
	set(globals, lengthName, m.length)
	next := l.NewFunction(m.next)
	globals.RawSetString("next", next)
	set(globals, "pairs", func(l *lua.LState) int {
		l.Push(next)
		l.Push(l.CheckTable(1))
		l.Push(lua.LNil)
		return 3
	})
	library := l.NewTable()
	for name, f := range kube {
		set(library, name, func(l *lua.LState) int {
			args := make([]any, l.GetTop())
			for i := range args {
				v, err := m.fromLua(l.Get(i+1), maxDepth)
				if err != nil {
					l.ArgError(i+1, err.Error())
				}
				args[i] = v
			}
			v, err := f(args)
			if err != nil {
				l.RaiseError("%s: %v", name, err)
			}
			l.Push(m.toLua(l, v))
			return 1
		})
	}
	set(globals, "require", func(l *lua.LState) int {
		if name := l.CheckString(1); name != "kube" {
			l.RaiseError("the module %.64q is not available: only kube is", name)
		}
		l.Push(library)
		return 1
	})
	return l
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

// length is the operator `#`. The interpreter searches for the length from the end of the table's
// array, which may be longer.
func (m *meter) length(l *lua.LState) int {
	v := l.Get(1)
	t, isTable := v.(*lua.LTable)
	if _, isText := v.(lua.LString); !isTable && !isText {
		l.RaiseError("attempt to get length of a %s value", v.Type())
	}
	n := l.ObjLen(v)
	if isTable {
		m.spend(l, float64(arrayOf(t)-n)/2)
	}
	l.Push(lua.LNumber(n))
	return 1
}

// next is the function of that name. It passes over the places of the table's array that are nil.
func (m *meter) next(l *lua.LState) int {
	t, before := l.CheckTable(1), l.Get(2)
	key, value := t.Next(before)
	from, to := lua.LNumber(0), lua.LNumber(arrayOf(t))
	if at, ok := before.(lua.LNumber); ok {
		from = at
	}
	if at, ok := key.(lua.LNumber); ok && at < to {
		to = at
	}
	m.spend(l, max(0, float64(to-from)/2))
	l.Push(key)
	if key == lua.LNil {
		return 1
	}
	l.Push(value)
	return 2
}

// arrayOf is how long the array of a table is, whether its places are nil or not.
func arrayOf(t *lua.LTable) int { return reflect.ValueOf(t).Elem().FieldByName("array").Len() }

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

// guardFunctions has each function of a library call its cost, or otherwise, before it runs, and
// removes one.
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
