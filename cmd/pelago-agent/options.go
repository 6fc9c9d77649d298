package main

import (
	"flag"
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// options is what the command line says.
type options struct {
	kubeconfig     string
	metricsAddress string
	healthAddress  string
	leaderElect    bool
	roles          roles
	logLevel       slog.Level

	// The rest is set by tests only.

	// hubPause is the least and the most time between attempts to reach a hub that is away.
	hubPause [2]time.Duration
	// several agents may run in one process.
	several bool
}

// Roles of an agent. In a member each runs as a process with a ServiceAccount of its own.
const (
	roleNetwork   = "network"
	roleExecution = "execution"
)

// roles are what one process does, at least one of them.
type roles struct{ network, execution bool }

// lease is what the process holds while it works. Both roles in one process are the network's agent with more to do.
func (r roles) lease() string {
	if !r.network {
		return "pelago-agent-execution"
	}
	return "pelago-agent"
}

func parse(args []string) (options, error) {
	o := options{hubPause: [2]time.Duration{time.Second, 5 * time.Second}}
	flags := flag.NewFlagSet("pelago-agent", flag.ContinueOnError)
	names := flags.String("roles", roleNetwork, "what this process does: network, execution (the hub's workloads), or both, "+
		"separated by a comma")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "file with the access to the member's API server; empty: the pod's own")
	flags.StringVar(&o.metricsAddress, "metrics-address", ":8082", "address of /metrics, /healthz and /readyz; 0 turns it off")
	flags.StringVar(&o.healthAddress, "health-address", ":8081", "another address of /healthz and /readyz; 0 turns it off")
	flags.BoolVar(&o.leaderElect, "leader-elect", true, "work only while holding the lease pelago-agent, or pelago-agent-execution "+
		"for that role alone")
	flags.TextVar(&o.logLevel, "log-level", slog.LevelInfo, "debug, info, warn or error")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("read the command line: unexpected argument %q", flags.Arg(0))
	}
	var err error
	o.roles, err = parseRoles(strings.Split(*names, ","))
	return o, err
}

func parseRoles(names []string) (roles, error) {
	var r roles
	for _, name := range names {
		var role *bool
		switch name {
		case roleNetwork:
			role = &r.network
		case roleExecution:
			role = &r.execution
		default:
			return r, fmt.Errorf("role %q is unknown: use --roles=%s, --roles=%s or both", name, roleNetwork, roleExecution)
		}
		if *role {
			return r, fmt.Errorf("roles %s: give each role once", strings.Join(names, ","))
		}
		*role = true
	}
	return r, nil
}
