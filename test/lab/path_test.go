package lab

import (
	"context"
	"strings"
	"testing"
	"time"
)

// Paths that do not exist are refused before anything is touched.
func TestPathEnds(t *testing.T) {
	plan, err := planFor(Options{Nodes: 2})
	if err != nil {
		t.Fatal(err)
	}
	l := &Lab{record: record{Plan: plan}}
	for _, tt := range []struct{ a, b, want string }{
		{"g1-n1", "g9", `"g9"`},
		{"g1", "g1", "no path between"},
		{"g1-n1", "g1", "no path between"},
		{"g1-n1", "g1-n1", "no path between"},
	} {
		if err := l.CutPath(tt.a, tt.b); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("cut %s–%s: %v, want an error with %s", tt.a, tt.b, err, tt.want)
		}
	}
	for _, tt := range []struct {
		a, b string
		i    Impairment
		want string
	}{
		{"g1-n1", "g1-n2", Impairment{Loss: 0.5}, "only paths between clusters"},
		{"g1", "g2", Impairment{Delay: time.Minute}, "out of range"},
		{"g1", "g2", Impairment{Loss: 1.5}, "out of range"},
	} {
		if err := l.ImpairPath(context.Background(), tt.a, tt.b, tt.i); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("impair %s–%s by %+v: %v, want an error with %s", tt.a, tt.b, tt.i, err, tt.want)
		}
	}
	for ends, want := range map[[2]string]bool{{"g1-n1", "g1-n2"}: true, {"g1-n1", "g2-n1"}: false, {"g1", "g2"}: false, {"g1-n1", "hub"}: false} {
		if _, _, same, err := plan.ends(ends[0], ends[1]); err != nil || same != want {
			t.Errorf("ends %v: same cluster %v, %v, want %v", ends, same, err, want)
		}
	}
}
