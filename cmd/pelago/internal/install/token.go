package install

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/deploy"
	"github.com/pelago-net/pelago/deploy/broker"
)

// TokenCommand is the verb token. Each of its verbs has flags of its own, so access returns a new value at each call.
func TokenCommand(access func() Access) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Tokens by which clusters register: create, list, delete",
		Long: `token manages bootstrap tokens at the hub, in kubeadm's format. With one a cluster
registers as with broker-info.subm, and can do nothing else.`,
		Example: "  pelago token create --print-register-command",
		Args:    cobra.NoArgs,
	}
	cmd.AddCommand(tokenCreateCommand(access()), tokenListCommand(access()), tokenDeleteCommand(access()))
	return cmd
}

// NewToken is the form of a new token in -o json and -o yaml.
type NewToken struct {
	Token    string   `json:"token"`
	Server   string   `json:"server"`
	Hashes   []string `json:"discoveryTokenCACertHashes"`
	Register string   `json:"registerCommand"`
}

func tokenCreateCommand(a Access) *cobra.Command {
	var output, description string
	var life time.Duration
	var command bool
	cmd := &cobra.Command{
		Use:   "create [TOKEN]",
		Short: "Create a token, random unless one is given",
		Example: `  pelago token create --print-register-command
  pelago token create --ttl 1h --description "cluster c1" -o json`,
		Args: cobra.MaximumNArgs(1),
	}
	cmd.RunE = atHub(a, func(ctx context.Context, hub view.Member, args []string, out io.Writer) error {
		set, err := broker.ReadClusterset(ctx, hub.Client, deploy.BrokerNamespace)
		if err != nil {
			return fmt.Errorf("%w: run `pelago deploy-broker` there first, or name the hub with --context", err)
		}
		n := NewToken{Server: cmp.Or(set.BrokerURL, hub.Config.Host)}
		ca, err := CA(ctx, hub)
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
		if output == "table" || output == "wide" {
			fmt.Fprintln(out, map[bool]string{true: n.Register, false: n.Token}[command])
			return nil
		}
		return view.Encode(out, output, n)
	})
	f := cmd.Flags()
	a.AddFlags(f)
	view.AddOutputFlag(f, &output)
	f.DurationVar(&life, "ttl", broker.CredentialLife, "validity of the token; 0: it does not expire")
	f.StringVar(&description, "description", "", "what the token is for")
	f.BoolVar(&command, "print-register-command", false, "print the whole command to run at a cluster")
	return cmd
}

func tokenListCommand(a Access) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "list", Short: "List the bootstrap tokens of the hub", Example: "  pelago token list -o yaml", Args: cobra.NoArgs,
	}
	cmd.RunE = atHub(a, func(ctx context.Context, hub view.Member, _ []string, out io.Writer) error {
		tokens, err := broker.BootstrapTokens(ctx, hub.Client)
		if err != nil {
			return err
		}
		t := view.Table{Header: []string{"TOKEN", "EXPIRES", "USAGES", "GROUPS", "DESCRIPTION"}, Empty: "No tokens: create one with `pelago token create`."}
		for _, k := range tokens {
			t.Add(k.ID, cmp.Or(k.Expires, "never"), strings.Join(k.Usages, ","), strings.Join(k.Groups, ","), k.Description)
		}
		if output == "table" || output == "wide" {
			return t.Print(out, false)
		}
		return view.Encode(out, output, tokens)
	})
	a.AddFlags(cmd.Flags())
	view.AddOutputFlag(cmd.Flags(), &output)
	return cmd
}

func tokenDeleteCommand(a Access) *cobra.Command {
	cmd := &cobra.Command{
		Use: "delete TOKEN...", Short: "Delete tokens, by their first six characters", Example: "  pelago token delete abcdef", Args: cobra.MinimumNArgs(1),
		Long: `delete deletes tokens: with them no cluster can register any more, except one that
has begun to within the last ten minutes. Clusters that have registered stay.`,
	}
	cmd.RunE = atHub(a, func(ctx context.Context, hub view.Member, args []string, out io.Writer) error {
		for _, id := range args {
			if err := broker.DeleteBootstrapToken(ctx, hub.Client, id); err != nil {
				return err
			}
			fmt.Fprintf(out, "Token %s is deleted\n", strings.Split(id, ".")[0])
		}
		return nil
	})
	a.AddFlags(cmd.Flags())
	return cmd
}

// atHub returns the function of a command that opens the hub first.
func atHub(a Access, do func(context.Context, view.Member, []string, io.Writer) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		hub, _, err := a.Open("")
		if err != nil {
			return err
		}
		return do(cmd.Context(), hub, args, cmd.OutOrStdout())
	}
}

// CA is that of a hub, PEM: the one of the kubeconfig, else the published one.
func CA(ctx context.Context, hub view.Member) ([]byte, error) {
	if len(hub.Config.CAData) > 0 {
		return hub.Config.CAData, nil
	}
	return deploy.PublishedCA(ctx, hub.Client, deploy.BrokerNamespace)
}
