package lua

import (
	"errors"
	"testing"

	lua "github.com/yuin/gopher-lua"
)

// What the counting of work takes for granted of gopher-lua and that its interface does not
// promise. A new version that changes it fails here, and not at run time in a hub.

// TestArrayOf: a table has its array in an unexported field of this name, which keeps places that
// became nil.
func TestArrayOf(t *testing.T) {
	l := lua.NewState()
	defer l.Close()
	table := l.NewTable()
	for i := range 10 {
		table.Append(lua.LNumber(i))
	}
	table.RawSetString("x", lua.LTrue) // not in the array
	if n := arrayOf(table); n != 10 {
		t.Errorf("%d places of 10 values", n)
	}
	for i := range 10 {
		table.RawSetInt(i+1, lua.LNil)
	}
	if n := arrayOf(table); n != 10 || table.Len() != 0 {
		t.Errorf("%d places, length %d after all became nil", n, table.Len())
	}
}

// TestDoneForEachInstruction: the interpreter calls Done of its context before each instruction, so
// that each turn of an empty loop costs one instruction.
func TestDoneForEachInstruction(t *testing.T) {
	spent := func(turns int) int {
		l := lua.NewState()
		defer l.Close()
		m := &meter{left: work}
		l.SetContext(m)
		l.SetGlobal("turns", lua.LNumber(turns))
		if err := l.DoString("for i = 1, turns do end"); err != nil {
			t.Fatal(err)
		}
		return work - m.left
	}
	if first, second := spent(100), spent(300); second-first != 200*instruction {
		t.Errorf("200 turns cost %d units, want %d", second-first, 200*instruction)
	}
}

// TestStopped: a loop without end is stopped by the context, with its error.
func TestStopped(t *testing.T) {
	p, err := Compile("function F() while true do end end")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Call("F", nil, nil); !errors.Is(err, ErrWork) {
		t.Errorf("error %v, want %v", err, ErrWork)
	}
}
