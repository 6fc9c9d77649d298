package view

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/pelago-net/pelago/deploy/spec"
)

// AddChoice adds a flag with a fixed set of values. Others are refused when the flag is parsed.
func AddChoice(f *pflag.FlagSet, value *string, name, preset, usage string, values ...string) *spec.Choice {
	return spec.AddChoice(f, value, name, preset, usage, values...)
}

// hostPort is the value of a flag HOST[:PORT].
type hostPort struct{ value *string }

// AddHostPort adds a flag HOST[:PORT]: an address or a DNS name, without a scheme.
func AddHostPort(f *pflag.FlagSet, value *string, name, usage string) {
	f.Var(hostPort{value}, name, usage)
}

func (h hostPort) String() string {
	if h.value == nil {
		return ""
	}
	return *h.value
}

func (h hostPort) Type() string { return "string" }

func (h hostPort) Set(text string) error {
	host, port, err := net.SplitHostPort(text)
	if err != nil || strings.Contains(text, "://") {
		host, port = text, "1"
	}
	if text != "" && net.ParseIP(host) == nil && len(validation.IsDNS1123Subdomain(host)) > 0 {
		return errors.New("give HOST or HOST:PORT, an address or a DNS name in lower case, without https://")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("%q is no port", port)
	}
	*h.value = text
	return nil
}

// CompleteChoices registers the completion of the flags of AddChoice, of a command and of those below it.
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

// CompleteLast completes the last of several names, separated by commas, by those that are not there yet.
func CompleteLast(begun string, all []string) (out []string) {
	before := begun[:strings.LastIndex(begun, ",")+1]
	for _, name := range all {
		if !slices.Contains(strings.Split(before, ","), name) {
			out = append(out, before+name)
		}
	}
	return out
}

// OnlyWith refuses flags that are given without the one on which they depend, rather than ignore them.
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

// KeepFlags sets the flags that were not given to the values of an earlier run, by flag.
func KeepFlags(flags *pflag.FlagSet, former map[string]string) error {
	for name, value := range former {
		f := flags.Lookup(name)
		if f.Changed {
			continue
		}
		if err := f.Value.Set(value); err != nil {
			return fmt.Errorf("keep --%s %s of the earlier run: %w: give the flag", name, value, err)
		}
	}
	return nil
}

// AddConfirmation adds --yes to a command, and returns what prompts before a change that cannot be undone, unless it is given.
func AddConfirmation(cmd *cobra.Command, usage string) func(question string) error {
	yes := cmd.Flags().Bool("yes", false, usage)
	return func(question string) error {
		if *yes {
			return nil
		}
		return Confirm(cmd.Context(), Terminal(cmd.InOrStdin()), cmd.OutOrStdout(), question)
	}
}
