package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// manCommand writes the manual pages that a release has.
func manCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use: "man DIRECTORY", Short: "Write the manual pages of all commands", Hidden: true, Args: cobra.ExactArgs(1),
		Long:    "man writes a page for each command, with the date $SOURCE_DATE_EPOCH.",
		Example: "  pelago man man1 && man -l man1/pelago-join.1",
		RunE: func(_ *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return fmt.Errorf("make the directory of the pages: %w", err)
			}
			return doc.GenManTree(root, &doc.GenManHeader{Title: "PELAGO", Section: "1", Source: "Pelago " + version, Manual: "Pelago"}, args[0])
		},
	}
}
