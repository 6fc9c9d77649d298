// Command whereami is the server and the traffic of tests and walk-throughs. Without a mode it is
// an HTTP server that reports where it runs and its client: pod, namespace, node, and the source
// address and port that it sees. From its answer one reads which cluster a request reached and what
// address translation did to it.
//
//	whereami [-listen :80]       the HTTP server
//	whereami echo [-listen :7]   sends every UDP datagram back, and what comes on a TCP connection
//	whereami ping ADDRESS:PORT   sends datagrams to an echo at a fixed rate and reports which were lost
//	whereami hold ADDRESS:PORT   keeps connections to the HTTP server busy and reports which broke
//	whereami burst ADDRESS:PORT  opens many connections to the HTTP server at once and prints how long they took
//	whereami flood ADDRESS:PORT  sends datagrams of as many flows as it can
//	whereami try tcp://ADDRESS:PORT…  opens connections or sends single datagrams and prints which were refused
//	whereami load ADDRESS:PORT…  does all of it towards echoes at once and reports when what failed
//
// ping, hold, flood and load work until their standard input ends, or for -duration, and then print
// a JSON object: `kubectl exec -i` with its input held open makes traffic for as long as a test
// wants. A line on standard error reports when it flows.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// modes are what the program can be, by its first argument.
var modes = map[string]func(args []string) error{"echo": echo, "ping": ping, "hold": hold, "load": load, "burst": burst, "flood": flood, "try": try}

func main() {
	run, args := serve, os.Args[1:]
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		if run = modes[args[0]]; run == nil {
			run = func([]string) error {
				return fmt.Errorf("%q is no mode: use echo, ping, hold, burst, flood, try, load or none", args[0])
			}
		}
		args = args[1:]
	}
	if err := run(args); err != nil {
		fmt.Fprintf(os.Stderr, "whereami: %v\n", err)
		os.Exit(1)
	}
}

// lasting is a context that ends after d, or with the standard input if d is 0.
func lasting(d time.Duration) (context.Context, context.CancelFunc) {
	if d > 0 {
		return context.WithTimeout(context.Background(), d)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // an input that cannot be read has ended too
		cancel()
	}()
	return ctx, cancel
}

// printJSON writes a result for programs.
func printJSON(result any) error {
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		return fmt.Errorf("print the result: %w", err)
	}
	return nil
}
