package view

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
)

// TestConfirm: a change continues only after y at a terminal.
func TestConfirm(t *testing.T) {
	for answer, want := range map[string]bool{"y\n": true, "Y": true, "n\n": false, "\n": false, "": false, "yes\n": false} {
		var out strings.Builder
		err := Confirm(t.Context(), NewAnswers(strings.NewReader(answer)), &out, "Remove it?")
		if (err == nil) != want || out.String() != "Remove it? [y/N] " {
			t.Errorf("answer %q: %v, prompt %q", answer, err, &out)
		}
	}
	if err := Confirm(t.Context(), nil, io.Discard, "Remove it?"); err == nil || !strings.Contains(err.Error(), "nothing was changed: answer y at a terminal, or give --yes") {
		t.Errorf("without a terminal: %v", err)
	}
	if Terminal(strings.NewReader("y\n")) != nil {
		t.Error("input that is no terminal has answers")
	}
}

// TestPromptEndsWithContext: Ctrl-C, which main turns into the end of the context, ends a prompt
// that gets no answer.
func TestPromptEndsWithContext(t *testing.T) {
	silent, end := io.Pipe()
	defer end.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	interrupted := errors.New("interrupt signal received")
	cancel(interrupted)
	if err := Confirm(ctx, NewAnswers(silent), io.Discard, "Remove it?"); !errors.Is(err, interrupted) {
		t.Errorf("%v, want %v", err, interrupted)
	}
}
