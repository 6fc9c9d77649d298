package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

// held is what became of connections that were kept busy.
type held struct {
	Opened   int `json:"opened"`
	Requests int `json:"requests"`
	// PerPod is the number of connections that each pod served.
	PerPod map[string]int `json:"perPod"`
	// Broken are those that ended before they were told to; empty, never null.
	Broken []broken `json:"broken"`
	// SlowestMs is the longest time that a request took.
	SlowestMs float64 `json:"slowestMs"`
}

// broken is a connection that ended by itself.
type broken struct {
	Pod   string `json:"pod"` // that served it; empty if it could not be opened
	After string `json:"after"`
	Error string `json:"error"`
}

// patience is how long one request may take before its connection counts as broken: longer than a
// sender whose packets were lost or late for many seconds waits before it sends again (RFC 6298
// 5.5). How long requests took is in SlowestMs.
const patience = time.Minute

func hold(args []string) error {
	flags := flag.NewFlagSet("whereami hold", flag.ExitOnError)
	connections := flags.Int("connections", 100, "how many")
	every := flags.Duration("every", 100*time.Millisecond, "time between two requests of a connection")
	duration := flags.Duration("duration", 0, "how long; 0: until standard input ends")
	_ = flags.Parse(args) // ends the process on an error
	if flags.NArg() != 1 || *connections < 1 || *every <= 0 {
		return errors.New("usage: whereami hold [-connections 100] [-every 100ms] [-duration 10s] ADDRESS:PORT")
	}
	ctx, cancel := lasting(*duration)
	defer cancel()
	return printJSON(holdAll(ctx, flags.Arg(0), *connections, *every))
}

// holdAll opens n connections at once and sends a request on each of them every so often until ctx
// ends. None is opened again.
func holdAll(ctx context.Context, address string, n int, every time.Duration) held {
	out := held{PerPod: map[string]int{}, Broken: []broken{}}
	var mu sync.Mutex
	var first, all sync.WaitGroup
	first.Add(n)
	for range n {
		all.Go(func() {
			h := holdOne(ctx, address, every, sync.OnceFunc(first.Done))
			mu.Lock()
			defer mu.Unlock()
			if h.pod != "" {
				out.Opened++
				out.PerPod[h.pod]++
			}
			out.Requests += h.requests
			out.SlowestMs = max(out.SlowestMs, milliseconds(h.slowest))
			if h.err != nil {
				out.Broken = append(out.Broken, broken{Pod: h.pod, After: h.lasted.Round(time.Millisecond).String(), Error: h.err.Error()})
			}
		})
	}
	first.Wait()
	fmt.Fprintln(os.Stderr, "every connection has had its first answer, or failed")
	all.Wait()
	return out
}

// life is what became of one connection.
type life struct {
	pod      string
	requests int
	slowest  time.Duration
	lasted   time.Duration
	err      error
}

// holdOne calls begun after its first answer, or when there will be none.
func holdOne(ctx context.Context, address string, every time.Duration, begun func()) (l life) {
	start := time.Now()
	defer func() { l.lasted = time.Since(start) }()
	defer begun()
	conn, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		l.err = err
		return l
	}
	defer conn.Close()
	answers := bufio.NewReader(conn)
	next := time.NewTicker(every)
	defer next.Stop()
	for {
		asked := time.Now()
		pod, err := request(conn, answers, address, patience)
		if err == nil && l.pod != "" && pod != l.pod {
			err = fmt.Errorf("pod %s answers in the place of %s", pod, l.pod)
		}
		if err != nil {
			l.err = err
			return l
		}
		l.pod = pod
		l.requests++
		begun()
		l.slowest = max(l.slowest, time.Since(asked))
		select {
		case <-ctx.Done():
			return l
		case <-next.C:
		}
	}
}

// request sends a request on a connection and returns the pod that answers.
func request(conn net.Conn, answers *bufio.Reader, host string, patience time.Duration) (pod string, err error) {
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(conn, "GET /json HTTP/1.1\r\nHost: %s\r\n\r\n", host); err != nil {
		return "", err
	}
	response, err := http.ReadResponse(answers, nil)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	var a answer
	if err := json.NewDecoder(response.Body).Decode(&a); err != nil {
		return "", fmt.Errorf("read the answer: %w", err)
	}
	if response.Close {
		return a.Pod, errors.New("the server ends the connection")
	}
	return a.Pod, nil
}
