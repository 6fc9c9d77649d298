package install

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
)

func TestPromptGateways(t *testing.T) {
	for answers, want := range map[string]string{"2 3\n": "c d", "\n": "", "9\nx\n1,1\n": "b"} {
		got, err := PromptGateways(t.Context(), []string{"b", "c", "d"}, view.NewAnswers(strings.NewReader(answers)), io.Discard)
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%q: %q, %v, want %q", answers, got, err, want)
		}
	}
	if _, err := PromptGateways(t.Context(), []string{"b", "c"}, view.NewAnswers(strings.NewReader("9")), io.Discard); err == nil ||
		!strings.Contains(err.Error(), "read the choice") {
		t.Errorf("without an answer: %v", err)
	}
}

// TestGatewayPromptEndsWithContext: Ctrl-C, which main turns into the end of the context, ends the
// prompt.
func TestGatewayPromptEndsWithContext(t *testing.T) {
	silent, end := io.Pipe()
	defer end.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := PromptGateways(ctx, []string{"a", "b"}, view.NewAnswers(silent), io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want %v", err, context.Canceled)
	}
}
