package scheduler

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

func TestSplit(t *testing.T) {
	for _, c := range []struct {
		name    string
		total   int64
		weights map[string]int64
		uid     types.UID
		want    map[string]int64
	}{
		{"by weight", 10, map[string]int64{"a": 1, "b": 4}, "", map[string]int64{"a": 2, "b": 8}},
		{"a tie goes to the first name", 3, map[string]int64{"a": 1, "b": 1}, "", map[string]int64{"a": 2, "b": 1}},
		{"or to the last one, by the UID", 3, map[string]int64{"a": 1, "b": 1}, "a", map[string]int64{"a": 2, "b": 1}},
		{"of another template", 3, map[string]int64{"a": 1, "b": 1}, "b", map[string]int64{"a": 1, "b": 2}},
		{"no weight, no part", 3, map[string]int64{"a": 0, "b": 2}, "", map[string]int64{"b": 3}},
		{"nothing to divide", 0, map[string]int64{"a": 1}, "", nil},
		{"nobody to have it", 3, nil, "", nil},
	} {
		if diff := cmp.Diff(c.want, Split(c.total, c.weights, c.uid)); diff != "" {
			t.Errorf("%s: -want +got\n%s", c.name, diff)
		}
	}
}
