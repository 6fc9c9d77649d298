package view

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// Answers reads the lines by which a user answers prompts; nil where there is no terminal.
type Answers struct{ in *bufio.Reader }

// NewAnswers reads answers from in.
func NewAnswers(in io.Reader) *Answers { return &Answers{bufio.NewReader(in)} }

// Terminal returns the answers of a terminal, nil if the input is none.
func Terminal(in io.Reader) *Answers {
	if f, ok := in.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return NewAnswers(in)
	}
	return nil
}

// Line reads a line. It returns when ctx is cancelled, which is what main does on Ctrl-C; reading
// from a terminal cannot be cancelled, so that read stays blocked until the process exits.
func (a *Answers) Line(ctx context.Context) (string, error) {
	var line string
	read := make(chan error, 1)
	go func() {
		var err error
		line, err = a.in.ReadString('\n')
		read <- err
	}()
	select {
	case err := <-read:
		return line, err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// Confirm prompts before a change that cannot be undone; without answers, where there is no
// terminal, it refuses.
func Confirm(ctx context.Context, answers *Answers, out io.Writer, question string) error {
	var answer string
	if answers != nil {
		fmt.Fprintf(out, "%s [y/N] ", question)
		var err error
		if answer, err = answers.Line(ctx); err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read the answer: %w: nothing was changed", err)
		}
	}
	if strings.TrimSpace(strings.ToLower(answer)) != "y" {
		return errors.New("nothing was changed: answer y at a terminal, or give --yes")
	}
	return nil
}
