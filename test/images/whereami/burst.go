package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"net"
	"slices"
	"sync"
	"time"
)

// bursted is the outcome of a burst of connections.
type bursted struct {
	Opened int `json:"opened"`
	// Failed are the errors of those that were not opened or not answered, at most ten; empty,
	// never null.
	Failed      []string `json:"failed"`
	FailedCount int      `json:"failedCount"`
	// P50Ms and P99Ms are the times from the SYN to the answer.
	P50Ms float64 `json:"p50Ms"`
	P99Ms float64 `json:"p99Ms"`
	// TookMs is the time until the last SYN.
	TookMs float64 `json:"tookMs"`
}

func burst(args []string) error {
	flags := flag.NewFlagSet("whereami burst", flag.ExitOnError)
	connections := flags.Int("connections", 10000, "how many; all stay open until the last is answered")
	within := flags.Duration("within", 2*time.Second, "time in which they are opened, evenly")
	patience := flags.Duration("patience", time.Minute, "how long a connection may take")
	_ = flags.Parse(args) // ends the process on an error
	if flags.NArg() != 1 || *connections < 1 || *within <= 0 || *patience <= 0 {
		return errors.New("usage: whereami burst [-connections 10000] [-within 2s] [-patience 1m] ADDRESS:PORT")
	}
	return printJSON(burstOf(context.Background(), flags.Arg(0), *connections, *within, *patience))
}

// burstOf opens n connections to the HTTP server within a time and sends one request on each.
func burstOf(ctx context.Context, address string, n int, within, patience time.Duration) bursted {
	out := bursted{Failed: []string{}}
	var mu sync.Mutex
	var times []time.Duration
	var answered, all sync.WaitGroup
	answered.Add(n)
	begin := time.Now()
	for i := range n {
		time.Sleep(time.Until(begin.Add(within * time.Duration(i) / time.Duration(n))))
		all.Go(func() {
			start := time.Now()
			conn, err := (&net.Dialer{Timeout: patience}).DialContext(ctx, "tcp", address)
			if err == nil {
				defer conn.Close()
				_, err = request(conn, bufio.NewReader(conn), address, patience)
			}
			took := time.Since(start)
			mu.Lock()
			if err != nil {
				out.FailedCount++
				if len(out.Failed) < 10 {
					out.Failed = append(out.Failed, err.Error())
				}
			} else {
				out.Opened++
				times = append(times, took)
			}
			mu.Unlock()
			answered.Done()
			answered.Wait()
		})
	}
	out.TookMs = milliseconds(time.Since(begin))
	all.Wait()
	if len(times) > 0 {
		slices.Sort(times)
		out.P50Ms, out.P99Ms = milliseconds(times[len(times)/2]), milliseconds(times[len(times)*99/100])
	}
	return out
}
