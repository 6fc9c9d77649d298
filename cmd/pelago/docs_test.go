package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestDocumentedCommands: every command line of the user documentation, of the examples and, in
// backquotes, of messages has a known verb, known flags and valid arguments. In running text, where
// a command is named without all of them, verb and flags count.
func TestDocumentedCommands(t *testing.T) {
	top := filepath.Join("..", "..")
	docs, err := filepath.Glob(filepath.Join(top, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	check := func(where, line string, whole bool) {
		t.Helper()
		if args, ok := pelagoArgs(line); ok {
			checked++
			if err := parses(args, whole); err != nil {
				t.Errorf("%s: `%s`: %v", where, line, err)
			}
		}
	}
	inline := regexp.MustCompile("`([^`]+)`")
	for _, file := range append(docs, filepath.Join(top, "README.md"), filepath.Join(top, "deploy", "README.md"), "README.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		block := false
		for _, line := range strings.Split(strings.ReplaceAll(string(text), "\\\n", " "), "\n") {
			switch {
			case strings.HasPrefix(strings.TrimSpace(line), "```"):
				block = !block
			case block:
				check(file, strings.TrimPrefix(strings.TrimSpace(line), "$ "), true)
			default:
				for _, m := range inline.FindAllStringSubmatch(line, -1) {
					check(file, m[1], false)
				}
			}
		}
	}
	for _, dir := range []string{filepath.Join(top, "cmd"), filepath.Join(top, "deploy"), filepath.Join(top, "control")} {
		must(t, filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") {
				return err
			}
			text, err := os.ReadFile(file)
			for _, m := range inline.FindAllStringSubmatch(string(text), -1) {
				if !strings.Contains(m[1], "\n") && !strings.ContainsAny(m[1], `"%`) { // text of one literal
					check(file, m[1], false)
				}
			}
			return err
		}))
	}
	queue := []*cobra.Command{root("pelago")}
	for len(queue) > 0 {
		cmd := queue[0]
		queue = append(queue[1:], cmd.Commands()...)
		for _, line := range strings.Split(strings.ReplaceAll(cmd.Example, "\\\n", " "), "\n") {
			check(cmd.CommandPath()+" --help", strings.TrimSpace(line), true)
		}
	}
	if checked < 100 {
		t.Errorf("only %d command lines were found", checked)
	}
}

// pelagoArgs are the arguments of a line that runs pelago, up to a comment, an ellipsis or another
// command.
func pelagoArgs(line string) ([]string, bool) {
	all := words(line)
	if len(all) == 0 || strings.TrimPrefix(all[0], "bin/") != "pelago" {
		return nil, false
	}
	args := all[1:]
	for i, w := range args {
		if w == "#" || w == "…" || w == "|" || w == ">" || w == "&&" {
			return args[:i], true
		}
	}
	return args, true
}

// words splits a line as a shell does, without expansions.
func words(line string) (out []string) {
	var word strings.Builder
	quote, begun := rune(0), false
	for _, r := range line + " " {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '"' || r == '\''):
			quote, begun = r, true
		case quote == 0 && r == ' ':
			if begun {
				out = append(out, word.String())
			}
			word.Reset()
			begun = false
		default:
			word.WriteRune(r)
			begun = true
		}
	}
	return out
}

// parses parses a command line; without whole, values and arguments may be missing.
func parses(args []string, whole bool) error {
	cmd, rest, err := root("pelago").Find(args)
	if err != nil {
		return err
	}
	cmd.InitDefaultHelpFlag()
	err = cmd.ParseFlags(rest)
	var unknown *pflag.NotExistError
	if err != nil && (whole || errors.As(err, &unknown)) {
		return err
	}
	if cmd.HasSubCommands() && cmd.Flags().NArg() > 0 {
		return fmt.Errorf("%s has no verb %s", cmd.CommandPath(), cmd.Flags().Arg(0))
	}
	if help, _ := cmd.Flags().GetBool("help"); !whole || help {
		return nil
	}
	if !cmd.Runnable() || cmd.HasSubCommands() {
		return fmt.Errorf("%s needs a verb", cmd.CommandPath())
	}
	return errors.Join(cmd.ValidateArgs(cmd.Flags().Args()), cmd.ValidateRequiredFlags(), cmd.ValidateFlagGroups())
}
