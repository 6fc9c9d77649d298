package lua

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	lua "github.com/yuin/gopher-lua"
)

// toLua converts a value of JSON. null is absent in a table.
func (m *meter) toLua(l *lua.LState, v any) lua.LValue {
	m.spend(l, 8)
	switch v := v.(type) {
	case map[string]any:
		t := l.CreateTable(0, len(v))
		for _, key := range slices.Sorted(maps.Keys(v)) { // pairs has the order of insertion
			if x := v[key]; x != nil {
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

// fromLua converts to the types of JSON. An empty table is a list or a map as in the first of the
// references, values of the same place in the script's inputs, that has one there; without
// reference it is absent. A number equal to that of a reference has its type and precision.
func (m *meter) fromLua(v lua.LValue, depth int, references ...any) (any, error) {
	if m.left -= instruction; m.left < 0 {
		return nil, ErrWork
	}
	if depth == 0 {
		return nil, fmt.Errorf("tables nested more than %d deep", maxDepth)
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
