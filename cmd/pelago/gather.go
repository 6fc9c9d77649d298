package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/pelago-net/pelago/cmd/pelago/internal/check"
	"github.com/pelago-net/pelago/cmd/pelago/internal/gather"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
)

// gatherTimeout bounds the time for one cluster.
const gatherTimeout = 2 * time.Minute

func gatherCommand() *cobra.Command {
	var c checks
	var file string
	cmd := &cobra.Command{
		Use:   "gather",
		Short: "Write one archive for a report: objects, logs, and what check finds",
		Long: `gather writes a tar.gz with the objects of Pelago, the logs of its pods, the nodes and the result
of check, of every member and hub of the kubeconfig; index.md in it lists what is there and
what could not be read. Secrets are left out, and what looks like a token, a private key or a
password is cut out. A cluster that is away does not stop it.`,
		Example: `  pelago gather
  pelago gather --contexts g1,g2 --hub-kubeconfig hub.kubeconfig --file report.tar.gz`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.gather(cmd.Context(), file, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	c.addFlags(f)
	f.StringSliceVar(&c.named, "contexts", nil, "contexts of the kubeconfig (default: all)")
	f.StringVar(&c.hubKubeconfig, "hub-kubeconfig", "", "another kubeconfig, whose current context is the hub")
	f.StringVar(&file, "file", "", "the archive (default: pelago-TIME.tar.gz); an existing file is not overwritten")
	return cmd
}

func (c *checks) gather(ctx context.Context, file string, out, errOut io.Writer) (err error) {
	targets, err := c.targets(nil)
	if err != nil {
		return err
	}
	now := time.Now()
	if file == "" {
		file = "pelago-" + now.UTC().Format("20060102-150405") + ".tar.gz"
	}
	to, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("make the archive: %w", err)
	}
	defer func() {
		if closed := to.Close(); err == nil {
			err = closed
		}
		if err != nil {
			_ = os.Remove(file) // incomplete; the error is reported
		}
	}()
	var a gather.Archive
	set := check.Read(ctx, targets, checkTimeout, len(c.named) > 0, check.Selection{})
	result := check.Run(set, check.Selection{})
	for _, form := range []string{"wide", "json"} {
		var text bytes.Buffer
		if err := result.Print(&text, form); err != nil {
			return err
		}
		a.Add("check."+map[string]string{"wide": "txt", "json": "json"}[form], text.Bytes())
	}
	var sources []gather.Source
	for _, t := range targets {
		for i := range set.Clusters {
			if set.Clusters[i].Context != t.Context {
				continue
			}
			if set.Clusters[i].Err != nil {
				a.Problem("%s: %v", t.Context, set.Clusters[i].Err)
				continue
			}
			sources = append(sources, gather.Source{Context: t.Context, Open: func() (view.Member, error) { return t.Open() }})
		}
	}
	if len(set.Clusters) == 0 {
		return errors.New("none of the contexts is a hub or a cluster in which Pelago runs: name them with --contexts")
	}
	a.Collect(ctx, sources, gatherTimeout)
	if err := a.Write(to, now); err != nil {
		return err
	}
	for _, p := range a.Problems() {
		fmt.Fprintln(errOut, "warning:", p)
	}
	_, err = fmt.Fprintf(out, "%s\n%s\n", file, result.Summary())
	return err
}

func analyzeCommand() *cobra.Command {
	var paths []string
	var output string
	cmd := &cobra.Command{
		Use:   "analyze -f FILE|DIRECTORY",
		Short: "Check manifests of policies, overrides and exports without a cluster",
		Long: `analyze reads manifests, with directories below the given ones, and reports policies that are not
valid or select nothing, overrides whose path no object has, objects that two policies claim, and
exports without a Service. Schemas and rules of the definitions are left to the API server
(kubectl apply --dry-run=server).

Exit status: 0 nothing is wrong, or only warnings; 1 errors.`,
		Example: `  pelago analyze -f deploy/
  pelago analyze -f policies/ -f apps/ -o junit`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := check.Analyze(paths)
			if err != nil {
				return err
			}
			if err := r.Print(cmd.OutOrStdout(), output); err != nil {
				return err
			}
			return checkStatus(r)
		},
	}
	cmd.Flags().StringSliceVarP(&paths, "filename", "f", nil, "file or directory with manifests")
	_ = cmd.MarkFlagRequired("filename") // fails only without such a flag
	view.AddOutputFlag(cmd.Flags(), &output, "junit")
	return cmd
}
