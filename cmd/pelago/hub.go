package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pelago-net/pelago/deploy"
)

// installed are the flags of the commands about a hub that init has made.
type installed struct {
	initHub
	yes, force, purge bool
}

// command completes a command that acts on a hub in a host cluster or on this machine.
func (i *installed) command(
	cmd *cobra.Command, hosted func(context.Context, *cluster, []string, io.Writer) error, local func(context.Context, []string, io.Writer) error,
) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if i.local.On {
			return local(cmd.Context(), args, cmd.OutOrStdout())
		}
		host, err := i.openHost(&i.hosted)
		if err != nil {
			return err
		}
		return hosted(cmd.Context(), host, args, cmd.OutOrStdout())
	}
	i.addFlags(cmd.Flags())
	i.hosted.AddHost(cmd.Flags())
	i.local.AddDir(cmd.Flags())
	return cmd
}

func hubCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "hub", Short: "Back up and restore a hub that init has made"}
	cmd.AddCommand(backupCommand(), restoreCommand(), renewCommand())
	return cmd
}

func backupCommand() *cobra.Command {
	i := &installed{}
	done := func(file string, out io.Writer, err error) error {
		if err == nil {
			newProgress(out)("Wrote %s; it contains every secret of the hub", file)
		}
		return err
	}
	return i.command(&cobra.Command{
		Use:   "backup FILE",
		Short: "Write the state of a hub into a file",
		Long: `backup writes a file, mode 0600, from which the hub can be restored: a tar archive
with gzip, of a snapshot of etcd (snapshot.db), the authorities of its certificates, the
keys of its tokens and the key by which data are encrypted (pki/), and its settings
(settings.yaml). Whoever has the file has the hub. The hub goes on running.`,
		Example: "  pelago hub backup hub-2026-11-25.tar.gz --host-context mgmt\n  pelago hub backup hub.tar.gz --local",
		Args:    cobra.ExactArgs(1),
	}, func(ctx context.Context, host *cluster, args []string, out io.Writer) error {
		return done(args[0], out, i.hosted.Backup(ctx, host.Member, args[0]))
	}, func(ctx context.Context, args []string, out io.Writer) error {
		return done(args[0], out, i.local.Backup(ctx, args[0]))
	})
}

func restoreCommand() *cobra.Command {
	i := &installed{}
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Replace the state of a hub by that of a backup",
		Long: `restore puts the state of a backup into a hub that init has made, the lost one or a
new one: objects, keys and, in a host cluster, the address. Members go on without a change,
if the hub is at the address of before; nothing is created again in them. Changes of the
hub since the backup are lost. Objects of before the restore stay on the volume of etcd, in
the directory "former".

In a host cluster the hub is stopped, and started again. On this machine systemd units are
stopped; run ` + "`pelago init --local`" + ` afterwards.`,
		Example: "  pelago init --host-context mgmt2 --storage-class fast\n  pelago hub restore hub-2026-11-25.tar.gz --host-context mgmt2\n\n" +
			"  pelago hub restore hub.tar.gz --local && pelago init --local",
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&i.file, "output", "pelago-hub.kubeconfig", "kubeconfig of the hub's administrator to write")
	return i.command(cmd, func(ctx context.Context, host *cluster, args []string, out io.Writer) error {
		progress := newProgress(out)
		admin, err := i.hosted.Restore(ctx, host.Member, args[0], progress)
		if err != nil {
			return err
		}
		return i.wroteAdmin(admin, progress, out)
	}, func(ctx context.Context, args []string, out io.Writer) error {
		progress := newProgress(out)
		if err := i.local.Restore(ctx, args[0], progress); err != nil {
			return err
		}
		progress("Restored; start the hub with `pelago init --local --dir %s`", i.local.Dir)
		return nil
	})
}

func renewCommand() *cobra.Command {
	i := &installed{}
	printed := func(renewed []string, err error, out io.Writer) error {
		if err == nil {
			fmt.Fprintf(out, "Issued %d certificates: %s\n", len(renewed), strings.Join(renewed, ", "))
		}
		return err
	}
	return i.command(&cobra.Command{
		Use:   "renew",
		Short: "Renew the certificates of a hub",
		Long: `renew issues those certificates again that have less than a third of their year left.
A CronJob of the host cluster, or a timer of systemd, runs it daily.`,
		Example: "  pelago hub renew --host-context mgmt",
		Args:    cobra.NoArgs,
	}, func(ctx context.Context, host *cluster, _ []string, out io.Writer) error {
		renewed, err := i.hosted.Renew(ctx, host.Client, time.Now())
		return printed(renewed, err, out)
	}, func(_ context.Context, _ []string, out io.Writer) error {
		renewed, err := i.local.Renew(time.Now())
		return printed(renewed, err, out)
	})
}

func deinitCommand() *cobra.Command {
	i := &installed{}
	cmd := &cobra.Command{
		Use:   "deinit",
		Short: "Remove a hub that init has made",
		Long: `deinit removes the pods of a hub from its host cluster, and what belongs to them: only
objects with the label ` + deploy.HostedLabel + `=` + deploy.HostedValue + `. The volumes of etcd, and the Secret
without which their data cannot be read, stay for another init; --purge removes them too.
Members are not touched: it refuses while some are registered, unless --force is given.
With --local it removes the systemd units.`,
		Example: "  pelago deinit --host-context mgmt\n  pelago deinit --host-context mgmt --purge --force --yes\n  pelago deinit --local",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&i.yes, "yes", false, "do not ask")
	cmd.Flags().BoolVar(&i.force, "force", false, "although members are registered, or the hub does not answer")
	cmd.Flags().BoolVar(&i.purge, "purge", false, "remove keys and data as well: the hub is lost unless there is a backup")
	confirm := func(what string, out io.Writer) error {
		if i.yes {
			return nil
		}
		fmt.Fprintf(out, "Remove the hub %s? [y/N] ", what)
		if answer, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n'); strings.TrimSpace(strings.ToLower(answer)) != "y" {
			return errors.Join(errors.New("nothing was removed: answer y, or give --yes"), ignoreEOF(err))
		}
		return nil
	}
	return i.command(cmd, func(ctx context.Context, host *cluster, _ []string, out io.Writer) error {
		if err := i.hosted.CheckRemoval(ctx, host.Client, i.force); err != nil {
			return err
		}
		if err := confirm(fmt.Sprintf("in namespace %s of %s", i.hosted.Namespace, host.Config.Host), out); err != nil {
			return err
		}
		return i.hosted.Remove(ctx, host.Client, i.purge, newProgress(out))
	}, func(ctx context.Context, _ []string, out io.Writer) error {
		if err := i.local.CheckRemoval(ctx, i.force); err != nil {
			return err
		}
		if err := confirm("in "+i.local.Dir, out); err != nil {
			return err
		}
		return i.local.Remove(ctx, i.purge, newProgress(out))
	})
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
