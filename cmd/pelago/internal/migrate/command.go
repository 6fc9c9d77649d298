package migrate

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/pelago-net/pelago/cmd/pelago/internal/install"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/deploy"
)

// minimum is the version of the API server of a hub: its admission policies use functions of IP addresses.
var minimum = version.MustParseGeneric("1.31.0")

// Command is migrate; open makes the access of each of its verbs.
func Command(open func() install.Access) *cobra.Command {
	cmd := &cobra.Command{Use: "migrate", Short: "Move from Karmada or Submariner"}
	cmd.AddCommand(karmadaCommand(open()), submarinerCommand(open()))
	return cmd
}

// karmadaFlags are those of migrate karmada.
type karmadaFlags struct {
	access                        install.Access
	host, namespace, file, output string
	dryRun, force, back           bool
	timeout                       time.Duration
}

func karmadaCommand(access install.Access) *cobra.Command {
	m := karmadaFlags{access: access}
	cmd := &cobra.Command{
		Use:   "karmada",
		Short: "Take over the API server of Karmada as a hub",
		Long: `migrate karmada makes Karmada's API server, with etcd and all objects in it, a hub of
Pelago. Templates, policies, bindings, Works and Clusters stay. What bindings have decided
is kept, and so are the objects in the members: they get labels and annotations, no pod is
restarted.

It stops Karmada's controllers (with --host-context; else stop them first), keeps and
removes its webhooks and API services, stops its servers and installs what pelago-hub needs. Then start
pelago-hub. Run it again if it was interrupted. Objects that have no counterpart in
Pelago are named, and it refuses to go on without --force. Clusters in Pull mode need
'pelago join --workloads-only' in place of karmada-agent.

--back restores all that after pelago-hub was stopped. Definitions that were added stay.`,
		Example: `  pelago migrate karmada --context karmada-apiserver --host-context mgmt --dry-run
  pelago migrate karmada --context karmada-apiserver --host-context mgmt
  pelago-hub --kubeconfig pelago-hub.kubeconfig

  # the way back, after pelago-hub was stopped
  pelago migrate karmada --context karmada-apiserver --host-context mgmt --back`,
		Args: cobra.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return m.run(cmd.Context(), cmd.OutOrStdout()) }
	f := cmd.Flags()
	m.access.AddFlags(f)
	view.AddOutputFlag(f, &m.output)
	f.StringVar(&m.host, "host-context", "", "context of the cluster where Karmada's pods run (default: its components are stopped and started by hand)")
	f.StringVar(&m.namespace, "karmada-namespace", "karmada-system", "namespace of Karmada's pods in the host cluster")
	f.StringVar(&m.file, "output-kubeconfig", "pelago-hub.kubeconfig", "kubeconfig of pelago-hub to write")
	f.BoolVar(&m.dryRun, "dry-run", false, "print what would change, in the format of -o, and change nothing")
	f.BoolVar(&m.force, "force", false, "go on although objects have no counterpart: they stay, without effect")
	f.BoolVar(&m.back, "back", false, "give the API server back to Karmada")
	f.DurationVar(&m.timeout, "timeout", 2*time.Minute, "how long to wait for Karmada's components to stop or start, each")
	cmd.MarkFlagsMutuallyExclusive("back", "dry-run")
	return cmd
}

func (m *karmadaFlags) run(ctx context.Context, out io.Writer) error {
	hub, _, err := m.access.Open("")
	if err != nil {
		return err
	}
	info, err := hub.Typed.Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("get the version of the API server at %s: %w", hub.Config.Host, err)
	}
	if v, err := version.ParseGeneric(info.GitVersion); err != nil || !v.AtLeast(minimum) {
		return fmt.Errorf("the API server at %s is %s: a hub of Pelago needs %s or newer: upgrade karmada-apiserver first", hub.Config.Host, info.GitVersion, minimum)
	}
	progress := install.NewProgress(out)
	k := &Karmada{Hub: hub.Client, Namespace: m.namespace, Timeout: m.timeout, Progress: progress}
	if m.host != "" {
		host, _, err := m.access.Open(m.host)
		if err != nil {
			return err
		}
		k.Host = host.Client
	}
	switch {
	case m.dryRun:
		steps, err := k.Plan(ctx)
		if err != nil {
			return err
		}
		t := view.Table{Header: []string{"ACTION", "OBJECT", "DETAIL"}}
		for _, s := range steps {
			t.Rows = append(t.Rows, view.Row{Cells: []string{s.Action, s.Object, s.Detail}, Object: s})
		}
		return view.PrintTables(out, m.output, t)
	case m.back:
		return k.Back(ctx)
	}
	if err := k.Forward(ctx, m.force); err != nil {
		return err
	}
	if err := deploy.Propagation(ctx, hub.Client, deploy.PropagationOptions{}, progress); err != nil {
		return err
	}
	text, err := deploy.HubKubeconfig(ctx, hub.Config, hub.Client)
	if err != nil {
		return err
	}
	if _, err := install.WriteSecretFile(m.file, text, ""); err != nil {
		return err
	}
	progress("Karmada is stopped, and its API server is a hub. Start `pelago-hub --kubeconfig %s` now; until then nothing propagates, and nothing in members changes", m.file)
	return nil
}
