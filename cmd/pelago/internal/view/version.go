package view

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// VersionCommand prints the version of the program: that of the linker flag, else the one that Go
// derives from the commit.
func VersionCommand(version string) *cobra.Command {
	if info, ok := debug.ReadBuildInfo(); ok && version == "" {
		version = strings.Trim(info.Main.Version, "()")
	}
	if version == "" {
		version = "unknown"
	}
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this program",
		Example: "  pelago version",
		Args:    cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintf(cmd.OutOrStdout(), "pelago %s %s/%s %s\n", version, runtime.GOOS, runtime.GOARCH, runtime.Version())
		},
	}
}
