package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/test/e2e/walk"
)

// healLimit bounds how long the clusters take to be as they were.
const healLimit = 3 * time.Minute

// awaitHealthy waits until nothing is left of a fault: all daemons are ready, every gateway reports
// all of its connections, and in every node's kernel every path answers.
func (s *stage) awaitHealthy(ctx context.Context) error {
	if err := walk.Eventually(ctx, healLimit, func() error { return s.healthy(ctx) }); err != nil {
		return fmt.Errorf("the clusters do not get well: %w", err)
	}
	return nil
}

func (s *stage) healthy(ctx context.Context) error {
	for _, cluster := range []string{"g1", "g2"} {
		for _, workload := range []string{"daemonset/pelago-node", "deployment/pelago-agent"} {
			out, err := s.kubectl(ctx, cluster, "-n", system, "get", workload, "-o",
				"jsonpath={.status.desiredNumberScheduled}{.status.replicas}/{.status.numberReady}{.status.readyReplicas}")
			if err != nil {
				return err
			}
			if want, have, _ := strings.Cut(out, "/"); want != have {
				return fmt.Errorf("%s: %s is %s ready", cluster, workload, out)
			}
		}
		out, err := s.kubectl(ctx, cluster, "-n", system, "get", "gateways.submariner.io", "-o", `jsonpath={.items[*].status.connections[*].status}`)
		if err != nil {
			return err
		}
		states := strings.Fields(out)
		if len(states) != len(gateways) || slices.ContainsFunc(states, func(s string) bool { return s != "connected" }) {
			return fmt.Errorf("%s: connections are %v, want %d that are connected", cluster, states, len(gateways))
		}
	}
	all, err := s.paths(ctx, "")
	if err != nil {
		return err
	}
	for node, paths := range all {
		probed := 0
		for _, p := range paths {
			if !p.probed {
				continue
			}
			probed++
			if !p.good {
				return fmt.Errorf("%s: the path to %s is not good", node, p.peer)
			}
		}
		if want := s.wantPaths(node); probed != want {
			return fmt.Errorf("%s probes %d paths, want %d", node, probed, want)
		}
	}
	return nil
}

// wantPaths is how many paths a node probes: to each gateway of its cluster but itself, and from a
// gateway to each of the other's.
func (s *stage) wantPaths(node string) int {
	n := 0
	for _, g := range gateways {
		sameCluster := g[:2] == node[:2]
		if g != node && (sameCluster || slices.Contains(gateways, node)) {
			n++
		}
	}
	return n
}

// path is what a node's kernel knows of a peer.
type path struct {
	peer   string // name of the node
	probed bool
	good   bool // it answers and is ready
	dead   bool // probes are sent, and no answer has come for a second
	used   bool // a packet took it within the last half second
}

// pathEntry is an entry of the map `paths` as bpftool shows it by the map's BTF.
type pathEntry struct {
	Formatted struct {
		Key   uint32 `json:"key"` // network order, read in the machine's
		Value struct {
			Seen     uint64 `json:"seen"`
			Used     uint64 `json:"used"`
			Replies  uint64 `json:"replies"`
			Probed   uint32 `json:"probed"`
			Sequence uint32 `json:"sequence"`
			Answered uint32 `json:"answered"`
			Ready    uint32 `json:"ready"`
		} `json:"value"`
	} `json:"formatted"`
}

// paths reads the map of every node, the one that is off left out.
func (s *stage) paths(ctx context.Context, off string) (map[string][]path, error) {
	var nodes []string
	for _, c := range s.Lab.Plan().Clusters {
		for _, n := range c.Nodes {
			if n.Name != off {
				nodes = append(nodes, n.Name)
			}
		}
	}
	out := map[string][]path{}
	var mu sync.Mutex
	var all sync.WaitGroup
	var errs []error
	for _, node := range nodes {
		all.Go(func() {
			entries, now, err := s.readPaths(ctx, node)
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
			for _, e := range entries {
				v := e.Formatted.Value
				silent := now - int64(v.Seen)
				open := v.Sequence - v.Answered
				out[node] = append(out[node], path{
					peer: s.names[e.Formatted.Key], probed: v.Probed != 0,
					good: v.Replies > 0 && v.Ready != 0 && silent < int64(time.Second),
					dead: v.Probed != 0 && open >= 3 && silent > int64(time.Second),
					used: v.Used > 0 && now-int64(v.Used) < int64(time.Second/2),
				})
			}
		})
	}
	all.Wait()
	return out, errors.Join(errs...)
}

// nameNodes maps the keys of the map `paths` to nodes: the address of a node, and on an encrypted
// wire its fabric address.
func (s *stage) nameNodes(ctx context.Context) error {
	s.names = map[uint32]string{}
	for _, c := range s.Lab.Plan().Clusters {
		for _, n := range c.Nodes {
			fabric, err := s.Fabric(ctx, c.Name, n.Name)
			if err != nil {
				return err
			}
			for _, address := range []netip.Addr{n.Address, fabric} {
				s.names[binary.NativeEndian.Uint32(address.AsSlice())] = n.Name
			}
		}
	}
	return nil
}

func (s *stage) readPaths(ctx context.Context, node string) (entries []pathEntry, now int64, err error) {
	text, err := s.Lab.Exec(ctx, node, "bpftool", "--json", "map", "dump", "pinned", "/sys/fs/bpf/pelago/paths")
	if err != nil {
		return nil, 0, err
	}
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil { // bpf_ktime_get_ns
		return nil, 0, fmt.Errorf("read the clock: %w", err)
	}
	if err := json.Unmarshal([]byte(text), &entries); err != nil {
		return nil, 0, fmt.Errorf("read the paths of %s: %w", node, err)
	}
	return entries, ts.Nano(), nil
}

// awaitUse waits until packets take the way over a gateway, from its own cluster and from the other
// one: a gateway that has just come back is not used at once, and would not be missed.
func (s *stage) awaitUse(ctx context.Context, gateway string) error {
	return walk.Eventually(ctx, healLimit, func() error {
		all, err := s.paths(ctx, "")
		if err != nil {
			return err
		}
		used := map[string]bool{}
		for node, paths := range all {
			for _, p := range paths {
				if p.peer == gateway && p.used {
					used[node[:2]] = true
				}
			}
		}
		if len(used) < 2 {
			return fmt.Errorf("gateway %s is used by %v only", gateway, slices.Collect(maps.Keys(used)))
		}
		return nil
	})
}

// deadPaths are those that a node takes for dead although neither end is the victim.
func (s *stage) deadPaths(ctx context.Context, victim string) ([]string, error) {
	off := ""
	if _, err := s.Lab.Exec(ctx, victim, "true"); err != nil {
		off = victim // the power is off
	}
	all, err := s.paths(ctx, off)
	if err != nil {
		return nil, err
	}
	var dead []string
	for node, paths := range all {
		for _, p := range paths {
			if p.dead && node != victim && p.peer != victim {
				dead = append(dead, node+"→"+p.peer)
			}
		}
	}
	slices.Sort(dead)
	return dead, nil
}
