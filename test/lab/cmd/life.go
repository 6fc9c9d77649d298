package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/pelago-net/pelago/test/lab"
)

func upCommand() *cobra.Command {
	var o lab.Options
	var pods, services []string
	var underlay string
	var overlapping, hub, noHub bool
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring up a lab, or complete one",
		Long: `Bring up clusters g1, g2, … with nodes g1-n1, g1-n2, … and the hub.

CIDRs are given once for all clusters (they then overlap, unless
--overlapping=false makes them the first of consecutive ones) or once per
cluster. Without them clusters get pods 10.8.0.0/16, 10.9.0.0/16, … and services
10.88.0.0/16, 10.99.0.0/16, …; with --overlapping all get 10.7.0.0/16 and
10.77.0.0/16.

On a lab that exists, "up" makes what is missing and starts what is off.`,
		Example: `  pelago-lab up
  pelago-lab up --clusters 2 --nodes 2 --pod-cidr 10.7.0.0/16 --service-cidr 10.77.0.0/16
  pelago-lab up --clusters 3 --nodes 1 --kube-proxy nftables --no-hub --name small`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if o.PodCIDRs, err = prefixes("pod-cidr", pods); err != nil {
				return err
			}
			if o.ServiceCIDRs, err = prefixes("service-cidr", services); err != nil {
				return err
			}
			if underlay != "" {
				if o.Underlay, err = netip.ParsePrefix(underlay); err != nil {
					return fmt.Errorf("read --underlay: %w", err)
				}
			}
			if cmd.Flags().Changed("overlapping") {
				o.Addressing = map[bool]string{true: lab.Overlapping, false: lab.Consecutive}[overlapping]
			}
			o.Name, o.NoHub, o.Progress = nameOf(cmd), noHub || !hub, steps(cmd)
			l, err := lab.Up(cmd.Context(), o)
			if err != nil {
				if l != nil {
					err = fmt.Errorf("%w\n(what came up is still there: \"pelago-lab logs\" shows why, \"pelago-lab down --name %s\" removes it)", err, o.Name)
				}
				return err
			}
			o.Progress("lab " + l.Name() + " is up")
			howTo(cmd.OutOrStdout(), l)
			return nil
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.Clusters, "clusters", 2, "number of clusters")
	f.IntVar(&o.Nodes, "nodes", 2, "number of nodes of each cluster")
	f.StringSliceVar(&pods, "pod-cidr", nil, "pod CIDR: once for all clusters, or once per cluster")
	f.StringSliceVar(&services, "service-cidr", nil, "service CIDR: once for all clusters, or once per cluster")
	f.BoolVar(&overlapping, "overlapping", false, "give every cluster the same CIDRs (default true if --pod-cidr is given once)")
	f.StringVar(&o.KubeProxy, "kube-proxy", lab.IPTables, "mode of kube-proxy: iptables or nftables")
	f.StringVar(&o.CNI, "cni", lab.DefaultCNI, "network of the pods, NAME[=VERSION][,option…]: "+lab.CNIs())
	f.StringVar(&o.Masquerade, "masquerade", lab.MasqueradeAny, "which traffic of pods leaves under the node's address: any (to all but pods, as flannel and kindnet do) or uplink (only by the node's uplink)")
	f.BoolVar(&hub, "hub", true, "bring up the hub")
	f.BoolVar(&noHub, "no-hub", false, "leave out the hub")
	f.IntVar(&o.Gateways, "gateways", 0, "label the first so many nodes of each cluster with submariner.io/gateway=true")
	f.StringVar(&underlay, "underlay", "", "prefix of the links between nodes, control planes and host, /16 to /20 (default: the first free one from 172.31.0.0/16 down to 172.20.0.0/16)")
	cmd.MarkFlagsMutuallyExclusive("hub", "no-hub")
	// These fail only without such a flag.
	_ = cmd.RegisterFlagCompletionFunc("kube-proxy", cobra.FixedCompletions([]string{lab.IPTables, lab.NFTables}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("masquerade", cobra.FixedCompletions([]string{lab.MasqueradeAny, lab.MasqueradeUplink}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func prefixes(flag string, values []string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, v := range values {
		p, err := netip.ParsePrefix(v)
		if err != nil {
			return nil, fmt.Errorf("read --%s: %w", flag, err)
		}
		all = append(all, p)
	}
	return all, nil
}

// howTo prints the commands for a new lab.
func howTo(out io.Writer, l *lab.Lab) {
	name := ""
	if l.Name() != lab.DefaultName {
		name = " --name " + l.Name()
	}
	var contexts []string
	for _, c := range l.Plan().Clusters {
		contexts = append(contexts, c.Name)
	}
	node := l.Plan().Clusters[0].Nodes[0].Name
	fmt.Fprintf(out, `
  export KUBECONFIG=%s      # contexts %s
  pelago-lab kubectl%s --context %s get nodes
  pelago-lab exec%s %s -- bash
  pelago-lab load-image%s FILE.tar
  pelago-lab status%s
  pelago-lab down%s
`, l.Kubeconfig(), strings.Join(contexts, ", "), name, contexts[0], name, node, name, name, name)
}

func downCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Remove a lab with everything that it made",
		Long: `Remove a lab: its processes, network namespaces, mounts, control groups,
devices, routes and files, also after a bring-up that stopped half-way. A lab
that does not exist is no error.`,
		Example: "  pelago-lab down\n  pelago-lab down --all",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			names := []string{nameOf(cmd)}
			if all {
				var err error
				if names, err = lab.Names(); err != nil {
					return err
				}
			}
			progress := steps(cmd)
			var errs []error
			for _, name := range names {
				err := lab.Down(cmd.Context(), name, progress)
				switch {
				case err == nil:
					progress("lab " + name + " is down")
				case errors.Is(err, lab.ErrNotFound):
					progress("there is no lab " + name + ", nothing to do")
				default:
					errs = append(errs, err)
				}
			}
			return errors.Join(errs...)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "remove every lab on this machine")
	return cmd
}

func statusCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Show clusters, nodes and links",
		Long:    "Show the state of a lab. Without --name all labs on this machine are shown.",
		Example: "  pelago-lab status\n  pelago-lab status -o json | jq '.[0].clusters[].nodes[].state'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains([]string{"", "wide", "json", "yaml"}, output) {
				return fmt.Errorf("read --output: %q is unknown: use wide, json or yaml", output)
			}
			names := []string{nameOf(cmd)}
			if !cmd.Flags().Changed("name") {
				var err error
				if names, err = lab.Names(); err != nil {
					return err
				}
			}
			statuses := []lab.Status{}
			for _, name := range names {
				l, err := lab.Open(name)
				if err != nil {
					return err
				}
				statuses = append(statuses, l.Status(cmd.Context()))
			}
			return printStatus(cmd.OutOrStdout(), output, statuses)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "wide, json or yaml")
	// Fails only without such a flag.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"wide", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func printStatus(out io.Writer, output string, statuses []lab.Status) error {
	switch output {
	case "json":
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(statuses)
	case "yaml":
		data, err := yaml.Marshal(statuses)
		if err == nil {
			_, err = out.Write(data)
		}
		return err
	}
	if len(statuses) == 0 {
		fmt.Fprintln(out, "no lab is up (pelago-lab up makes one)")
	}
	for i, s := range statuses {
		if i > 0 {
			fmt.Fprintln(out)
		}
		printLab(out, output == "wide", s)
	}
	return nil
}

func printLab(out io.Writer, wide bool, s lab.Status) {
	fmt.Fprintf(out, "lab %s   underlay %s   kube-proxy %s\nkubeconfig %s\n\n", s.Name, s.Underlay, s.KubeProxy, s.Kubeconfig)
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	defer w.Flush()
	row := func(extra string, columns ...string) {
		if wide {
			columns = append(columns, extra)
		}
		fmt.Fprintln(w, strings.Join(columns, "\t"))
	}
	row("PROCESSES\tMESSAGE", "CLUSTER", "STATE", "LINK", "API SERVER", "VERSION", "PODS", "SERVICES")
	for _, c := range s.Clusters {
		var pids []string
		for _, component := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
			if pid, ok := c.Processes[component]; ok {
				pids = append(pids, fmt.Sprintf("%s=%d", component, pid))
			}
		}
		row(strings.Join(pids, ",")+"\t"+dash(c.Message), c.Name, c.State, c.Link, c.Server, dash(c.Version), dash(c.PodCIDR), c.ServiceCIDR)
	}
	fmt.Fprintln(w)
	row("PID", "NODE", "STATE", "READY", "LINK", "ADDRESS", "PODS")
	for _, c := range s.Clusters {
		for _, n := range c.Nodes {
			row(fmt.Sprint(n.PID), n.Name, n.State, n.Ready, n.Link, n.Address.String(), n.PodCIDR)
		}
	}
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func kubeconfigCommand() *cobra.Command {
	var path bool
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the kubeconfig with all contexts (g1, g2, …, hub)",
		Example: `  export KUBECONFIG=$(pelago-lab kubeconfig --path)
  pelago-lab kubeconfig > lab.kubeconfig`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := open(cmd)
			if err != nil {
				return err
			}
			if path {
				fmt.Fprintln(cmd.OutOrStdout(), l.Kubeconfig())
				return nil
			}
			data, err := os.ReadFile(l.Kubeconfig())
			if err != nil {
				return fmt.Errorf("read the kubeconfig: %w (is the lab complete? pelago-lab up finishes it)", err)
			}
			_, err = cmd.OutOrStdout().Write(data)
			return err
		},
	}
	cmd.Flags().BoolVar(&path, "path", false, "print the file's path instead")
	return cmd
}

func prerequisitesCommand() *cobra.Command {
	var install bool
	var cni string
	cmd := &cobra.Command{
		Use:   "prerequisites",
		Short: "List the Debian packages that are needed, or install the missing ones",
		Example: `  pelago-lab prerequisites
  sudo pelago-lab prerequisites --install
  sudo pelago-lab prerequisites --cni cilium --install`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			needed, err := lab.NetworkPackages(cni)
			if err != nil {
				return err
			}
			needed = append(lab.Packages(), needed...)
			absent := func() []lab.Package {
				return slices.DeleteFunc(slices.Clone(needed), lab.Package.Present)
			}
			missing := absent()
			if install {
				if err := lab.Install(cmd.Context(), missing, cmd.ErrOrStderr()); err != nil {
					return err
				}
				missing = absent()
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
			for _, p := range needed {
				state := "installed"
				if slices.Contains(missing, p) {
					state = "MISSING"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\n", p.Name, state, p.Reason)
			}
			if err := w.Flush(); err != nil {
				return err
			}
			if len(missing) > 0 {
				return fmt.Errorf("%d packages are missing: install them with pelago-lab prerequisites --install", len(missing))
			}
			return lab.CheckPrerequisites()
		},
	}
	cmd.Flags().StringVar(&cni, "cni", lab.DefaultCNI, "also the packages of this network of \"up\", or of \"all\"")
	cmd.Flags().BoolVar(&install, "install", false, "install what is missing with apt-get")
	return cmd
}

func buildCommand() *cobra.Command {
	cni := lab.DefaultCNI
	cmd := &cobra.Command{
		Use:   "build",
		Short: "Build Kubernetes, etcd and CoreDNS from their Go modules into the cache",
		Long: `Build everything that "up" needs. The results stay in $PELAGO_CACHE, else
$XDG_CACHE_HOME/pelago or ~/.cache/pelago, named by version and a hash of their
sources; what is there already is not built again.`,
		Example: "  pelago-lab build\n  pelago-lab build --cni cilium",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			progress := steps(cmd)
			if err := lab.Build(cmd.Context(), cni, progress); err != nil {
				return err
			}
			progress("everything is built")
			return nil
		},
	}
	cmd.Flags().StringVar(&cni, "cni", cni, "also the programs of this network of \"up\"")
	return cmd
}
