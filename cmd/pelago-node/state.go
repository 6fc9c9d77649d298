package main

import (
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pelago-net/pelago/control/node"
)

// The directory outlives the pod.
const (
	defaultStateDir = "/var/lib/pelago"
	stateDirHelp    = "directory on the node for the wire's keys and the copy of the API objects"
)

// cacheFile has a directory of its own, which cleanup removes. The keys next to it stay: peers know
// them.
func cacheFile(stateDir string) string { return filepath.Join(stateDir, "node", "state.json") }

// fromCache is the metric that reports whether the node lacks the API server's objects.
func fromCache(d *node.Daemon) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "pelago_node_from_cache",
		Help: "1 while the node works from objects that it has saved, because the API server is away since the daemon has started",
	}, func() float64 {
		if d.FromCache() {
			return 1
		}
		return 0
	})
}
