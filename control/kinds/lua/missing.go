package lua

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/ast"
	"github.com/yuin/gopher-lua/parse"
)

// Missing returns the functions and modules that a script uses and that do not exist here, sorted,
// in the form in which the script names them, such as `os` or `math.random`. kube is the library
// that Call would get. A name that the script declares anywhere is its own.
func Missing(text string, kube Library) ([]string, error) {
	if _, err := Compile(text); err != nil {
		return nil, err
	}
	chunk, err := parse.Parse(strings.NewReader(text), "script")
	if err != nil {
		return nil, message(err.Error())
	}
	n := names{own: map[string]bool{}, modules: map[string]string{}, used: map[string]bool{}}
	n.visit(reflect.ValueOf(chunk), n.declared)
	n.visit(reflect.ValueOf(chunk), n.uses)
	l := (&meter{left: 1 << 20}).open(kube)
	defer l.Close()
	missing := map[string]bool{}
	for name := range n.used {
		of, member, isMember := strings.Cut(name, ".")
		at := l.GetGlobal(of)
		if isMember && of == "kube" {
			if kube[member] == nil {
				missing[name] = true
			}
			continue
		}
		if table, ok := at.(*lua.LTable); ok && isMember {
			at = table.RawGetString(member)
		}
		if at == lua.LNil {
			missing[name] = true
		}
	}
	return slices.Sorted(maps.Keys(missing)), nil
}

// names collects the names of a syntax tree.
type names struct {
	own     map[string]bool   // declared or assigned by the script
	modules map[string]string // variables that hold a module
	used    map[string]bool
}

// visit calls f with every node.
func (n *names) visit(v reflect.Value, f func(any)) {
	switch v.Kind() {
	case reflect.Interface, reflect.Pointer:
		if v.IsNil() {
			return
		}
		if v.Kind() == reflect.Pointer {
			f(v.Interface())
		}
		n.visit(v.Elem(), f)
	case reflect.Slice:
		for i := range v.Len() {
			n.visit(v.Index(i), f)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				n.visit(v.Field(i), f)
			}
		}
	}
}

// declared notes what the script declares, and the variables of modules.
func (n *names) declared(node any) {
	var left []string
	var right []ast.Expr
	switch x := node.(type) {
	case *ast.LocalAssignStmt:
		left, right = x.Names, x.Exprs
	case *ast.AssignStmt:
		for _, to := range x.Lhs {
			name := ""
			if of, ok := to.(*ast.IdentExpr); ok {
				name = of.Value
			}
			left = append(left, name)
		}
		right = x.Rhs
	case *ast.NumberForStmt:
		left = []string{x.Name}
	case *ast.GenericForStmt:
		left = x.Names
	case *ast.ParList:
		left = x.Names
	case *ast.FuncName:
		if of, ok := x.Func.(*ast.IdentExpr); ok {
			left = []string{of.Value}
		}
	}
	for i, name := range left {
		if name == "" {
			continue
		}
		n.own[name] = true
		if i < len(right) {
			if module := moduleOf(right[i]); module != "" {
				n.modules[name] = module
			}
		}
	}
}

// moduleOf is the module that an expression requires, "" if it requires none.
func moduleOf(e ast.Expr) string {
	call, ok := e.(*ast.FuncCallExpr)
	if !ok || len(call.Args) != 1 {
		return ""
	}
	f, ok := call.Func.(*ast.IdentExpr)
	name, isText := call.Args[0].(*ast.StringExpr)
	if !ok || !isText || f.Value != "require" {
		return ""
	}
	return name.Value
}

// uses notes what the script uses of others.
func (n *names) uses(node any) {
	switch x := node.(type) {
	case *ast.IdentExpr:
		if !n.own[x.Value] {
			n.used[x.Value] = true
		}
	case *ast.FuncCallExpr:
		if module := moduleOf(x); module != "" && module != "kube" {
			n.used[fmt.Sprintf("require(%q)", module)] = true
		}
	case *ast.AttrGetExpr:
		key, isText := x.Key.(*ast.StringExpr)
		if !isText {
			return
		}
		of := moduleOf(x.Object)
		if variable, ok := x.Object.(*ast.IdentExpr); ok {
			of = n.modules[variable.Value]
			if library := slices.Contains([]string{"string", "math", "table"}, variable.Value); library && !n.own[variable.Value] {
				of = variable.Value
			}
		}
		if of == "kube" || of == "string" || of == "math" || of == "table" {
			n.used[of+"."+key.Value] = true
		}
	}
}
