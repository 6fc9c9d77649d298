package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// The load: `whereami load` (test/images) in the client's pod.
const (
	flows    = 6
	dialRate = 50
	every    = 100 * time.Millisecond
	// patience with an echo, where a fault has no other.
	patience = 5 * time.Second
)

// load is how much of it there is.
type load struct {
	rate        int // datagrams per second of a flow
	connections int
}

// interval returns the time between two datagrams of a flow.
func (l load) interval() time.Duration { return time.Second / time.Duration(l.rate) }

// traffic is a load that runs until finish.
type traffic struct {
	cmd    *exec.Cmd
	input  io.Closer
	output bytes.Buffer
	ended  chan error
	limit  time.Duration // for the end
}

// loaded is what `whereami load` prints. Times are nanoseconds since 1970.
type loaded struct {
	Flows       []flowResult `json:"flows"`
	Connections struct {
		Opened    int       `json:"opened"`
		Echoes    int       `json:"echoes"`
		Broken    []failure `json:"broken"`
		SlowestMs float64   `json:"slowestMs"`
	} `json:"connections"`
	Dials struct {
		Done      int       `json:"done"`
		Failed    []failure `json:"failed"`
		SlowestMs float64   `json:"slowestMs"`
	} `json:"dials"`
	Stalls []span `json:"stalls"`
}

// flowResult is one flow of datagrams.
type flowResult struct {
	Target   string `json:"target"`
	Sent     int    `json:"sent"`
	Answered int    `json:"answered"`
	Losses   []loss `json:"losses"`
}

// loss is a run of datagrams without an answer: from the sending of the first to that of the next
// one with an answer.
type loss struct {
	From  int64 `json:"from"`
	Until int64 `json:"until"`
	Count int   `json:"count"`
	Open  bool  `json:"open"` // there was no answer any more
}

type span struct {
	From  int64 `json:"from"`
	Until int64 `json:"until"`
}

type failure struct {
	At     int64  `json:"at"`
	Target string `json:"target"`
	Error  string `json:"error"`
}

// startTraffic starts the load and returns when every flow and every connection has had its first
// answer.
func (s *stage) startTraffic(ctx context.Context, wait time.Duration) (*traffic, error) {
	if wait == 0 {
		wait = patience
	}
	args := []string{"--context", s.client.Cluster, "-n", s.client.Namespace, "exec", "-i", s.client.Name, "--", "whereami", "load",
		"-flows", fmt.Sprint(flows), "-rate", fmt.Sprint(s.load.rate), "-connections", fmt.Sprint(s.load.connections), "-every", every.String(),
		"-dials", fmt.Sprint(dialRate), "-patience", wait.String()}
	t := &traffic{cmd: exec.CommandContext(ctx, s.Lab.Kubectl(), append(args, s.targets...)...), ended: make(chan error, 1), limit: wait + 30*time.Second}
	t.cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Lab.Kubeconfig())
	t.cmd.Stdout = &t.output
	input, err := t.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start the load: %w", err)
	}
	t.input = input
	messages, err := t.cmd.StderrPipe()
	if err != nil {
		return nil, fmt.Errorf("start the load: %w", err)
	}
	if err := t.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the load: %w", err)
	}
	working := make(chan string, 1)
	go func() {
		lines := bufio.NewReader(messages)
		first, _ := lines.ReadString('\n') // none: the program has ended, which Wait explains
		working <- first
		_, _ = io.Copy(io.Discard, lines) // however it ends, Wait reports why
		t.ended <- t.cmd.Wait()
	}()
	select {
	case line := <-working:
		if line == "" {
			return nil, fmt.Errorf("start the load: %w", errors.Join(errors.New("it ends at once"), <-t.ended))
		}
		return t, nil
	case <-time.After(30 * time.Second):
		_, err := t.finish()
		return nil, fmt.Errorf("start the load: not every flow and connection gets an answer: %w", err)
	}
}

// finish ends the load and returns what became of it.
func (t *traffic) finish() (out loaded, err error) {
	_ = t.input.Close() // what cannot be closed has ended, which is seen next
	select {
	case err = <-t.ended:
	case <-time.After(t.limit):
		_ = t.cmd.Process.Kill() // it may end this moment
		return out, errors.New("end the load: it does not end")
	}
	if err != nil {
		return out, fmt.Errorf("end the load: %w: %s", err, strings.TrimSpace(t.output.String()))
	}
	if err := json.Unmarshal(t.output.Bytes(), &out); err != nil {
		return out, fmt.Errorf("read what the load prints: %w", err)
	}
	return out, nil
}
