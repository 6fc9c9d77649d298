package inspect

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pelago-net/pelago/dataplane/dump"
	"github.com/pelago-net/pelago/dataplane/trace"
)

// Live is what happened to a real packet, on all nodes that were watched.
type Live struct {
	Sightings []Sighting `json:"sightings"`
	// Drops are counted by the programs meanwhile; those of other packets are among them.
	Drops []Drop `json:"drops"`
}

// Sighting is the packet, or its answer, at a device of a node.
type Sighting struct {
	Cluster string `json:"cluster"`
	Node    string `json:"node"`
	trace.Sighting
}

// Drop is a counter of a node that grew.
type Drop struct {
	Cluster string `json:"cluster"`
	Node    string `json:"node"`
	dump.Counter
}

// sendAndWatch has all nodes of the members watch for a packet, a node send it, and collects what
// they saw.
func sendAndWatch(ctx context.Context, members []member, from member, node string, p trace.Probe, wait time.Duration) (*Live, error) {
	type watched struct {
		cluster, node string
		result        trace.Watched
	}
	request, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("encode the packet: %w", err)
	}
	group, ctx := errgroup.WithContext(ctx)
	stop := make(chan struct{})
	ready := make(chan struct{})
	var all []*watched
	for _, m := range members {
		for _, name := range slices.Sorted(maps.Keys(m.daemons)) {
			w := &watched{cluster: m.config.ClusterID, node: name}
			all = append(all, w)
			in, input := io.Pipe()
			output, out := io.Pipe()
			group.Go(func() error {
				err := m.Run(ctx, m.daemons[name], in, out, "pelago-node", "trace", "watch")
				in.Close() // ends a write without a reader
				return errors.Join(out.CloseWithError(err), err)
			})
			group.Go(func() error { // the request, then the end
				_, err := input.Write(request)
				select {
				case <-stop:
				case <-ctx.Done():
				}
				return errors.Join(err, input.Close())
			})
			group.Go(func() error {
				lines := bufio.NewReader(output)
				if _, err := lines.ReadString('\n'); err != nil {
					return fmt.Errorf("watch node %s: %w", name, err)
				}
				select {
				case ready <- struct{}{}:
				case <-ctx.Done():
					return ctx.Err()
				}
				if err := json.NewDecoder(lines).Decode(&w.result); err != nil {
					return fmt.Errorf("read what node %s saw: %w (is its pelago-node of another version?)", name, err)
				}
				_, err := io.Copy(io.Discard, lines)
				return err
			})
		}
	}
	group.Go(func() error {
		defer close(stop)
		for range all {
			select {
			case <-ready:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if _, err := from.run(ctx, node, "send", p); err != nil {
			return fmt.Errorf("send from node %s: %w", node, err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		return nil
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	live := &Live{Sightings: []Sighting{}, Drops: []Drop{}}
	for _, w := range all {
		for _, s := range w.result.Sightings {
			live.Sightings = append(live.Sightings, Sighting{w.cluster, w.node, s})
		}
		for _, d := range w.result.Drops {
			live.Drops = append(live.Drops, Drop{w.cluster, w.node, d})
		}
	}
	live.order(nodeName{from.config.ClusterID, node})
	return live, nil
}

// order sorts the sightings along the way of the packet, then along that of its answer.
func (l *Live) order(at nodeName) {
	packets, answers := map[nodeName][]trace.Sighting{}, map[nodeName][]trace.Sighting{}
	var far nodeName // where the answer came from
	for _, s := range l.Sightings {
		n := nodeName{s.Cluster, s.Node}
		if !s.Answer {
			packets[n] = append(packets[n], s.Sighting)
			continue
		}
		answers[n] = append(answers[n], s.Sighting)
		if s.From == nil && !s.Out && n != at {
			far = n
		}
	}
	there, back := way(packets, at), way(answers, far)
	place := func(s Sighting) int {
		if i := slices.Index(back, nodeName{s.Cluster, s.Node}); s.Answer {
			return len(there) + 1 + i
		}
		return slices.Index(there, nodeName{s.Cluster, s.Node})
	}
	slices.SortStableFunc(l.Sightings, func(a, b Sighting) int { return cmp.Compare(place(a), place(b)) })
}

// way is the nodes that an outer packet passes, from one on. It empties seen.
func way(seen map[nodeName][]trace.Sighting, at nodeName) (nodes []nodeName) {
	for {
		nodes = append(nodes, at)
		i := slices.IndexFunc(seen[at], func(s trace.Sighting) bool { return s.From != nil && s.Out })
		if i < 0 {
			return nodes
		}
		sent := seen[at][i]
		delete(seen, at)
		next, ok := received(seen, *sent.From, *sent.To)
		if !ok {
			return nodes
		}
		at = next
	}
}

// nodeName is a node by name and cluster.
type nodeName struct{ cluster, node string }

func (n nodeName) String() string { return fmt.Sprintf("node %s of cluster %s", n.node, n.cluster) }

// end derives how the packet ended from the sightings, following it from the node that sent it.
// host means that the source is a process of that node, so the answer does not leave by a device.
func (l Live) end(at nodeName, p trace.Packet, host bool) End {
	seen := map[nodeName][]trace.Sighting{}
	var answered, back, entered, handed bool
	for _, s := range l.Sightings {
		n := nodeName{s.Cluster, s.Node}
		switch plain := s.From == nil; {
		case !s.Answer:
			seen[n] = append(seen[n], s.Sighting)
		case n == at && !plain && !s.Out:
			back = true
		case n == at && plain && s.Out:
			handed = handed || s.Packet.Destination == p.Source
		case n == at && plain:
			entered = true
		}
		answered = answered || s.Answer
	}
	switch {
	case handed, back && !entered, host && entered:
		// in the datapath fast no device of the node sees it again
		return endOf(Delivered, "", fmt.Sprintf("the answer came back to %s", p.Source))
	case answered && entered:
		return endOf(Dropped, "stack", fmt.Sprintf("%s, where the answer arrived", at))
	case answered:
		return endOf(Dropped, "answer-lost", "")
	}
	for first := true; ; first = false {
		var out *trace.Sighting
		plain, toPod := false, false
		for i, s := range seen[at] {
			switch {
			case s.From != nil && s.Out:
				out = &seen[at][i]
			case s.From == nil && s.Out:
				toPod = true
				plain = true
			case s.From == nil:
				plain = true
			}
		}
		delete(seen, at)
		switch {
		case out != nil:
			next, ok := received(seen, *out.From, *out.To)
			if !ok {
				return endOf(Dropped, "not-seen", fmt.Sprintf("%s sent it to %s by device %s", at, out.To, out.Device))
			}
			at = next
		case !first && toPod && protocolName(p.Protocol) == "udp":
			return endOf(Delivered, "", fmt.Sprintf("%s handed it to the pod", at))
		case !first && toPod:
			return endOf(Dropped, "no-answer", at.String())
		default:
			// What entered a far node's stack has passed its programs.
			if verdict := l.dropped(at); verdict != "" && (first || !plain) {
				return endOf(Dropped, verdict, at.String())
			}
			if first && !plain {
				return endOf(Unknown, "not-sent", fmt.Sprintf("%s has not seen it", at))
			}
			if plain {
				return endOf(Dropped, "stack", at.String())
			}
			return endOf(Dropped, "no-answer", at.String()) // past the stack, in the datapath fast
		}
	}
}

// received is the node that got an outer packet. A node whose driver forwards by XDP sees nothing,
// so any later node counts as well.
func received(seen map[nodeName][]trace.Sighting, from, to netip.Addr) (other nodeName, ok bool) {
	for n, sightings := range seen {
		for _, s := range sightings {
			if s.Out {
				continue
			}
			if other, ok = n, true; s.From != nil && *s.From == from && *s.To == to {
				return n, true
			}
		}
	}
	return other, ok
}

// dropped is the verdict by which the programs of a node dropped a packet meanwhile; "": none.
func (l Live) dropped(at nodeName) string {
	for _, d := range l.Drops {
		if d.Cluster == at.cluster && d.Node == at.node {
			return d.Verdict
		}
	}
	return ""
}
