package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pelago-net/pelago/test/e2e/walk"
)

// traffic is a program in a pod that runs until its standard input ends and then prints the fate of
// its packets.
type traffic struct {
	name   string
	input  io.Closer
	output bytes.Buffer
	ended  chan error
	// overflowed is how many datagrams of a ping have reached a socket whose reader was not
	// scheduled for so long that its buffer was full; nil: not counted.
	overflowed func() int
}

// pings is what `whereami ping` prints, held what `whereami hold` prints (test/images/README.md).
type pings struct {
	Sent         int     `json:"sent"`
	Lost         int     `json:"lost"`
	Duplicates   int     `json:"duplicates"`
	FirstLost    int     `json:"firstLost"`
	LastLost     int     `json:"lastLost"`
	LongestGapMs float64 `json:"longestGapMs"`
	// GapUnscheduledMs is for how long of it the client was without a processor.
	GapUnscheduledMs float64 `json:"gapUnscheduledMs"`
	MaxRTTMs         float64 `json:"maxRTTMs"`
}

type held struct {
	Opened   int            `json:"opened"`
	Requests int            `json:"requests"`
	PerPod   map[string]int `json:"perPod"`
	Broken   []struct {
		Pod   string `json:"pod"`
		After string `json:"after"`
		Error string `json:"error"`
	} `json:"broken"`
	SlowestMs float64 `json:"slowestMs"`
}

// ping starts a UDP echo at so many datagrams per second; it runs when this returns.
func (s *clusterset) ping(t *testing.T, from walk.Pod, rate int, to string) *traffic {
	t.Helper()
	ends := []walk.Pod{from, {Cluster: "g2", Namespace: loadNamespace, Name: "sink"}}
	before := s.fullBuffers(t, ends)
	tr := s.start(t, from, "whereami", "ping", "-rate", fmt.Sprint(rate), to)
	tr.overflowed = func() int { return s.fullBuffers(t, ends) - before }
	return tr
}

// fullBuffers counts the datagrams that pods dropped because a socket's buffer was full
// (RcvbufErrors).
func (s *clusterset) fullBuffers(t *testing.T, pods []walk.Pod) (datagrams int) {
	t.Helper()
	for _, pod := range pods {
		datagrams += counter(t, s.kernelCounters(t, pod, "/proc/net/snmp", "Udp"), "RcvbufErrors")
	}
	return datagrams
}

// kernelCounters reads the counters of a group in a pod's network namespace from a file of two
// lines for each group: names and values.
func (s *clusterset) kernelCounters(t *testing.T, pod walk.Pod, file, group string) map[string]int {
	t.Helper()
	out, err := s.In(t.Context(), pod, "grep", "^"+group+":", file)
	must(t, err)
	first, second, _ := strings.Cut(strings.TrimSpace(out), "\n")
	names, values := strings.Fields(first), strings.Fields(second)
	if len(names) < 2 || len(names) != len(values) {
		t.Fatalf("%s has no counters of %s: %q", file, group, out)
	}
	counters := map[string]int{}
	for i, name := range names[1:] {
		n, err := strconv.Atoi(values[i+1])
		must(t, err)
		counters[name] = n
	}
	return counters
}

// counter is one of those that a kernel has.
func counter(t *testing.T, counters map[string]int, name string) int {
	t.Helper()
	n, ok := counters[name]
	if !ok {
		t.Fatalf("the kernel has no counter %s", name)
	}
	return n
}

// hold opens connections and sends a request on each of them ten times a second; they are open when
// this returns.
func (s *clusterset) hold(t *testing.T, from walk.Pod, connections int, to string) *traffic {
	t.Helper()
	return s.start(t, from, "whereami", "hold", "-connections", fmt.Sprint(connections), to)
}

// start starts a program in a pod and waits for its first line on standard error, which it prints
// when traffic flows.
func (s *clusterset) start(t *testing.T, from walk.Pod, argv ...string) *traffic {
	t.Helper()
	cmd, err := s.Command(context.WithoutCancel(t.Context()), from, argv...)
	must(t, err)
	input, err := cmd.StdinPipe()
	must(t, err)
	messages, err := cmd.StderrPipe()
	must(t, err)
	tr := &traffic{name: strings.Join(argv, " "), input: input, ended: make(chan error, 1)}
	cmd.Stdout = &tr.output
	must(t, cmd.Start())
	t.Cleanup(func() { _ = input.Close() }) // ends it if the test does not
	working := make(chan string, 1)
	go func() {
		lines := bufio.NewReader(messages)
		first, _ := lines.ReadString('\n') // empty: the program has ended, and Wait returns why
		working <- first
		_, _ = io.Copy(io.Discard, lines) // Wait returns why it ended
		tr.ended <- cmd.Wait()
	}()
	select {
	case line := <-working:
		if line == "" {
			t.Fatalf("%s: %v", tr.name, <-tr.ended)
		}
		t.Logf("%s from pod %s: %s", tr.name, from.Name, strings.TrimSpace(line))
	case <-time.After(walk.Patience):
		t.Fatalf("%s from pod %s: no answer", tr.name, from.Name)
	}
	return tr
}

// finish ends traffic and returns what it printed.
func finish[T any](t *testing.T, tr *traffic) T {
	t.Helper()
	_ = tr.input.Close() // what cannot be closed has ended, which is seen next
	select {
	case err := <-tr.ended:
		if err != nil {
			t.Fatalf("%s: %v: %s", tr.name, err, tr.output.String())
		}
	case <-time.After(walk.Patience):
		t.Fatalf("%s: does not end when its standard input does", tr.name)
	}
	return decode[T](t, tr.output.String())
}

// nothingLost ends a ping and fails the test if a datagram was lost.
func nothingLost(t *testing.T, tr *traffic) {
	t.Helper()
	lostAtMost(t, tr, 0)
}

func lostAtMost(t *testing.T, tr *traffic, most int) {
	t.Helper()
	p := finish[pings](t, tr)
	overflowed := tr.overflowed()
	t.Logf("%s: %d sent, %d lost, %d of them at a full socket, longest gap %.0f ms, longest way %.0f ms",
		tr.name, p.Sent, p.Lost, overflowed, p.LongestGapMs, p.MaxRTTMs)
	if lost := p.Lost - overflowed; lost > most {
		t.Errorf("%s: %d of %d datagrams are lost on the way (numbers %d to %d), want at most %d", tr.name, lost, p.Sent, p.FirstLost, p.LastLost, most)
	}
}

// onlyBrokenOf ends held connections and fails the test if one broke that was not served by one of
// the pods.
func onlyBrokenOf(t *testing.T, tr *traffic, pods ...string) held {
	t.Helper()
	h := finish[held](t, tr)
	t.Logf("%s: %d opened, %d requests, %d broken, slowest %.0f ms, served by %v", tr.name, h.Opened, h.Requests, len(h.Broken), h.SlowestMs, h.PerPod)
	for _, b := range h.Broken {
		if !slices.Contains(pods, b.Pod) {
			t.Errorf("a connection served by pod %q broke after %s: %s", b.Pod, b.After, b.Error)
		}
	}
	return h
}
