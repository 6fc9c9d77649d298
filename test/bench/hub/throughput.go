package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	"github.com/pelago-net/pelago/test/bench/hub/replay"
	"github.com/pelago-net/pelago/test/bench/mixed"
	"github.com/pelago-net/pelago/test/hubset"
)

// How fast the hub is when all templates come at once, when they are there before it starts, and
// when they are there with mixed placements over many members.
const (
	caseBurst = "burst"
	caseCold  = "cold"
	caseMixed = "mixed"
)

// throughputStage is a stage for a case: real members, or simulated ones in regions and with
// labels.
func (o options) throughputStage(ctx context.Context, name, dir string, r *replay.Recorder) (*stage, error) {
	if name != caseMixed {
		return newStage(ctx, o, dir, o.members, 0, 0, r)
	}
	s, err := newStage(ctx, o, dir, 0, o.simulated, 0, r)
	if err != nil {
		return nil, err
	}
	if err := s.spreadOut(ctx); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// spreadOut gives the members the labels and regions by which mixed placements choose.
func (s *stage) spreadOut(ctx context.Context) error {
	for i, name := range s.members {
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"labels": mixed.Labels(i)}, "spec": map[string]any{"region": mixed.Region(i)}})
		if err != nil {
			return err
		}
		cluster := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := s.observer.Patch(ctx, cluster, client.RawPatch(types.MergePatchType, patch)); err != nil {
			return fmt.Errorf("give %s a region: %w", name, err)
		}
	}
	return nil
}

// Phases of a recording.
const (
	phaseSetUp = "set up" // templates that are there before the hub
	phaseTimed = "timed"
	phaseAfter = "after"
)

// inFlight is how many requests users make at a time, and the replaying client if nothing else is
// given.
const inFlight = 64

// recording is what a replay needs of a recorded run.
type recording struct {
	setUp, timed, open []replay.Request
	systems            map[string]string
}

// throughput measures one case: recorded once, then the hub and the replaying client take turns,
// each time on servers of their own.
func throughput(ctx context.Context, o options, name string) (samples, error) {
	var got samples
	rec, err := record(ctx, o, name)
	if err != nil {
		return got, fmt.Errorf("record %s: %w", name, err)
	}
	for rep := range o.reps {
		own, err := o.measured(ctx, name, rep)
		if err != nil {
			return got, fmt.Errorf("measure %s, repetition %d: %w", name, rep+1, err)
		}
		again, ended, err := o.replayed(ctx, name, rep, rec)
		if err != nil {
			return got, fmt.Errorf("replay %s, repetition %d: %w", name, rep+1, err)
		}
		n := float64(o.templates)
		got.hub, got.replay = append(got.hub, n/own.took.Seconds()), append(got.replay, n/again.Took.Seconds())
		got.decided = append(got.decided, n/own.decided.Seconds())
		got.ratio = append(got.ratio, again.Took.Seconds()/own.took.Seconds())
		got.hubEnded, got.replayEnded = append(got.hubEnded, own.ended), append(got.replayEnded, ended)
		got.writes = own.writes
		slog.Info("measured", "case", name, "repetition", rep+1, "pelago", own.took.Round(time.Millisecond), "replay",
			again.Took.Round(time.Millisecond), "requests", again.Requests, "unknown versions", again.Unknown, "watches reopened",
			again.Reopened, "watches ended beside pelago", own.ended, "beside the replay", ended)
	}
	return got, nil
}

// work does the case: the templates come, and the hub has done everything. timed is called when the
// time begins to run.
func (s *stage) work(ctx context.Context, name string, timed func()) (time.Duration, error) {
	if err := s.user.Create(ctx, namespaceObject()); err != nil {
		return 0, fmt.Errorf("create the namespace: %w", err)
	}
	fill := burst
	if name == caseMixed {
		fill = burstMixed
	}
	var start time.Time
	if name == caseBurst {
		timed()
		start = time.Now()
		if err := fill(ctx, s.user, s.options.templates, inFlight, s.members); err != nil {
			return 0, err
		}
	} else {
		if err := s.hub.Stop(ctx); err != nil {
			return 0, err
		}
		if err := fill(ctx, s.user, s.options.templates, inFlight, s.members); err != nil {
			return 0, err
		}
		timed()
		start = time.Now()
		var err error
		if s.hub, err = s.set.StartHub("pelago-hub"); err != nil {
			return 0, err
		}
	}
	all := s.done
	if name == caseMixed {
		all = s.applied
	}
	end, err := all(ctx, s.options.templates)
	return end.Sub(start), err
}

// measurement is what a run of the hub came to.
type measurement struct {
	took, decided time.Duration
	writes        writes
	ended         float64 // see watchesEnded
}

// measured lets the hub work without anything between it and the servers.
func (o options) measured(ctx context.Context, name string, rep int) (m measurement, err error) {
	s, err := o.throughputStage(ctx, name, fmt.Sprintf("%s-%d", name, rep+1), nil)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	var start time.Time
	if m.took, err = s.work(ctx, name, func() { start = time.Now() }); err != nil {
		return m, err
	}
	m.decided = s.bindings.lastDecision().Sub(start)
	if m.ended, err = s.watchesEnded(ctx); err != nil {
		return m, err
	}
	m.writes, err = s.writes(ctx)
	return m, err
}

// watchesEnded is how many watches the hub's API server has ended so far because they did not take
// events as fast as others made them.
func (s *stage) watchesEnded(ctx context.Context) (n float64, err error) {
	config := s.set.Server.Config()
	c, err := rest.HTTPClientFor(config)
	if err != nil {
		return 0, fmt.Errorf("read the metrics of the API server: %w", err)
	}
	metrics, err := hubset.Metrics(ctx, c, config.Host+"/metrics")
	if err != nil {
		return 0, fmt.Errorf("read the metrics of the API server: %w", err)
	}
	for series, value := range metrics {
		if strings.HasPrefix(series, "apiserver_terminated_watchers_total{") {
			n += value
		}
	}
	return n, nil
}

// record writes down what is requested in one run.
func record(ctx context.Context, o options, name string) (rec recording, err error) {
	var r replay.Recorder
	defer r.Close()
	s, err := o.throughputStage(ctx, name, name+"-recorded", &r)
	if err != nil {
		return rec, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if rec.systems, err = s.systemUIDs(ctx); err != nil {
		return rec, err
	}
	r.Phase(phaseSetUp)
	if _, err := s.work(ctx, name, func() {
		r.Phase(phaseTimed)
		if name == caseBurst { // elsewhere the hub's watches begin within the time
			rec.open = r.Open()
		}
	}); err != nil {
		return rec, err
	}
	r.Phase(phaseAfter)
	for _, q := range r.Requests() {
		switch {
		case q.Phase == phaseTimed:
			rec.timed = append(rec.timed, q)
		case q.Phase == phaseSetUp && q.UserAgent == userAgent:
			rec.setUp = append(rec.setUp, q)
		}
	}
	slog.Info("recorded", "case", name, "requests", len(rec.timed))
	return rec, nil
}

// tolerated is the share of requests that may have another result than recorded; beyond it the
// replay is not the same work.
const tolerated = 0.01

// replayed makes the recorded requests on servers on which the product was installed, but does not
// run.
func (o options) replayed(ctx context.Context, name string, rep int, rec recording) (out replay.Outcome, ended float64, err error) {
	s, err := o.throughputStage(ctx, name, fmt.Sprintf("%s-%d-replay", name, rep+1), nil)
	if err != nil {
		return out, 0, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.hub.Stop(ctx); err != nil {
		return out, 0, err
	}
	systems, err := s.systemUIDs(ctx)
	if err != nil {
		return out, 0, err
	}
	known := map[string]string{}
	for server, then := range rec.systems {
		known[then] = systems[server]
	}
	p, err := replay.NewPlayer(s.configs(), o.inFlight, known)
	if err != nil {
		return out, 0, err
	}
	accesses, err := s.accesses(ctx)
	if err != nil {
		return out, 0, err
	}
	if err := p.As(hubAgent, accesses); err != nil {
		return out, 0, err
	}
	if _, err := p.Play(ctx, rec.setUp); err != nil {
		return out, 0, err
	}
	if err := p.Prepare(ctx, rec.timed); err != nil {
		return out, 0, err
	}
	defer p.Watch(ctx, rec.open)()
	if out, err = p.Play(ctx, rec.timed); err != nil {
		return out, 0, err
	}
	if float64(out.Differing) > tolerated*float64(out.Requests) {
		return out, 0, fmt.Errorf("%d of %d requests ended otherwise than when they were recorded, the first: %s", out.Differing,
			out.Requests, out.First)
	}
	ended, err = s.watchesEnded(ctx)
	return out, ended, err
}
