package install

import (
	"bufio"
	"io"
	"strings"
	"testing"
)

// TestConfirm: a removal goes on only after y at a terminal.
func TestConfirm(t *testing.T) {
	for answer, want := range map[string]bool{"y\n": true, "Y": true, "n\n": false, "\n": false, "": false, "yes\n": false} {
		var out strings.Builder
		err := Confirm(bufio.NewReader(strings.NewReader(answer)), &out, "Remove it?")
		if (err == nil) != want || out.String() != "Remove it? [y/N] " {
			t.Errorf("answer %q: %v, prompt %q", answer, err, &out)
		}
	}
	if err := Confirm(nil, io.Discard, "Remove it?"); err == nil || !strings.Contains(err.Error(), "nothing was removed: answer y at a terminal, or give --yes") {
		t.Errorf("without a terminal: %v", err)
	}
	if Terminal(strings.NewReader("y\n")) != nil {
		t.Error("input that is no terminal has answers")
	}
}
