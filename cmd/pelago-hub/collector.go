package main

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// What the program may take before it collects garbage more often, in bytes: enough for a small hub, where collecting often costs
// time for nothing, and where much lives somewhat more than that.
const (
	roomy = 416 << 20
	// less is how much less than what lives may be garbage, above that: the hub with 5,000 templates on 100 members stays below 500 MiB.
	less = 176 << 20
	// mostGrowth of the heap over what lives, in percent, below that.
	mostGrowth = 300
	// lookAtHeap is the pause between two looks at it.
	lookAtHeap = 2 * time.Second
)

// limit is what may be taken if so many bytes of the heap live.
func limit(live uint64) int64 { return max(roomy, 2*int64(live)-less) }

// paceCollector sets how often garbage is collected by how much lives, until ctx ends. Who sets GOGC or GOMEMLIMIT decides himself.
func paceCollector(ctx context.Context) {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	debug.SetGCPercent(mostGrowth)
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	tick := time.NewTicker(lookAtHeap)
	defer tick.Stop()
	for {
		metrics.Read(live)
		debug.SetMemoryLimit(limit(live[0].Value.Uint64()))
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
