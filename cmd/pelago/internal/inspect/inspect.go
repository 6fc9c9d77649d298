// Package inspect holds the verbs that show what the nodes do with packets: nat, service, map and
// trace. They read the maps of the nodes through the pods of pelago-node, or on a node those of the
// machine. Only `nat flush` changes anything.
package inspect

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
)

// Access opens the cluster of a context, "" for the one that its flags name, with the namespace of
// the context.
type Access interface {
	AddFlags(*pflag.FlagSet)
	Open(context string) (view.Member, string, error)
}

// Commands are the verbs. Each has flags of its own, so access returns a new value at each call.
func Commands(access func() Access) []*cobra.Command {
	return []*cobra.Command{traceCommand(access), natCommand(access), serviceCommand(access), mapCommand(access)}
}

// Status is an error with the exit status of the program.
type Status struct {
	Code int
	Text string
}

func (s Status) Error() string { return s.Text }
