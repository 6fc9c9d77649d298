package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// outputs are the values of --output.
var outputs = []string{"table", "wide", "json", "yaml"}

func addOutputFlag(cmd *cobra.Command, output *string) {
	*output = "table"
	cmd.Flags().VarP((*outputValue)(output), "output", "o", "table, wide, json or yaml")
	words := cobra.FixedCompletions(outputs, cobra.ShellCompDirectiveNoFileComp)
	_ = cmd.RegisterFlagCompletionFunc("output", words) // fails only without such a flag
}

// outputValue refuses what is no output when the flag is read.
type outputValue string

func (v *outputValue) String() string { return string(*v) }
func (v *outputValue) Type() string   { return "string" }

func (v *outputValue) Set(text string) error {
	if !slices.Contains(outputs, text) {
		return fmt.Errorf("use %s or %s", strings.Join(outputs[:len(outputs)-1], ", "), outputs[len(outputs)-1])
	}
	*v = outputValue(text)
	return nil
}

// encode writes JSON or YAML.
func encode(out io.Writer, output string, v any) error {
	var text []byte
	var err error
	switch output {
	case "json":
		text, err = json.MarshalIndent(v, "", "  ")
		text = append(text, '\n')
	case "yaml":
		text, err = yaml.Marshal(v)
	}
	if err != nil {
		return fmt.Errorf("print as %s: %w", output, err)
	}
	_, err = out.Write(text)
	return err
}
