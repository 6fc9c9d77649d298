package migrate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pelago-net/pelago/cmd/pelago/internal/install"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/hub"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/member"
	"github.com/pelago-net/pelago/deploy/rollout"
	"github.com/pelago-net/pelago/deploy/spec"
)

// minimum is the version of the API server of a hub: its admission policies use functions of IP
// addresses.
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
Pelago. Templates, policies, bindings, Works and Clusters stay. The clusters of bindings
stay, and so are the objects in the members: they get labels and annotations, no pod is
restarted.

It stops Karmada's controllers (with --host-context; else stop them first), saves and
removes its webhooks and API services, stops its servers and installs what pelago-hub
needs. Then start pelago-hub. Run it again if it was interrupted. Objects that have no
counterpart in Pelago are listed, and it refuses to continue without --force. Clusters in Pull mode need
'pelago join --workloads-only' in place of karmada-agent; with Submariner in them as well
'pelago migrate submariner --switch', which brings it.

--back reverts this after pelago-hub was stopped. Added definitions stay.`,
		Example: `  pelago migrate karmada --context karmada-apiserver --host-context mgmt --dry-run
  pelago migrate karmada --context karmada-apiserver --host-context mgmt
  pelago-hub --kubeconfig pelago-hub.kubeconfig --proxy-address :8443 --proxy-host HOST

  # back, after pelago-hub was stopped
  pelago migrate karmada --context karmada-apiserver --host-context mgmt --back`,
		Args: cobra.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		rules := clientcmd.NewDefaultClientConfigLoadingRules()
		rules.ExplicitPath = cmd.Flag("kubeconfig").Value.String()
		all, err := rules.Load()
		if err != nil {
			return fmt.Errorf("read the kubeconfig: %w", err)
		}
		return m.run(cmd.Context(), *all, cmd.OutOrStdout())
	}
	f := cmd.Flags()
	m.access.AddFlags(f)
	view.AddOutputFlag(f, &m.output)
	f.StringVar(&m.host, "host-context", "", "context of the cluster where Karmada's pods run (default: its components are stopped and started by hand)")
	f.StringVar(&m.namespace, "karmada-namespace", "karmada-system", "namespace of Karmada's pods in the host cluster")
	f.StringVar(&m.file, "output-kubeconfig", "pelago-hub.kubeconfig", "kubeconfig of pelago-hub to write")
	f.BoolVar(&m.dryRun, "dry-run", false, "print what would change, in the format of -o, and change nothing")
	f.BoolVar(&m.force, "force", false, "continue although objects have no counterpart: they stay, without effect")
	f.BoolVar(&m.back, "back", false, "give the API server back to Karmada")
	f.DurationVar(&m.timeout, "timeout", 2*time.Minute, "how long to wait for Karmada's components to stop or start, each")
	cmd.MarkFlagsMutuallyExclusive("back", "dry-run")
	return cmd
}

func (m *karmadaFlags) run(ctx context.Context, all clientcmdapi.Config, out io.Writer) error {
	api, _, err := m.access.Open("")
	if err != nil {
		return err
	}
	info, err := api.Typed.Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("get the version of the API server at %s: %w", api.Config.Host, err)
	}
	if v, err := version.ParseGeneric(info.GitVersion); err != nil || !v.AtLeast(minimum) {
		return fmt.Errorf("the API server at %s is %s: a hub of Pelago needs %s or newer: upgrade karmada-apiserver first", api.Config.Host, info.GitVersion, minimum)
	}
	progress := install.NewProgress(out)
	k := &Karmada{Hub: api.Client, Kubeconfig: all, Namespace: m.namespace, Timeout: m.timeout, Progress: progress}
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
	if err := manifests.Propagation(ctx, api.Client, manifests.PropagationOptions{}, progress); err != nil {
		return err
	}
	text, err := hub.Kubeconfig(ctx, api.Config, api.Client)
	if err != nil {
		return err
	}
	if _, err := install.WriteSecretFile(m.file, text, ""); err != nil {
		return err
	}
	progress("Karmada is stopped, and its API server is a hub. Start `pelago-hub --kubeconfig %s --proxy-address :8443 --proxy-host HOST` now (HOST: this machine, as the API server sees it); until then nothing propagates, and nothing in members changes", m.file)
	return nil
}

// submarinerFlags are those of migrate submariner.
type submarinerFlags struct {
	access                             install.Access
	broker, namespace, brokerNamespace string
	hub, image, pullPolicy, output     string
	prepare, change, back, dryRun      bool
	timeout                            time.Duration
}

func submarinerCommand(access install.Access) *cobra.Command {
	m := submarinerFlags{access: access}
	cmd := &cobra.Command{
		Use:   "submariner [-- FLAGS OF JOIN]",
		Short: "Move a cluster from Submariner",
		Long: `submariner reads what Submariner has in a cluster and at its broker, and prints the
flags of deploy-broker and join that keep its settings, and what has no counterpart. It refuses
clusters whose state contradicts. It writes nothing.

--prepare registers the cluster at the hub, with the same id and ranges, and has the image
pulled on all nodes. A public address that Submariner has looked up becomes an annotation of
the gateway's node; if none is known behind NAT, it refuses. Submariner works as before.
Prepare all clusters first.

--switch replaces Submariner. Global IPs of services, pods and egress, ClusterSetIPs and exports
stay. Clusters that have switched are connected with each other, the others with each other: two
clusters have no connection from the step disconnect of the first until the step start of the
second. --dry-run prints the steps. Run it again if it was interrupted: it continues. Submariner's
objects stay in its namespace, with its operator stopped.

--back removes Pelago and starts Submariner's operator, which creates its components again.

The hub is another API server than Submariner's broker, such as one that
pelago init --host-context makes: both write the same kinds, and Roles of the same names.`,
		Example: `  pelago migrate submariner --context c1 --broker-context b

  # in each cluster, then the switch in each
  pelago migrate submariner --context c1 --broker-context b --hub broker-info.subm --prepare
  pelago migrate submariner --context c1 --broker-context b --hub broker-info.subm --switch

  # with further flags of join
  pelago migrate submariner --context c1 --broker-context b --hub broker-info.subm --switch -- --network-only

  pelago migrate submariner --context c1 --back`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && cmd.ArgsLenAtDash() != 0 {
				return fmt.Errorf("unknown argument %q: write -- before the flags of join", args[0])
			}
			return m.run(cmd.Context(), args, cmd.Flags().Changed("image"), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	access.AddFlags(f)
	f.StringVar(&m.broker, "broker-context", "", "context of the cluster with Submariner's broker (default: that of --context)")
	f.StringVar(&m.namespace, "operator-namespace", "submariner-operator", "namespace of Submariner in the cluster")
	f.StringVar(&m.brokerNamespace, "broker-namespace", "submariner-k8s-broker", "namespace of Submariner's broker")
	f.StringVar(&m.hub, "hub", "", "broker-info.subm of the hub, with --prepare and --switch")
	f.BoolVar(&m.prepare, "prepare", false, "register the cluster and have the image pulled")
	f.BoolVar(&m.change, "switch", false, "replace Submariner")
	f.BoolVar(&m.back, "back", false, "remove Pelago and start Submariner again")
	f.BoolVar(&m.dryRun, "dry-run", false, "with --prepare and --switch: print the steps, in the format of -o, and change nothing")
	f.StringVar(&m.image, "image", manifests.DefaultImage, "image of all components")
	view.AddChoice(f, &m.pullPolicy, "image-pull-policy", "IfNotPresent", "Always, IfNotPresent or Never", "Always", "IfNotPresent", "Never")
	f.DurationVar(&m.timeout, "timeout", 5*time.Minute, "how long each step waits for pods and nodes")
	view.AddOutputFlag(f, &m.output)
	cmd.MarkFlagsMutuallyExclusive("prepare", "switch", "back")
	cmd.MarkFlagsMutuallyExclusive("back", "dry-run")
	return cmd
}

func (m *submarinerFlags) run(ctx context.Context, args []string, image bool, out io.Writer) error {
	change := m.prepare || m.change
	switch {
	case change && m.hub == "":
		return errors.New("--hub is required: name the broker-info.subm that `pelago deploy-broker` has written at the hub")
	case m.dryRun && !change:
		return errors.New("--dry-run: give --prepare or --switch as well; without them nothing is changed anyway")
	case len(args) > 0 && !change:
		return fmt.Errorf("flags of join %v: give --prepare or --switch as well", args)
	}
	cluster, _, err := m.access.Open("")
	if err != nil {
		return err
	}
	b, _, err := m.access.Open(m.broker)
	if err != nil {
		return err
	}
	progress := install.NewProgress(out)
	flags, err := m.flags(args, image)
	if err != nil {
		return err
	}
	s := &Submariner{Member: cluster.Client, Broker: b.Client, Namespace: m.namespace, BrokerNamespace: m.brokerNamespace,
		Image: m.image, PullPolicy: m.pullPolicy, Timeout: m.timeout, Progress: progress,
		Join: func(ctx context.Context, want Joining) error {
			return m.join(ctx, manifests.Cluster(cluster), want, flags, progress)
		},
		Waits: m.waits,
		Started: func(ctx context.Context) error {
			return rollout.AwaitMember(ctx, cluster.Typed, false, m.timeout, progress)
		},
		Reasons: func(ctx context.Context) ([]string, error) {
			return rollout.PodReasons(ctx, cluster.Typed, manifests.SystemNamespace)
		},
	}
	switch {
	case m.back:
		return s.Back(ctx)
	case change && m.dryRun:
		return s.printSteps(ctx, m.prepare, m.output, out)
	case m.prepare:
		return s.Prepare(ctx)
	case m.change:
		return s.Switch(ctx)
	}
	state, err := readSubmariner(ctx, s.Member, s.Broker, s.Namespace, s.BrokerNamespace)
	if err == nil {
		err = state.check()
	}
	if err != nil {
		return err
	}
	return state.print(out, m.output)
}

// flags parses the flags of join.
func (m *submarinerFlags) flags(args []string, image bool) (*spec.MemberFlags, error) {
	set := pflag.NewFlagSet("join", pflag.ContinueOnError)
	flags := new(spec.Member).AddFlags(set, "clusterid")
	args = append([]string{"--image-pull-policy=" + m.pullPolicy}, args...)
	if image {
		args = append(args, "--image="+m.image)
	}
	if err := set.Parse(args); err != nil {
		return nil, fmt.Errorf("flags of join: %w", err)
	}
	if set.NArg() > 0 {
		return nil, fmt.Errorf("flags of join: unknown argument %q", set.Arg(0))
	}
	return flags, flags.Names().Error(spec.Join(flags.Read()))
}

// join makes the cluster a member. Flags take precedence over what Submariner has.
// waits reads at the hub whether an administrator has yet to accept the cluster.
func (m *submarinerFlags) waits(ctx context.Context, clusterID string) (bool, error) {
	info, err := install.ReadInfo(m.hub)
	if err != nil {
		return false, err
	}
	hub, err := manifests.NewClient(info.Config())
	if err != nil {
		return false, err
	}
	return broker.Unapproved(ctx, hub, info.Namespace(), clusterID)
}

func (m *submarinerFlags) join(ctx context.Context, c manifests.Cluster, want Joining, flags *spec.MemberFlags, progress manifests.Progress) error {
	info, err := install.ReadInfo(m.hub)
	if err != nil {
		return err
	}
	if err := info.CheckExpiry(time.Now()); err != nil && !want.KeepRegistration {
		return fmt.Errorf("use %s: %w", m.hub, err)
	}
	wanted := *flags.Member
	wanted.Complete(want.Member, flags.Given)
	have, err := member.Read(ctx, c.Client)
	if err != nil {
		return err
	}
	given := func(path string) bool { return flags.Given(path) || want.Given(path) }
	plan, err := member.NewPlan(wanted, given, have, want.KeepRegistration)
	if err != nil {
		return flags.Names().Error(err)
	}
	progress("Reading the cluster at %s", c.Config.Host)
	if err := c.RequireMemberVersion("this cluster"); err != nil {
		return err
	}
	o := member.Options{Info: info, RegisterOnly: want.RegisterOnly, Submariner: true, FirstCableDriver: want.Driver, Progress: progress}
	if err := plan.Apply(ctx, c, o); err != nil {
		return flags.Names().Error(err)
	}
	progress("Cluster %s has joined", wanted.ClusterID)
	return nil
}

// printSteps prints the steps that a run would take.
func (s *Submariner) printSteps(ctx context.Context, prepare bool, output string, out io.Writer) error {
	steps, err := s.rest(ctx, prepare)
	if err != nil {
		return err
	}
	t := view.Table{Header: []string{"STEP", "DETAIL", "CONNECTIONS BY"}}
	for _, st := range steps {
		t.Rows = append(t.Rows, view.Row{Cells: []string{st.name, st.detail, st.carrier},
			Object: map[string]string{"step": st.name, "detail": st.detail, "connectionsBy": st.carrier}})
	}
	return view.PrintTables(out, output, t)
}
