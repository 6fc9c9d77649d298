package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/manifests"
)

func tokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Tokens by which clusters register: create, list, delete",
		Long: `token manages bootstrap tokens at the hub, in kubeadm's format. With one a cluster
registers as with broker-info.subm, and can do nothing else.`,
		Example: "  pelago token create --print-register-command",
		Args:    cobra.NoArgs,
	}
	cmd.AddCommand(tokenCreateCommand(), tokenListCommand(), tokenDeleteCommand())
	return cmd
}

// newToken is the form of a new token in -o json and -o yaml.
type newToken struct {
	Token    string   `json:"token"`
	Server   string   `json:"server"`
	Hashes   []string `json:"discoveryTokenCACertHashes"`
	Register string   `json:"registerCommand"`
}

func tokenCreateCommand() *cobra.Command {
	var a access
	var description string
	var life time.Duration
	var command bool
	cmd := &cobra.Command{
		Use:   "create [TOKEN]",
		Short: "Create a token, random unless one is given",
		Example: `  pelago token create --print-register-command
  pelago token create --ttl 1h --description "cluster c1" -o json`,
		Args: cobra.MaximumNArgs(1),
	}
	cmd.RunE = a.run(func(ctx context.Context, hub *cluster, args []string, out io.Writer) error {
		set, err := broker.ReadClusterset(ctx, hub.Client, manifests.BrokerNamespace)
		if err != nil {
			return fmt.Errorf("%w: run `pelago deploy-broker` there first, or name the hub with --context", err)
		}
		n := newToken{Server: cmp.Or(set.BrokerURL, hub.Config.Host)}
		ca, err := manifests.Cluster(hub.Member).CA(ctx)
		if err != nil {
			return err
		}
		if n.Hashes, err = broker.Pins(ca); err != nil {
			return err
		}
		if err := broker.PublishClusterInfo(ctx, hub.Client, n.Server, ca); err != nil {
			return err
		}
		if n.Token, err = broker.CreateBootstrapToken(ctx, hub.Client, strings.Join(args, ""), description, life); err != nil {
			return err
		}
		n.Register = fmt.Sprintf("pelago register %s --token %s", n.Server, n.Token)
		for _, h := range n.Hashes {
			n.Register += " --discovery-token-ca-cert-hash " + h
		}
		n.Register += " --cluster-name NAME"
		if a.output == "table" || a.output == "wide" {
			fmt.Fprintln(out, map[bool]string{true: n.Register, false: n.Token}[command])
			return nil
		}
		return view.Encode(out, a.output, n)
	})
	f := cmd.Flags()
	a.addFlags(f)
	view.AddOutputFlag(f, &a.output)
	f.DurationVar(&life, "ttl", broker.CredentialLife, "validity of the token; 0: it does not expire")
	f.StringVar(&description, "description", "", "what the token is for")
	f.BoolVar(&command, "print-register-command", false, "print the whole command to run at a cluster")
	return cmd
}

func tokenListCommand() *cobra.Command {
	var a access
	cmd := &cobra.Command{
		Use: "list", Short: "List the bootstrap tokens of the hub", Example: "  pelago token list -o yaml", Args: cobra.NoArgs,
	}
	cmd.RunE = a.run(func(ctx context.Context, hub *cluster, _ []string, out io.Writer) error {
		tokens, err := broker.BootstrapTokens(ctx, hub.Client)
		if err != nil {
			return err
		}
		t := view.Table{Header: []string{"TOKEN", "EXPIRES", "USAGES", "GROUPS", "DESCRIPTION"}, Empty: "No tokens: create one with `pelago token create`."}
		for _, k := range tokens {
			t.Add(k.ID, cmp.Or(k.Expires, "never"), strings.Join(k.Usages, ","), strings.Join(k.Groups, ","), k.Description)
		}
		if a.output == "table" || a.output == "wide" {
			return t.Print(out, false)
		}
		return view.Encode(out, a.output, tokens)
	})
	a.addFlags(cmd.Flags())
	view.AddOutputFlag(cmd.Flags(), &a.output)
	return cmd
}

func tokenDeleteCommand() *cobra.Command {
	var a access
	cmd := &cobra.Command{
		Use: "delete TOKEN...", Short: "Delete tokens, by their first six characters", Example: "  pelago token delete abcdef", Args: cobra.MinimumNArgs(1),
		Long: `delete deletes tokens: no cluster can register with them any more, except one that
has begun within the last ten minutes. Registered clusters stay members.`,
	}
	cmd.RunE = a.run(func(ctx context.Context, hub *cluster, args []string, out io.Writer) error {
		for _, id := range args {
			if err := broker.DeleteBootstrapToken(ctx, hub.Client, id); err != nil {
				return err
			}
			fmt.Fprintf(out, "Token %s is deleted\n", strings.Split(id, ".")[0])
		}
		return nil
	})
	cmd.ValidArgsFunction = a.complete(func(ctx context.Context, hub *cluster, args []string, _ string) (ids []string) {
		tokens, err := broker.BootstrapTokens(ctx, hub.Client)
		if err != nil {
			return nil
		}
		for _, k := range tokens {
			if !slices.Contains(args, k.ID) {
				ids = append(ids, k.ID)
			}
		}
		return ids
	})
	a.addFlags(cmd.Flags())
	return cmd
}
