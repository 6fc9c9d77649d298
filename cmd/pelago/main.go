// Command pelago makes clustersets: it deploys the broker, joins clusters, exports services and shows what is there.
// Installed as kubectl-pelago it is a kubectl plugin.
//
// One file per verb; what several verbs need stands in access.go (kubeconfig), progress.go (output),
// exec.go (commands on nodes), hub.go (the hub of workloads), output.go. Decisions live in deploy/broker and deploy.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

func main() {
	ctrllog.SetLogger(logr.Discard()) // the library also logs the errors that we return
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := root(filepath.Base(os.Args[0])).ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// root is the command line, called by the given program name.
func root(program string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pelago",
		Short: "Join Kubernetes clusters into one clusterset",
		Long: `pelago joins Kubernetes clusters into one clusterset: services that one cluster
exports are reached from all of them under <service>.<namespace>.svc.clusterset.local, and
one hub propagates workloads to all of them.

  1. pelago deploy-broker      at the hub, once
  2. pelago join               at every cluster
  3. pelago export service     for every service to export
  4. pelago init               at the hub, to propagate workloads to clusters
  5. pelago apply              at the hub, for every workload to propagate`,
		SilenceUsage: true, SilenceErrors: true,
	}
	if strings.HasPrefix(program, "kubectl-") {
		cmd.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl pelago"}
	}
	cmd.AddGroup(&cobra.Group{ID: "set", Title: "A clusterset:"}, &cobra.Group{ID: "service", Title: "Services:"},
		&cobra.Group{ID: "hub", Title: "Workloads, at the hub:"}, &cobra.Group{ID: "look", Title: "Inspection:"})
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			cmd.AddCommand(c)
		}
	}
	add("set", initCommand(), deployBrokerCommand(), joinCommand(), unjoinCommand())
	add("service", exportCommand(), unexportCommand())
	add("set", gatewayCommand())
	add("hub", applyCommand(), getCommand(), describeCommand(), explainCommand())
	add("hub", clustersCommand(), cordonCommand(), uncordonCommand(), taintCommand())
	add("look", showCommand(), natCommand(), versionCommand())
	return cmd
}

// version is set by the linker.
var version string

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this program",
		Example: "  pelago version",
		Args:    cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintf(cmd.OutOrStdout(), "pelago %s %s/%s %s\n", programVersion(), runtime.GOOS, runtime.GOARCH, runtime.Version())
		},
	}
}

// programVersion is what the linker was told, else the module version or the commit that the program was built from.
func programVersion() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	revision, modified := "devel", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value[:min(len(s.Value), 12)]
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = "-modified"
		}
	}
	return revision + modified
}
