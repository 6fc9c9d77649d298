// Command pelago makes clustersets: it deploys the broker, joins clusters, exports services and
// shows what is there. Installed as kubectl-pelago it is a kubectl plugin.
//
// One file per verb; access.go has what all of them need. What they read and write is in
// internal/install, what they print in internal/view, manifests in deploy, the hub's side of a
// clusterset in deploy/broker.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelago-net/pelago/cmd/pelago/internal/inspect"
	"github.com/pelago-net/pelago/cmd/pelago/internal/install"
	"github.com/pelago-net/pelago/cmd/pelago/internal/migrate"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
)

func main() {
	ctrllog.SetLogger(logr.Discard()) // the libraries also log the errors that we return
	klog.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := root(filepath.Base(os.Args[0])).ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		var status inspect.Status
		if errors.As(err, &status) {
			os.Exit(status.Code)
		}
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

  1. pelago init               make a hub that propagates workloads; not needed for services alone
  2. pelago deploy-broker      at the hub, once
  3. pelago join               at every cluster
  4. pelago clusters accept    at the hub, for every cluster that gets workloads
  5. pelago export service     for every service to export
  6. pelago apply              at the hub, for every workload to propagate`,
		SilenceUsage: true, SilenceErrors: true,
	}
	if strings.HasPrefix(program, "kubectl-") {
		cmd.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl pelago"}
	}
	add := func(id, title string, commands ...*cobra.Command) {
		cmd.AddGroup(&cobra.Group{ID: id, Title: title})
		for _, c := range commands {
			c.GroupID = id
			cmd.AddCommand(c)
		}
	}
	open := func() install.Access { return &access{} }
	add("set", "A clusterset:", append(install.Commands(open), initCommand(), deployBrokerCommand(), new(join).command(), upgradeCommand(), registerCommand(), tokenCommand(),
		unjoinCommand(), gatewayCommand(), migrate.Command(open))...)
	add("service", "Services:", exportCommand(), unexportCommand())
	add("hub", "Workloads, at the hub:", applyCommand(), getCommand(), describeCommand(), whyCommand(), explainCommand(), rolloutCommand(),
		clustersCommand(), cordonCommand(), uncordonCommand(), taintCommand(), view.InterpretCommand())
	add("member", "One cluster, through the hub:", append(inspect.MemberCommands(genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}),
		promoteCommand())...)
	add("inspection", "Inspection:", append(append([]*cobra.Command{statusCommand(), checkCommand(), diagnoseCommand(), verifyCommand(), benchmarkCommand(), verifyPodCommand(), analyzeCommand(), gatherCommand(), showCommand()}, inspect.Commands(func() inspect.Access { return &access{} })...), view.VersionCommand(version))...)
	cmd.AddCommand(manCommand(cmd))
	refuseUnknown(cmd)
	view.CompleteChoices(cmd)
	completeContexts(cmd)
	return cmd
}

// version is set by the linker.
var version string
