package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/hub"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// Access opens the cluster of a context, "" for the one that its flags name.
type Access interface {
	AddFlags(*pflag.FlagSet)
	Open(context string) (view.Member, string, error)
}

// Commands are the verbs about a hub that init has made.
func Commands(access func() Access) []*cobra.Command {
	hub := &cobra.Command{Use: "hub", Short: "Back up and restore a hub that init has made"}
	hub.AddCommand(backupCommand(access()), restoreCommand(access()), renewCommand(access()))
	return []*cobra.Command{deinitCommand(access()), hub}
}

// hubCommand are the flags of such a verb.
type hubCommand struct {
	access Access
	hosted Hosted
	local  Local
}

// complete completes a verb that acts on a hub in a host cluster or on this machine.
func (h *hubCommand) complete(
	cmd *cobra.Command, hosted func(context.Context, view.Member, []string, io.Writer) error, local func(context.Context, []string, io.Writer) error,
) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := h.local.CheckMode(cmd.Flags()); err != nil {
			return err
		}
		if h.local.On {
			return local(cmd.Context(), args, cmd.OutOrStdout())
		}
		host, _, err := h.access.Open(h.hosted.Context)
		if err != nil {
			return err
		}
		return hosted(cmd.Context(), host, args, cmd.OutOrStdout())
	}
	h.access.AddFlags(cmd.Flags())
	h.hosted.AddHost(cmd.Flags())
	h.local.AddDir(cmd.Flags())
	for _, hosted := range []string{"host-context", "namespace"} {
		cmd.MarkFlagsMutuallyExclusive("local", hosted)
	}
	return cmd
}

func backupCommand(access Access) *cobra.Command {
	h := &hubCommand{access: access}
	done := func(file string, out io.Writer, err error) error {
		if err == nil {
			NewProgress(out)("Wrote %s; it contains every secret of the hub", file)
		}
		return err
	}
	return h.complete(&cobra.Command{
		Use:   "backup FILE",
		Short: "Write the state of a hub into a file",
		Long: `backup writes a file, mode 0600, from which the hub can be restored: a tar archive
with gzip, of a snapshot of etcd (snapshot.db), its CA certificates and keys, the keys
that sign tokens, the key that encrypts data (pki/), and its settings (settings.yaml).
The file grants full control of the hub. The hub keeps running.`,
		Example: "  pelago hub backup hub-2026-11-25.tar.gz --host-context mgmt\n  pelago hub backup hub.tar.gz --local",
		Args:    cobra.ExactArgs(1),
	}, func(ctx context.Context, host view.Member, args []string, out io.Writer) error {
		return done(args[0], out, h.hosted.Backup(ctx, manifests.Cluster(host), args[0]))
	}, func(ctx context.Context, args []string, out io.Writer) error {
		return done(args[0], out, h.local.Backup(ctx, args[0]))
	})
}

func restoreCommand(access Access) *cobra.Command {
	h := &hubCommand{access: access}
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Replace the state of a hub by that of a backup",
		Long: `restore puts the state of a backup into a hub that init has made, the lost one or a
new one: objects, keys and, in a host cluster, the address. Members reconnect unchanged if
the hub keeps its address; nothing is created again in them. Changes of the hub since the
backup are lost. The backup is read to its end before anything is changed.

The data before the restore stay until the next one, and the keys without which they cannot
be read: in a host cluster in the directory "former/etcd" of the volumes of etcd, and in
Secret ` + hub.HostedFormerCA + `; on this machine in "former/etcd" and "former/pki" of --dir. A restore
that is repeated because the hub has not started keeps those from before the first attempt.

In a host cluster the hub is stopped, and started again. On this machine systemd units are
stopped; run ` + "`pelago init --local`" + ` afterwards.`,
		Example: "  pelago init --host-context mgmt2 --storage-class fast\n  pelago hub restore hub-2026-11-25.tar.gz --host-context mgmt2\n\n" +
			"  pelago hub restore hub.tar.gz --local && pelago init --local",
		Args: cobra.ExactArgs(1),
	}
	var file string
	cmd.Flags().StringVar(&file, "output", "pelago-hub.kubeconfig", "kubeconfig of the hub's administrator to write")
	confirm := view.AddConfirmation(cmd, "skip the confirmation prompt")
	cmd = h.complete(cmd, func(ctx context.Context, host view.Member, args []string, out io.Writer) error {
		progress := NewProgress(out)
		admin, err := h.hosted.Restore(ctx, manifests.Cluster(host), args[0], confirm, progress)
		if err != nil {
			return err
		}
		return WroteAdmin(file, admin, progress, out)
	}, func(ctx context.Context, args []string, out io.Writer) error {
		progress := NewProgress(out)
		if err := h.local.Restore(ctx, args[0], confirm, progress); err != nil {
			return err
		}
		progress("Restored; start the hub with `pelago init --local --dir %s`", h.local.Dir)
		return nil
	})
	cmd.MarkFlagsMutuallyExclusive("local", "output")
	return cmd
}

func renewCommand(access Access) *cobra.Command {
	h := &hubCommand{access: access}
	printed := func(renewed []string, err error, out io.Writer) error {
		if err == nil {
			fmt.Fprintf(out, "Issued %d certificates: %s\n", len(renewed), strings.Join(renewed, ", "))
		}
		return err
	}
	return h.complete(&cobra.Command{
		Use:   "renew",
		Short: "Renew the certificates of a hub",
		Long: `renew reissues the certificates that have less than a third of their validity of a year
left. A CronJob of the host cluster, or a timer of systemd, runs it daily.`,
		Example: "  pelago hub renew --host-context mgmt",
		Args:    cobra.NoArgs,
	}, func(ctx context.Context, host view.Member, _ []string, out io.Writer) error {
		renewed, err := h.hosted.Renew(ctx, host.Client, time.Now())
		return printed(renewed, err, out)
	}, func(_ context.Context, _ []string, out io.Writer) error {
		renewed, err := h.local.Renew(time.Now())
		return printed(renewed, err, out)
	})
}

func deinitCommand(access Access) *cobra.Command {
	h := &hubCommand{access: access}
	cmd := &cobra.Command{
		Use:   "deinit",
		Short: "Remove a hub that init has made, or a broker",
		Long: `deinit removes a hub. Members are not touched: it refuses while some are registered, unless
--force is given.

With --host-context it removes the pods of a hub from its host cluster, and what belongs to
them: only objects with the label ` + hub.HostedLabel + `=` + hub.HostedValue + `. The volumes of etcd,
and the Secret without which their data cannot be read, stay for another init; --purge
removes them too. With --local it removes the systemd units.

Without either it removes from the API server of the kubeconfig what deploy-broker, and init
without --host-context, have installed: the broker with its namespace, pelago-hub,
admission policies and rights. Custom resource definitions stay, and with them policies and
bindings. A pelago-hub outside of the cluster must have been stopped.`,
		Example: "  pelago deinit --host-context mgmt\n  pelago deinit --host-context mgmt --purge --force --yes\n  pelago deinit --local\n  pelago deinit --context hub",
		Args:    cobra.NoArgs,
	}
	var force, purge bool
	confirm := view.AddConfirmation(cmd, "skip the confirmation prompt")
	cmd.Flags().BoolVar(&force, "force", false, "remove even if members are registered or the hub is unreachable")
	cmd.Flags().BoolVar(&purge, "purge", false, "remove keys and data as well: the hub is lost unless there is a backup")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		return view.OnlyWith(cmd.Flags(), "host-context", "namespace")
	}
	return h.complete(cmd, func(ctx context.Context, host view.Member, _ []string, out io.Writer) error {
		if h.hosted.Context == "" {
			return h.deinitInstalled(ctx, host, force, purge, confirm, out)
		}
		if err := h.hosted.CheckRemoval(ctx, host.Client, force); err != nil {
			return err
		}
		if err := confirm(fmt.Sprintf("Remove the hub in namespace %s of %s?", h.hosted.Namespace, host.Config.Host)); err != nil {
			return err
		}
		return h.hosted.Remove(ctx, host.Client, purge, NewProgress(out))
	}, func(ctx context.Context, _ []string, out io.Writer) error {
		if err := h.local.CheckRemoval(ctx, force); err != nil {
			return err
		}
		if err := confirm("Remove the hub in " + h.local.Dir + "?"); err != nil {
			return err
		}
		return h.local.Remove(ctx, purge, NewProgress(out))
	})
}

// deinitInstalled is deinit for what an API server has of deploy-broker and init.
func (h *hubCommand) deinitInstalled(
	ctx context.Context, api view.Member, force, purge bool, confirm func(question string) error, out io.Writer,
) error {
	if purge {
		return errors.New("--purge: it is for --host-context and --local; definitions stay, since deleting one deletes all objects of its kind")
	}
	in, err := hub.FindInstalled(ctx, manifests.Cluster(api))
	if err != nil {
		return err
	}
	if !force {
		if err := in.CheckRemoval(ctx); err != nil {
			return err
		}
	}
	if err := confirm("Remove the hub and the broker at " + api.Config.Host + "?"); err != nil {
		return err
	}
	return in.Remove(ctx, NewProgress(out))
}

// Init brings up a hub in the host cluster, or prints its objects, and writes the kubeconfig of its
// administrator.
func (h *Hosted) Init(
	ctx context.Context, open func(context string) (view.Member, string, error), dryRun bool, file string, out io.Writer,
) error {
	invalid := h.Check() // may become valid with what is kept
	host, _, err := open(h.Context)
	if err != nil {
		return cmp.Or(invalid, err)
	}
	if _, err := h.Plan(ctx, host.Client); err != nil {
		return err
	}
	if dryRun {
		stages, err := hub.Manifests(h.Hub)
		for _, u := range slices.Concat(stages...) {
			fmt.Fprintln(out, "---")
			err = errors.Join(err, view.Encode(out, "yaml", u.Object))
		}
		return err
	}
	progress := NewProgress(out)
	admin, err := h.Install(ctx, manifests.Cluster(host), progress)
	if err != nil {
		return err
	}
	return WroteAdmin(file, admin, progress, out)
}

// Init brings up a hub on this machine and writes the kubeconfig of its administrator.
func (l *Local) Init(ctx context.Context, file string, out io.Writer) error {
	progress := NewProgress(out)
	return l.Install(ctx, progress, func(admin []byte) error { return WroteAdmin(file, admin, progress, out) })
}

// WroteAdmin writes the administrator's kubeconfig and prints the next steps.
func WroteAdmin(file string, admin []byte, progress manifests.Progress, out io.Writer) error {
	if _, err := WriteSecretFile(file, admin, ""); err != nil {
		return err
	}
	progress("Wrote %s, the kubeconfig of the hub's administrator", file)
	progress("The hub is ready")
	fmt.Fprintf(out, "\nKeep a backup of the hub: `pelago hub backup`.\n\nMake clusters members. Push, the hub writes the cluster:\n\n  pelago join NAME --kubeconfig %s --cluster-kubeconfig FILE\n\n"+
		"Pull, an agent in the cluster watches the hub, and the clusters share a network as well:\n\n  pelago deploy-broker --kubeconfig %s\n"+
		"  pelago join broker-info.subm --context CLUSTER --clusterid NAME\n", file, file)
	return nil
}

// WriteSecretFile replaces a file by one that its owner alone can read. An existing one is renamed
// to keep, unless that is empty; kept is its new name.
func WriteSecretFile(file string, content []byte, keep string) (kept string, err error) {
	tmp, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+"-") // mode 0600
	if err != nil {
		return "", fmt.Errorf("write %s: %w", file, err)
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(content)
	if err = errors.Join(err, tmp.Close()); err != nil {
		return "", fmt.Errorf("write %s: %w", file, err)
	}
	if keep != "" {
		switch err := os.Rename(file, keep); {
		case err == nil:
			kept = keep
		case !errors.Is(err, fs.ErrNotExist):
			return "", fmt.Errorf("keep the former %s: %w", file, err)
		}
	}
	if err := os.Rename(tmp.Name(), file); err != nil {
		return "", fmt.Errorf("write %s: %w", file, err)
	}
	return kept, nil
}

// ReadInfo reads a broker-info.subm.
func ReadInfo(file string) (broker.Info, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return broker.Info{}, fmt.Errorf("read %s: %w: run `pelago deploy-broker` at the hub and bring its file here; to make a push "+
			"member of that name give --cluster-kubeconfig", file, err)
	}
	info, err := broker.DecodeInfo(content)
	if err != nil {
		return broker.Info{}, fmt.Errorf("read %s: %w", file, err)
	}
	return info, nil
}

// NewProgress prints steps, one line each, with the seconds since now.
func NewProgress(out io.Writer) manifests.Progress {
	start := time.Now()
	return func(format string, args ...any) {
		fmt.Fprintf(out, "%6.1fs  %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}
}
