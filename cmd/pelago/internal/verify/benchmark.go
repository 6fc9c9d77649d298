package verify

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
)

// Measurement is what a client of one cluster measured towards the service of another, or of its
// own as a comparison.
type Measurement struct {
	From string `json:"from"`
	To   string `json:"to"`
	// Down and Up are bits per second.
	Down float64 `json:"down,omitempty"`
	Up   float64 `json:"up,omitempty"`
	// Requests are one after the other on a connection; the times are in nanoseconds.
	Requests int           `json:"requests,omitempty"`
	P50      time.Duration `json:"p50,omitempty"`
	P99      time.Duration `json:"p99,omitempty"`
	Slowest  time.Duration `json:"slowest,omitempty"`
	Error    string        `json:"error,omitempty"`
}

// Benchmark has the client of each cluster measure Throughput or Latency towards each cluster, its
// own included, one pair after the other. The caller calls Cleanup in any case.
func (a *Acceptance) Benchmark(ctx context.Context, kind Kind, lasting time.Duration) ([]Measurement, error) {
	if err := a.prepare(ctx); err != nil {
		return nil, err
	}
	if err := a.each(func(c *Cluster) error {
		limited, cancel := context.WithTimeout(ctx, exportsWithin)
		defer cancel()
		return c.awaitExports(limited)
	}); err != nil {
		return nil, err
	}
	var out []Measurement
	var errs []error
	for _, from := range a.Clusters {
		for _, to := range a.Clusters {
			if ctx.Err() != nil {
				return out, ctx.Err()
			}
			a.Progress("%s from %s to %s", kind, from.ID(), to.ID())
			m := Measurement{From: from.ID(), To: to.ID()}
			replies, err := a.Exec(ctx, from, []Probe{{Kind: kind, Address: at(webName(to.ID()) + domain), For: lasting, Within: probeWithin}}, strings.NewReader(""))
			if err == nil && replies[0].Err != "" {
				err = errors.New(replies[0].Err)
			}
			if err != nil {
				m.Error = err.Error()
				errs = append(errs, fmt.Errorf("from %s to %s: %w", m.From, m.To, err))
			} else {
				r := replies[0]
				m.Down, m.Up, m.Requests, m.P50, m.P99, m.Slowest = r.Down, r.Up, r.Requests, r.P50, r.P99, r.Slowest
			}
			out = append(out, m)
		}
	}
	return out, errors.Join(errs...)
}

// Measurements is the table of measurements of a kind.
func Measurements(kind Kind, all []Measurement) view.Table {
	t := view.Table{Header: []string{"FROM", "TO", "DOWN Mbit/s", "UP Mbit/s"}, Empty: "Nothing was measured."}
	if kind == Latency {
		t.Header = []string{"FROM", "TO", "REQUESTS", "P50", "P99", "SLOWEST"}
	}
	for _, m := range all {
		cells := []string{m.From, m.To}
		round := func(d time.Duration) string { return d.Round(time.Microsecond).String() }
		switch {
		case m.Error != "":
			cells = append(cells, "failed")
			for len(cells) < len(t.Header) {
				cells = append(cells, "-")
			}
		case kind == Latency:
			cells = append(cells, fmt.Sprint(m.Requests), round(m.P50), round(m.P99), round(m.Slowest))
		default:
			cells = append(cells, fmt.Sprintf("%.0f", m.Down/1e6), fmt.Sprintf("%.0f", m.Up/1e6))
		}
		t.Rows = append(t.Rows, view.Row{Cells: cells, Object: m})
	}
	return t
}
