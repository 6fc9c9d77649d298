package view

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pelago-net/pelago/deploy/spec"
)

// AddChoice adds a flag with a fixed set of values. Others are refused when the flag is parsed.
func AddChoice(f *pflag.FlagSet, value *string, name, preset, usage string, values ...string) *spec.Choice {
	return spec.AddChoice(f, value, name, preset, usage, values...)
}

// CompleteChoices registers the completion of the flags of AddChoice, of a command and of those
// below it.
func CompleteChoices(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if c, ok := f.Value.(*spec.Choice); ok {
			complete := cobra.FixedCompletions(c.Values(), cobra.ShellCompDirectiveNoFileComp)
			_ = cmd.RegisterFlagCompletionFunc(f.Name, complete) // fails only without such a flag
		}
	})
	for _, sub := range cmd.Commands() {
		CompleteChoices(sub)
	}
}

// CompleteLast completes the last of several names, separated by commas, by those that are not
// there yet.
func CompleteLast(begun string, all []string) (out []string) {
	before := begun[:strings.LastIndex(begun, ",")+1]
	for _, name := range all {
		if !slices.Contains(strings.Split(before, ","), name) {
			out = append(out, before+name)
		}
	}
	return out
}

// OnlyWith refuses flags that are given without the one on which they depend, rather than ignore
// them.
func OnlyWith(f *pflag.FlagSet, needed string, names ...string) error {
	if f.Changed(needed) {
		return nil
	}
	for _, name := range names {
		if f.Changed(name) {
			return fmt.Errorf("--%s has no effect without --%s", name, needed)
		}
	}
	return nil
}

// AddConfirmation adds --yes to a command, and returns what prompts before a change that cannot be
// undone, unless it is given.
func AddConfirmation(cmd *cobra.Command, usage string) func(question string) error {
	yes := cmd.Flags().Bool("yes", false, usage)
	return func(question string) error {
		if *yes {
			return nil
		}
		return Confirm(cmd.Context(), Terminal(cmd.InOrStdin()), cmd.OutOrStdout(), question)
	}
}
