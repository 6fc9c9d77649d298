package placement

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// world is what truly is, next to a Room that observes it late.
type world struct {
	clock   *clock
	room    *Cache
	cores   map[string]int64
	version int
	truth   map[string]*written // the bindings at the API server
	watch   map[string][]event  // what the watch has not delivered yet, by binding
	cached  map[string]event    // what it delivered last
	pods    map[string]map[string]int32
	reports map[string]int64        // the last report of each cluster: cores in use
	doubt   map[string]*Reservation // of those whose write timed out
}

// written is a binding.
type written struct {
	version  int
	cores    int64 // of each replica
	clusters map[string]int32
}

// event is a version of it.
type event struct {
	gone    bool
	version int
	cores   int64
	parts   []ReservedPart
}

func newWorld(t *rapid.T) *world {
	w := &world{
		clock: newClock(), cores: map[string]int64{},
		truth: map[string]*written{}, watch: map[string][]event{}, cached: map[string]event{},
		pods: map[string]map[string]int32{}, reports: map[string]int64{}, doubt: map[string]*Reservation{},
	}
	for i := range rapid.IntRange(1, 3).Draw(t, "clusters") {
		w.cores[fmt.Sprint("m", i)] = rapid.Int64Range(1, 12).Draw(t, "cores")
	}
	w.start()
	return w
}

// start begins with a new Room, which reads everything.
func (w *world) start() {
	w.room = NewCache(CacheOptions{Now: w.clock.now})
	w.doubt = map[string]*Reservation{}
	w.tell()
	for key := range w.watch {
		w.watch[key] = nil
		delete(w.cached, key)
	}
	for key := range w.truth {
		w.watch[key] = []event{w.event(key)}
		w.deliver(key)
	}
}

func (w *world) tell() {
	var clusters []*clusterv1alpha1.Cluster
	for name, cores := range w.cores {
		clusters = append(clusters, member(name, cores, w.reports[name]))
	}
	w.room.SetClusters(clusters)
}

// event is the binding as it is, with the status that the members give it.
func (w *world) event(key string) event {
	b := w.truth[key]
	e := event{version: b.version, cores: b.cores}
	for _, name := range slices.Sorted(maps.Keys(b.clusters)) {
		e.parts = append(e.parts, ReservedPart{name, b.clusters[name], w.pods[key][name] == b.clusters[name]})
	}
	return e
}

func (w *world) deliver(key string) {
	e := w.watch[key][0]
	w.watch[key] = w.watch[key][1:]
	w.cached[key] = e
	if e.gone {
		w.room.Forget(key, fmt.Sprint(e.version))
		return
	}
	w.observe(key, e)
}

func (w *world) observe(key string, e event) {
	w.room.Observe(key, Observation{ResourceVersion: fmt.Sprint(e.version), Size: sizeOf(needs(e.cores)), Parts: e.parts})
}

// report is the news of one cluster.
func (w *world) report(cluster string) {
	w.reports[cluster] = 0
	for key, pods := range w.pods {
		w.reports[cluster] += int64(pods[cluster]) * size0(key)
	}
}

// size0 is how many cores a replica of a binding requests.
func size0(key string) int64 { return int64(key[len(key)-1]-'0')%3 + 1 }

// resolve reads a binding live to see whether a write was made.
func (w *world) resolve(key string) {
	p := w.doubt[key]
	if p == nil {
		return
	}
	if w.truth[key] == nil {
		w.room.Forget(key, "")
	} else {
		w.observe(key, w.event(key))
	}
	p.Release()
	delete(w.doubt, key)
}

func (w *world) decide(t *rapid.T, key string) {
	w.resolve(key)
	e, known := w.cached[key]
	known = known && !e.gone
	var current []workv1alpha2.TargetCluster
	if known {
		for _, p := range e.parts {
			current = append(current, workv1alpha2.TargetCluster{Name: p.Cluster, Replicas: p.Replicas})
		}
	}
	divisions := []policyv1alpha1.ReplicaDivisionPreference{weighted, aggregated}
	r := request(rapid.Int32Range(0, 8).Draw(t, "replicas"), rapid.SampledFrom(divisions).Draw(t, "division"), current...)
	r.Requirements = needs(size0(key))
	d, p, err := w.room.Decide(key, r)
	if err != nil {
		return
	}
	b := w.truth[key]
	if (b != nil) != known || known && b.version != e.version {
		p.Release() // a conflict
		return
	}
	end := rapid.IntRange(0, 9).Draw(t, "write")
	if end == 0 {
		p.Release()
		return
	}
	if end != 1 {
		w.version++
		b = &written{version: w.version, cores: size0(key), clusters: map[string]int32{}}
		for _, c := range d.Clusters {
			b.clusters[c.Name] = c.Replicas
		}
		w.truth[key] = b
		w.watch[key] = append(w.watch[key], w.event(key))
	}
	if end <= 2 {
		w.doubt[key] = p // a timeout, with (2) and without (1) effect
		return
	}
	for range rapid.IntRange(0, len(w.watch[key])).Draw(t, "echoes before the answer") {
		w.deliver(key)
	}
	p.Commit(fmt.Sprint(b.version))
}

// TestNeverTwice: whatever is late, fails or is unknown, no cluster is promised more than it has;
// and once all is known, no room is lost.
func TestNeverTwice(t *testing.T) {
	full := 0
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		keys := []string{"ns/0", "ns/1", "ns/2", "ns/3", "ns/4"}
		key := func() string { return rapid.SampledFrom(keys).Draw(t, "binding") }
		t.Repeat(map[string]func(*rapid.T){
			"decide":  func(t *rapid.T) { w.decide(t, key()) },
			"decide2": func(t *rapid.T) { w.decide(t, key()) },
			"deliver": func(*rapid.T) {
				if k := key(); len(w.watch[k]) > 0 {
					w.deliver(k)
				}
			},
			"the member acts": func(*rapid.T) { w.act(key()) },
			"status": func(*rapid.T) {
				k := key()
				if b := w.truth[k]; b != nil {
					w.version++
					b.version = w.version
					w.watch[k] = append(w.watch[k], w.event(k))
				}
			},
			"delete": func(*rapid.T) {
				k := key()
				if w.truth[k] != nil && rapid.IntRange(0, 3).Draw(t, "really") == 0 {
					delete(w.truth, k)
					w.version++
					w.watch[k] = append(w.watch[k], event{gone: true, version: w.version})
				}
			},
			"report": func(*rapid.T) {
				w.report(rapid.SampledFrom(slices.Sorted(maps.Keys(w.cores))).Draw(t, "cluster"))
				w.tell()
			},
			// Reports come at least twice within the lag.
			"time": func(*rapid.T) {
				w.clock.advance(DefaultLag / 2)
				for name := range w.cores {
					w.report(name)
				}
				w.tell()
			},
			"restart": func(t *rapid.T) {
				if rapid.IntRange(0, 5).Draw(t, "really") == 0 {
					w.start()
				}
			},
			"": func(t *rapid.T) {
				for name, cores := range w.cores {
					used := int64(0)
					for _, b := range w.truth {
						used += b.cores * int64(b.clusters[name])
					}
					if used > cores {
						t.Fatalf("%s has %d cores and is to run %d", name, cores, used)
					}
					if used == cores {
						full++
					}
				}
			},
		})
		w.settle(keys)
		for name, cores := range w.cores {
			free := cores
			for _, b := range w.truth {
				free -= b.cores * int64(b.clusters[name])
			}
			if got := freeIn(w.room, name); got != free {
				t.Fatalf("all is settled: %s has %d cores free, and %d are known", name, free, got)
			}
		}
	})
	if full == 0 {
		t.Error("no cluster was ever full")
	}
}

// act lets the members have the pods that the binding says.
func (w *world) act(key string) {
	w.pods[key] = map[string]int32{}
	if b := w.truth[key]; b != nil {
		maps.Copy(w.pods[key], b.clusters)
	}
}

// settle lets everybody do and hear all that there is, and time pass.
func (w *world) settle(keys []string) {
	for _, k := range keys {
		w.act(k)
		if b := w.truth[k]; b != nil {
			w.version++
			b.version = w.version
			w.watch[k] = append(w.watch[k], w.event(k))
		}
		for len(w.watch[k]) > 0 {
			w.deliver(k)
		}
		w.resolve(k)
	}
	for name := range w.cores {
		w.report(name)
	}
	w.tell()
	w.clock.advance(DefaultLag)
}
