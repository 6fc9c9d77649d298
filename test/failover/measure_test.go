package main

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// at makes nanoseconds of milliseconds after the beginning of a load.
func at(ms int64) int64 { return ms * int64(time.Millisecond) }

func TestJudge(t *testing.T) {
	// The fault happens after 2 s, its healing begins after 8 s.
	around := times{strike: at(2000), struck: at(2050), heal: at(8000)}
	run := func(from, until int64, count int) loss { return loss{From: at(from), Until: at(until), Count: count} }
	for name, tt := range map[string]struct {
		flows         [][]loss
		outages       []time.Duration
		lost, healing int
		stuck         int
	}{
		"nothing is lost":                    {flows: [][]loss{nil, nil}},
		"before the fault it does not count": {flows: [][]loss{{run(500, 600, 100)}}},
		"one flow of two is hit":             {flows: [][]loss{{run(2000, 2040, 40)}, nil}, outages: []time.Duration{40 * time.Millisecond}, lost: 40},
		"the longest outage counts, every loss does": {
			flows: [][]loss{{run(2000, 2030, 30), run(2100, 2110, 10)}}, outages: []time.Duration{30 * time.Millisecond}, lost: 40,
		},
		"shortest first": {
			flows:   [][]loss{{run(2000, 2050, 50)}, {run(2001, 2031, 30)}},
			outages: []time.Duration{30 * time.Millisecond, 50 * time.Millisecond}, lost: 80,
		},
		"underway when it happened":  {flows: [][]loss{{run(1990, 2040, 50)}}, outages: []time.Duration{50 * time.Millisecond}, lost: 50},
		"by the healing":             {flows: [][]loss{{run(9000, 9005, 5)}}, healing: 5},
		"no way around until healed": {flows: [][]loss{{run(2000, 9000, 7000)}}, outages: []time.Duration{7 * time.Second}, lost: 7000, stuck: 1},
		"never again": {
			flows: [][]loss{{{From: at(2000), Until: at(10000), Count: 8000, Open: true}}}, outages: []time.Duration{8 * time.Second}, lost: 8000, stuck: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var l loaded
			for _, losses := range tt.flows {
				l.Flows = append(l.Flows, flowResult{Sent: 10000, Losses: losses})
			}
			got := judge(l, around, time.Millisecond)
			if diff := cmp.Diff(tt.outages, got.outages); diff != "" {
				t.Errorf("outages: -want +got\n%s", diff)
			}
			if got.lost != tt.lost || got.lostHealing != tt.healing || got.stuck != tt.stuck {
				t.Errorf("lost %d, healing %d, stuck %d, want %d, %d, %d", got.lost, got.lostHealing, got.stuck, tt.lost, tt.healing, tt.stuck)
			}
		})
	}
}

func TestJudgeStalls(t *testing.T) {
	l := loaded{Stalls: []span{{at(100), at(900)}, {at(2010), at(2030)}, {at(2500), at(2507)}, {at(6000), at(6500)}}}
	if got := judge(l, times{strike: at(2000), struck: at(2050), heal: at(8000)}, time.Millisecond).stall; got != 20*time.Millisecond {
		t.Errorf("stall of %v, want the longest one around the fault, 20 ms", got)
	}
}

func TestCertainly(t *testing.T) {
	run := loss{From: at(1990), Until: at(2080), Count: 40}
	for name, tt := range map[string]struct {
		stalls []span
		want   int64 // ms
	}{
		"from the fault on":                {nil, 80},
		"the load stands still to the end": {[]span{{at(2045), at(2079)}}, 45},
		"and beyond":                       {[]span{{at(2045), at(2100)}}, 45},
		"in between":                       {[]span{{at(2010), at(2030)}}, 80},
		"twice: what was sent between counts as lost": {[]span{{at(2040), at(2060)}, {at(2061), at(2080)}}, 61},
		"before and after":                            {[]span{{at(1900), at(2085)}, {at(2090), at(2100)}}, 80},
		"another datagram was lost after standstill":  {[]span{{at(2045), at(2070)}}, 80},
	} {
		t.Run(name, func(t *testing.T) {
			if got := certainly(run, at(2000), tt.stalls, time.Millisecond); got != time.Duration(at(tt.want)) {
				t.Errorf("%v, want %d ms", got, tt.want)
			}
		})
	}
	if got := certainly(loss{From: at(1980), Until: at(2000)}, at(2010), nil, time.Millisecond); got != 0 {
		t.Errorf("%v of what ended before the fault", got)
	}
}

func TestJudgeConnections(t *testing.T) {
	var l loaded
	text := `{"connections":{"opened":3,"broken":[{"at":5,"target":"x:7","error":"reset"}],"slowestMs":1.5},"dials":{"done":4,"failed":[{"error":"a"},{"error":"b"}]}}`
	if err := json.Unmarshal([]byte(text), &l); err != nil {
		t.Fatal(err)
	}
	got := judge(l, times{}, time.Millisecond)
	if len(got.broken) != 1 || len(got.failed) != 2 || got.slowestEcho != 1500*time.Microsecond {
		t.Errorf("%+v", got)
	}
}

func TestVerdict(t *testing.T) {
	slow := outcome{outages: []time.Duration{2 * time.Second}, lost: 2000, failed: []failure{{}}}
	for name, tt := range map[string]struct {
		results map[string][]outcome
		want    string
	}{
		"slow is no failure": {map[string][]outcome{"a": {slow}}, ""},
		"broken":             {map[string][]outcome{"a": {slow, {broken: []failure{{}, {}}}}}, "a: 2 connections broke in 2 runs"},
		"stuck":              {map[string][]outcome{"b": {{stuck: 3}}}, "b: 3 flows found no way around the fault in 1 runs"},
		"both":               {map[string][]outcome{"b": {{stuck: 1}}, "a": {{broken: []failure{{}}}}}, "a: 1 connections broke in 1 runs\nb: 1 flows found no way around the fault in 1 runs"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if err := verdict(tt.results); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}
