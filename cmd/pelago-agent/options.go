package main

import (
	"flag"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"
)

// options is what the command line says.
type options struct {
	kubeconfig     string
	metricsAddress string
	healthAddress  string
	leaderElect    bool
	logLevel       slog.Level

	// The rest is set by tests only.

	// hubPause is the least and the most time between attempts to reach a hub that is away.
	hubPause [2]time.Duration
	// several agents may run in one process.
	several bool
}

// Roles of an agent. Each runs as a process with a ServiceAccount of its own.
const (
	roleNetwork   = "network"
	roleExecution = "execution"
)

func parse(args []string) (options, error) {
	o := options{hubPause: [2]time.Duration{time.Second, 5 * time.Second}}
	flags := flag.NewFlagSet("pelago-agent", flag.ContinueOnError)
	roles := flags.String("roles", roleNetwork, "what this process does: network")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "file with the access to the member's API server; empty: the pod's own")
	flags.StringVar(&o.metricsAddress, "metrics-address", ":8082", "address of /metrics, /healthz and /readyz; 0 turns it off")
	flags.StringVar(&o.healthAddress, "health-address", ":8081", "another address of /healthz and /readyz; 0 turns it off")
	flags.BoolVar(&o.leaderElect, "leader-elect", true, "work only while holding the lease pelago-agent")
	flags.TextVar(&o.logLevel, "log-level", slog.LevelInfo, "debug, info, warn or error")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("read the command line: unexpected argument %q", flags.Arg(0))
	}
	return o, checkRoles(strings.Split(*roles, ","))
}

func checkRoles(roles []string) error {
	for _, r := range roles {
		switch r {
		case roleNetwork:
		case roleExecution:
			return fmt.Errorf("role %s is not built yet: use --roles=%s", roleExecution, roleNetwork)
		default:
			return fmt.Errorf("role %q is unknown: use --roles=%s", r, roleNetwork)
		}
	}
	if slices.Equal(roles, []string{roleNetwork}) {
		return nil
	}
	return fmt.Errorf("roles %s: give each role once", strings.Join(roles, ","))
}
