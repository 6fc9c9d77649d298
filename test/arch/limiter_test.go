package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// TestRateLimiters: each controller of the hub and of Works sets its rate limiter. With
// controller-runtime's default, an object waits after an outage of the hub for as long again, up to
// 1000 s.
func TestRateLimiters(t *testing.T) {
	fset := token.NewFileSet()
	for _, root := range []string{"../../control/hub", "../../control/execute"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CallExpr:
					if calls := chain(n); calls["Complete"] && calls["NewControllerManagedBy"] && !calls["WithOptions"] {
						t.Errorf("%s: a controller without WithOptions: use kube.HubControllerOptions", fset.Position(n.Pos()))
					}
				case *ast.CompositeLit:
					if isControllerOptions(n.Type) && !hasKey(n, "RateLimiter") {
						t.Errorf("%s: controller.Options without RateLimiter: use kube.HubRateLimiter", fset.Position(n.Pos()))
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// chain are the names of the functions in a chain of calls.
func chain(call *ast.CallExpr) map[string]bool {
	names := map[string]bool{}
	for call != nil {
		s, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			break
		}
		names[s.Sel.Name] = true
		call, _ = s.X.(*ast.CallExpr)
	}
	return names
}

// isControllerOptions reports whether a type is controller.Options or controller.TypedOptions[…].
func isControllerOptions(e ast.Expr) bool {
	if i, ok := e.(*ast.IndexExpr); ok {
		e = i.X
	}
	s, ok := e.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	of, ok := s.X.(*ast.Ident)
	return ok && of.Name == "controller" && (s.Sel.Name == "Options" || s.Sel.Name == "TypedOptions")
}

func hasKey(lit *ast.CompositeLit, key string) bool {
	for _, e := range lit.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			if name, ok := kv.Key.(*ast.Ident); ok && name.Name == key {
				return true
			}
		}
	}
	return false
}
