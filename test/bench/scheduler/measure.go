package main

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/placement"
	"github.com/pelago-net/pelago/scheduler"
	"github.com/pelago-net/pelago/test/resultfile"
)

// result is one run.
type result struct {
	kase, variant string
	perSecond     float64
	p99           time.Duration
	cpu           time.Duration // of a decision, on all cores together
}

// measure decides so many bindings on so many cores, with as many at a time. Each decision is kept,
// as if it had been written, so that later ones have less room. Those that run already are known
// from before.
func measure(clusterCount, bindings, cores int) (result, error) {
	room := placement.NewCache(placement.CacheOptions{})
	room.SetClusters(clusters(clusterCount))
	names := make([]string, clusterCount)
	for i := range names {
		names[i] = nameOf(i)
	}
	requests := make([]*scheduler.Request, bindings)
	keys := make([]string, bindings)
	for i := range requests {
		requests[i], keys[i] = binding(i, names), fmt.Sprint("bench/binding-", i)
		if len(requests[i].Current) == 0 {
			continue
		}
		o := placement.Observation{ResourceVersion: "1", Size: placement.SizeOf(&workv1alpha2.ResourceBindingSpec{ReplicaRequirements: requests[i].Requirements})}
		for _, c := range requests[i].Current {
			o.Parts = append(o.Parts, placement.ReservedPart{Cluster: c.Name, Replicas: c.Replicas})
		}
		room.Observe(keys[i], o)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(cores))
	runtime.GC()
	took := make([]time.Duration, bindings)
	failed := make([]error, cores)
	var next atomic.Int64
	var workers sync.WaitGroup
	begin, cpu := time.Now(), cpuTime()
	for w := range cores {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < bindings; i = int(next.Add(1)) - 1 {
				from := time.Now()
				_, reservation, err := room.Decide(keys[i], requests[i])
				took[i] = time.Since(from)
				if err != nil {
					failed[w] = fmt.Errorf("decide binding %d: %w", i, err)
					return
				}
				reservation.Commit("2")
			}
		})
	}
	workers.Wait()
	all, used := time.Since(begin), cpuTime()-cpu
	if err := errors.Join(failed...); err != nil {
		return result{}, err
	}
	slices.Sort(took)
	return result{perSecond: float64(bindings) / all.Seconds(), p99: took[bindings*99/100], cpu: used / time.Duration(bindings)}, nil
}

// cpuTime is what the process has used of all processors.
func cpuTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err) // it fails for wrong arguments only: getrusage(2)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// rowsOf sums up the repetitions of each case and variant.
func rowsOf(results []result) (rows []resultfile.Row) {
	add := func(r result, metric, unit string, of func(result) float64) {
		var values []float64
		for _, o := range results {
			if o.kase == r.kase && o.variant == r.variant {
				values = append(values, of(o))
			}
		}
		slices.Sort(values)
		rows = append(rows, resultfile.Row{
			Case: r.kase, Variant: r.variant, Metric: metric, Unit: unit,
			N: len(values), Median: values[len(values)/2], Min: values[0], Max: values[len(values)-1],
		})
	}
	seen := map[[2]string]bool{}
	for _, r := range results {
		if key := [2]string{r.kase, r.variant}; !seen[key] {
			seen[key] = true
			add(r, "decisions_per_s", "1/s", func(r result) float64 { return r.perSecond })
			add(r, "decision_ms_p99", "ms", func(r result) float64 { return float64(r.p99.Microseconds()) / 1000 })
			add(r, "decision_cpu_us", "us", func(r result) float64 { return float64(r.cpu.Nanoseconds()) / 1000 })
		}
	}
	return rows
}
