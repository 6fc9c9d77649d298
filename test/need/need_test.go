package need

import "testing"

func TestLeft(t *testing.T) {
	for _, tt := range []struct {
		name, tier, system string
		user               int
		want               bool
	}{
		{"go test on a laptop", "", "darwin", 501, true},
		{"go test without root", "", "linux", 1000, true},
		{"go test as root", "", "linux", 0, false},
		{"make check, whoever runs it", TierCheck, "linux", 0, true},
		{"make test without root fails", "test", "linux", 1000, false},
		{"make test on another system fails", "test", "darwin", 0, false},
	} {
		if got := left(tt.tier, tt.system, tt.user); got != tt.want {
			t.Errorf("%s: left out %t, want %t", tt.name, got, tt.want)
		}
	}
}

// skipped records why a test is left out.
type skipped struct {
	testing.TB
	text string
}

func (s *skipped) Helper()          {}
func (s *skipped) Skip(args ...any) { s.text = args[0].(string) }

func TestMessages(t *testing.T) {
	t.Setenv(TierVariable, TierCheck)
	for want, need := range map[string]func(testing.TB){
		"left out: needs root on Linux: run `make test`":                Root,
		"left out: needs Kubernetes' API server: run `make test`":       Kubernetes,
		"left out: needs clusters with nodes: run `make test-clusters`": Clusters,
	} {
		s := &skipped{TB: t}
		need(s)
		if s.text != want {
			t.Errorf("got %q, want %q", s.text, want)
		}
	}
}
