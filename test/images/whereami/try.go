package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Outcomes of an attempt; others are errors in the words of the kernel.
const (
	answered = "answered"
	// late: the first SYN was not answered in time, and sent again.
	late    = "answered after a retransmission"
	refused = "refused"
)

// tried is the outcome of attempts to reach one target.
type tried struct {
	To       string         `json:"to"`
	Outcomes map[string]int `json:"outcomes"`
	// BestMs is the time until the outcome of the fastest attempt.
	BestMs float64 `json:"bestMs"`
}

func try(args []string) error {
	flags := flag.NewFlagSet("whereami try", flag.ExitOnError)
	after := flags.Duration("after", 0, "how long to wait before the first attempt")
	times := flags.Int("times", 1, "how many attempts, one after the other")
	patience := flags.Duration("patience", 10*time.Second, "how long an attempt may take")
	_ = flags.Parse(args) // ends the process on an error
	valid := flags.NArg() > 0 && *times > 0 && *patience > 0 && *after >= 0
	for _, target := range flags.Args() {
		network, address, _ := strings.Cut(target, "://")
		_, _, err := net.SplitHostPort(address)
		valid = valid && err == nil && (network == "tcp" || network == "udp")
	}
	if !valid {
		return errors.New("usage: whereami try [-after 50ms] [-times 5] [-patience 10s] tcp|udp://ADDRESS:PORT…")
	}
	time.Sleep(*after)
	return printJSON(tryAll(flags.Args(), *times, *patience))
}

// tryAll tries all targets at once.
func tryAll(targets []string, times int, patience time.Duration) []tried {
	out := make([]tried, len(targets))
	var all sync.WaitGroup
	for i, target := range targets {
		all.Go(func() {
			network, address, _ := strings.Cut(target, "://")
			best := time.Duration(-1)
			out[i] = tried{To: target, Outcomes: map[string]int{}}
			for range times {
				start := time.Now()
				out[i].Outcomes[attempt(network, address, patience)]++
				if took := time.Since(start); best < 0 || took < best {
					best = took
				}
			}
			out[i].BestMs = milliseconds(best)
		})
	}
	all.Wait()
	return out
}

// attempt opens a TCP connection, or sends one datagram to an echo.
func attempt(network, address string, patience time.Duration) string {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return outcome(err)
	}
	defer conn.Close()
	if c, ok := conn.(*net.TCPConn); ok {
		return handshake(c)
	}
	if _, err := conn.Write(make([]byte, 64)); err != nil {
		return outcome(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return outcome(err)
	}
	if _, err := conn.Read(make([]byte, 64)); err != nil {
		return outcome(err)
	}
	return answered
}

// handshake is by the kernel's count, which scheduling of this process does not change.
func handshake(c *net.TCPConn) string {
	raw, err := c.SyscallConn()
	if err != nil {
		return outcome(err)
	}
	var info *unix.TCPInfo
	var infoErr error
	err = raw.Control(func(fd uintptr) {
		info, infoErr = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	})
	if err = errors.Join(err, infoErr); err != nil {
		return outcome(fmt.Errorf("read TCP_INFO: %w", err))
	}
	if info.Total_retrans > 0 {
		return late
	}
	return answered
}

func outcome(err error) string {
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return refused
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return "no answer"
	}
	return err.Error()
}
