package main

import (
	"github.com/spf13/cobra"

	"github.com/pelago-net/pelago/cmd/pelago/internal/migrate"
)

func migrateCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "migrate", Short: "Move clusters from what runs there today"}
	cmd.AddCommand(migrate.NewSubmariner(&access{}))
	return cmd
}
