package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/deploy/broker"
)

func registerCommand() *cobra.Command {
	var j join
	var token string
	var pins []string
	cmd := &cobra.Command{
		Use:   "register SERVER",
		Short: "Join a cluster to a clusterset with a token of its hub",
		Long: `register does what join does with broker-info.subm, for a cluster that has a token of
the hub instead. SERVER is the hub's API server, as the cluster's pods reach it. Its
CA is pinned by a hash of the public key, so neither a file nor a trusted network is
needed. All other flags are those of join.`,
		Example: `  pelago register 192.0.2.1:6443 --token abcdef.0123456789abcdef \
    --discovery-token-ca-cert-hash sha256:HASH --cluster-name c1 --context c1`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			server := args[0]
			if !strings.Contains(server, "://") {
				server = "https://" + server
			}
			if !strings.HasPrefix(server, "https://") {
				return fmt.Errorf("%s: the hub is reached by https", server)
			}
			if j.member.ClusterID == "" {
				return errors.New("give the cluster a name with --cluster-name")
			}
			if err := j.checkID(cmd.Context(), nil, nil); err != nil {
				return err
			}
			ca, err := broker.DiscoverHub(cmd.Context(), server, token, pins)
			if err != nil {
				return err
			}
			info, err := broker.ExchangeToken(cmd.Context(), server, token, ca)
			if err != nil {
				return err
			}
			return j.join(cmd.Context(), info, view.Terminal(cmd.InOrStdin()), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	j.addMemberFlags(cmd, "cluster-name")
	j.addPlace(cmd.Flags()) // refused with the remedy
	for _, name := range []string{"cluster-provider", "cluster-region", "cluster-zones"} {
		cmd.Flags().Lookup(name).Hidden = true
	}
	cmd.Flags().StringVar(&token, "token", "", "token that `pelago token create` at the hub has printed")
	cmd.Flags().StringSliceVar(&pins, "discovery-token-ca-cert-hash", nil, "`sha256:HASH` of the public key of the hub's CA; may be repeated")
	_ = cmd.MarkFlagRequired("token")                        // fails only without such a flag
	_ = cmd.MarkFlagRequired("discovery-token-ca-cert-hash") // likewise
	return cmd
}
