package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	// warmUp under load before anything happens: paths in use are probed at the full rate.
	warmUp = 2 * time.Second
	// aftermath is how long a fault lasts: longer than the patience with an echo.
	aftermath = 6 * time.Second
	// coolDown under load when all is well again.
	coolDown = time.Second
	// stuckAfter a flow that has no answers for so long has found no way around the fault.
	stuckAfter = 3 * time.Second
)

// outcome is what one run of one fault did.
type outcome struct {
	victim string
	// outages of the flows that lost anything from the fault until the beginning of its healing:
	// the longest time without a datagram that was answered.
	outages []time.Duration
	// certain is the part of each that nothing but the fault can explain (certainly).
	certain []time.Duration
	// lost datagrams: from the fault until its healing begins, and from then on to the end.
	lost, lostHealing, sent int
	// stuck flows found no way around the fault.
	stuck int
	// broken connections were reset, or an echo did not come in time; failed ones could not be made
	// and used.
	broken, failed []failure
	slowestEcho    time.Duration
	// stall is the longest time around the fault in which the load itself was not scheduled.
	stall time.Duration
	// falseDeaths are paths that do not touch the victim and were taken for dead during the fault.
	falseDeaths []string
}

func (r outcome) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d flows hit", len(r.outages))
	for _, d := range r.outages {
		fmt.Fprintf(&b, " %.0f", ms(d))
	}
	fmt.Fprintf(&b, " ms, lost %d (healing %d) of %d, broken %d, failed %d, stuck %d, slowest echo %.0f ms, stall %.0f ms",
		r.lost, r.lostHealing, r.sent, len(r.broken), len(r.failed), r.stuck, ms(r.slowestEcho), ms(r.stall))
	if len(r.falseDeaths) > 0 {
		fmt.Fprintf(&b, ", false deaths %v", r.falseDeaths)
	}
	return b.String()
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// once runs one fault once, from healthy to healthy.
func (s *stage) once(ctx context.Context, f fault, rep int) (outcome, error) {
	victims := f.victims
	if len(victims) == 0 {
		victims = gateways
	}
	victim := victims[rep%len(victims)]
	defer func() { endBusy(s.busy); s.busy = nil }()
	do := func(what string, do step) error {
		if do == nil {
			return nil
		}
		if err := do(ctx, s, victim); err != nil {
			return fmt.Errorf("%s %s: %w", what, victim, err)
		}
		return nil
	}
	if err := do("prepare", f.prepare); err != nil {
		return outcome{}, err
	}
	t, err := s.startTraffic(ctx, f.patience)
	if err != nil {
		return outcome{}, err
	}
	times, deaths, err := s.underLoad(ctx, f, victim, do)
	l, endErr := t.finish()
	if err != nil {
		return outcome{}, err
	}
	if endErr != nil {
		return outcome{}, endErr
	}
	if err := s.keepRaw(fmt.Sprintf("%s-%d-%s.json", f.name, rep+1, victim), t, times); err != nil {
		return outcome{}, err
	}
	if err := do("restore", f.restore); err != nil {
		return outcome{}, err
	}
	out := judge(l, times, s.load.interval())
	out.victim, out.falseDeaths = victim, deaths
	for _, b := range slices.Concat(out.broken, out.failed) {
		slog.Warn("a connection failed", "fault", f.name, "after", time.Duration(b.At-times.strike), "target", b.Target, "error", b.Error)
	}
	return out, s.awaitHealthy(ctx)
}

// times of a run, nanoseconds since 1970.
type times struct {
	strike, struck int64 // the fault begins, and is complete
	heal           int64 // its healing begins
}

// keepRaw writes what the load printed into a file, with the times of the fault, for those who look
// for a cause.
func (s *stage) keepRaw(name string, t *traffic, at times) error {
	if s.raw == "" {
		return nil
	}
	if err := os.MkdirAll(s.raw, 0o755); err != nil {
		return fmt.Errorf("keep what the load printed: %w", err)
	}
	text := fmt.Sprintf(`{"strike":%d,"struck":%d,"heal":%d,"load":%s}`+"\n", at.strike, at.struck, at.heal, bytes.TrimSpace(t.output.Bytes()))
	return os.WriteFile(filepath.Join(s.raw, name), []byte(text), 0o644)
}

func (s *stage) underLoad(ctx context.Context, f fault, victim string, do func(string, step) error) (at times, deaths []string, err error) {
	if err := s.awaitUse(ctx, victim); err != nil {
		return at, nil, err
	}
	if err := do("between", f.between); err != nil {
		return at, nil, err
	}
	if err := sleep(ctx, warmUp); err != nil {
		return at, nil, err
	}
	at.strike = time.Now().UnixNano()
	if err := do("strike", f.strike); err != nil {
		return at, nil, err
	}
	at.struck = time.Now().UnixNano()
	if !f.planned {
		if err := sleep(ctx, aftermath/2); err != nil {
			return at, nil, err
		}
		if deaths, err = s.deadPaths(ctx, victim); err != nil {
			return at, nil, err
		}
		if err := sleep(ctx, aftermath/2); err != nil {
			return at, nil, err
		}
	}
	at.heal = time.Now().UnixNano()
	if err := do("heal", f.heal); err != nil {
		return at, deaths, err
	}
	if err := s.awaitHealthy(ctx); err != nil {
		return at, deaths, err
	}
	return at, deaths, sleep(ctx, coolDown)
}

// judge reports what became of a load around a fault; interval is the time between two datagrams of
// a flow.
func judge(l loaded, at times, interval time.Duration) outcome {
	out := outcome{broken: l.Connections.Broken, failed: l.Dials.Failed, slowestEcho: time.Duration(l.Connections.SlowestMs * float64(time.Millisecond))}
	for _, f := range l.Flows {
		out.sent += f.Sent
		var longest, certain time.Duration
		stuck := false
		for _, run := range f.Losses {
			switch {
			case run.Until < at.strike: // before the fault
				continue
			case run.From >= at.heal:
				out.lostHealing += run.Count
				continue
			}
			out.lost += run.Count
			outage := time.Duration(run.Until - run.From)
			longest = max(longest, outage)
			certain = max(certain, certainly(run, at.strike, l.Stalls, interval))
			stuck = stuck || outage > stuckAfter
		}
		if longest > 0 {
			out.outages = append(out.outages, longest)
			out.certain = append(out.certain, certain)
		}
		if stuck {
			out.stuck++
		}
	}
	for _, stall := range l.Stalls {
		if stall.Until >= at.strike && stall.From < at.struck+int64(time.Second) {
			out.stall = max(out.stall, time.Duration(stall.Until-stall.From))
		}
	}
	slices.Sort(out.outages)
	slices.Sort(out.certain)
	return out
}

// certainly is the part of an outage that only the fault explains. It begins with the fault
// (datagrams sent and lost before were in a queue of the victim) and excludes a stall of the load
// at its end, during which nothing was sent that could have been answered.
func certainly(run loss, strike int64, stalls []span, interval time.Duration) time.Duration {
	from, until := max(run.From, strike), run.Until
	for _, stall := range stalls {
		if stall.From > from && stall.From < until && stall.Until+int64(2*interval) >= run.Until {
			until = stall.From
			break
		}
	}
	return max(0, time.Duration(until-from))
}
