package kinds

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	"pgregory.net/rapid"
)

// doubled nests an expression n times: each level binds x to what the form makes of the level
// within.
func doubled(form, inner string, n int) string {
	for range n {
		inner = "[" + inner + "].map(x, " + form + ")[0]"
	}
	return inner
}

// hostile are expressions that are to end by their limits: the test itself ends by that of `go
// test`.
var hostile = map[string]string{
	"loops in loops": "items.all(a, items.all(b, items.all(c, items.all(d, items.all(e, items.all(f, items.all(g, true)))))))",
	"a list of lists that is as large as one cares, compared": doubled("[x, x]", "[1]", 60) + " == " + doubled("[x, x]", "[1]", 60),
	"the same as maps":                    doubled("{'a': x, 'b': x}", "1", 60) + " == " + doubled("{'a': x, 'b': x}", "1", 60),
	"the same, as the result":             doubled("[x, x]", "[1]", 60),
	"the same, searched":                  "[" + doubled("[x, x]", "[1]", 60) + "].indexOf(" + doubled("[x, x]", "[1]", 60) + ")",
	"the same, for membership":            doubled("[x, x]", "[1]", 60) + " in [" + doubled("[x, x]", "[1]", 60) + "]",
	"the same, merged":                    "{'a': 1}.merge(" + doubled("{'a': x, 'b': x}", "1", 60) + ")",
	"the same, read as a pod":             "podRequirements(" + doubled("{'a': x, 'b': x}", "1", 60) + ")",
	"the same, added up":                  "addUp([" + doubled("{'a': x, 'b': x}", "1", 60) + "])",
	"a long list":                         doubled("x + x", "[1]", 60) + ".all(y, true)",
	"a long list, as the result":          doubled("x + x", "[1]", 60),
	"a long list, joined":                 doubled("x + x", "['a']", 60) + ".join(',')",
	"a regular expression of many states": doubled("x + x", "'aaaaaaaa'", 10) + ".find('" + strings.Repeat("a{1000}", 250) + "$') == ''",
	"a large value as a key":              "dyn({'a': 1})[dyn(" + doubled("[x, x]", "[1]", 60) + ")] == 1",
	"a long text":                         doubled("x + x", "'abcdefgh'", 60),
	"a text that grows by its square":     doubled("x.replace('a', x)", "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'", 10),
	"a text that grows between letters":   doubled("x.replace('', x)", "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'", 10),
	"a text, split and joined by itself":  doubled("x.split('').join(x)", "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'", 10),
	"a regular expression on a long text": doubled("x + x", "'abcdefgh'", 18) + ".matches('(a|b|c|d)*(e|f|g|h)*(a*)*$')",
	"a constant one":                      doubled("x + x", "'abcdefgh'", 14) + ".find('((a|b|c|d)*(e|f|g|h)*){9}(a*){9}$') != 'a' && items.all(i, items.all(j, " + doubled("x + x", "'abcdefgh'", 14) + ".find('a$') == ''))",
	"a map that grows":                    doubled("x.merge({string(x.size()): x})", "{'a': 1}", 60),
	"sums in loops":                       "items.all(a, items.all(b, items.all(c, sums(object, items, ['a', 'b', 'c']).a >= 0)))",
	"conditions in loops":                 "items.all(a, items.all(b, mergeConditions(object, items, []).size() >= 0))",
}

func many(n int) []any {
	var items []any
	for i := range n {
		items = append(items, map[string]any{"clusterName": fmt.Sprint("m", i), "status": map[string]any{
			"a": int64(i), "conditions": []any{map[string]any{"type": "Ready", "status": "True"}},
		}})
	}
	return items
}

func TestHostileExpressionsEnd(t *testing.T) {
	vars := map[string]any{"object": map[string]any{}, "items": many(200)}
	for name, text := range hostile {
		t.Run(name, func(t *testing.T) {
			x, err := compile(text, variables{varObject, varItems}, cel.DynType)
			if err != nil {
				t.Fatal(err)
			}
			if out, err := x.eval(vars); err == nil {
				t.Errorf("the result is %.80v", out)
			} else if !strings.Contains(err.Error(), "operation cancelled") {
				t.Errorf("it ended, but for another reason: %v", err)
			}
		})
	}
}

// Whatever is put together, an evaluation ends within its limits: the cost that CEL counts, and the
// weight of what calls read.
func TestExpressionsEndWithinTheirCost(t *testing.T) {
	vars := map[string]any{"object": map[string]any{"a": "abc"}, "items": many(30)}
	rapid.Check(t, func(t *rapid.T) {
		text := value(rapid.IntRange(0, 12).Draw(t, "depth")).Draw(t, "expression")
		x, err := compile(text, variables{varObject, varItems}, cel.DynType)
		if err != nil {
			return // the types do not fit
		}
		b := &budget{left: workLimit}
		_, details, err := x.program.Eval(map[string]any{"object": vars["object"], "items": vars["items"], budgetName: b})
		cost := *details.ActualCost()
		// The last step may cost more than is left; then there is no result.
		if cost > stepLimit && err == nil || b.left < 0 {
			t.Fatalf("%s: cost %d, left %d, %v", text, cost, b.left, err)
		}
	})
}

// value draws an expression that is nested so deep.
func value(depth int) *rapid.Generator[string] {
	leaf := rapid.SampledFrom([]string{"1", "'abc'", "items", "object", "[1, 'a', null]", "{'a': 1}", "object.a"})
	if depth == 0 {
		return leaf
	}
	in := value(depth - 1)
	form := rapid.SampledFrom([]string{
		"[@, @]", "{'a': @, 'b': @}", "(@ == @)", "(@ + @)", "[@].map(x, [x, x])[0]", "[@].map(x, x + x)[0]", "items.map(i, @)",
		"items.filter(i, @ == i)", "string(@)", "size(@)", "(@ in [@])", "dyn(@)", "items.exists(i, i == @)", "(true ? @ : @)",
		"[dyn(@)].indexOf(dyn(@))", "addUp([dyn(@)])", "dyn(@).merge(dyn(@))", "string(@).replace('a', string(@))", "[@][?0].orValue(@)",
	})
	return rapid.Custom(func(t *rapid.T) string {
		out := form.Draw(t, "form")
		for strings.Contains(out, "@") && len(out) < 2000 {
			out = strings.Replace(out, "@", in.Draw(t, "value"), 1)
		}
		return strings.ReplaceAll(out, "@", "1")
	})
}

func FuzzExpression(f *testing.F) {
	for _, text := range hostile {
		f.Add(text)
	}
	f.Add("object.?a.orValue('') + 'x'")
	vars := map[string]any{"object": map[string]any{"a": "abc"}, "items": many(3)}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 16384 {
			return // the API server takes no longer ones
		}
		x, err := compile(text, variables{varObject, varItems}, cel.DynType)
		if err != nil {
			return
		}
		if _, err := x.eval(vars); err != nil && strings.Contains(err.Error(), "internal error") {
			t.Errorf("%s: %v", text, err)
		}
	})
}
