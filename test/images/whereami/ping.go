package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// echo sends every datagram back to where it came from, and on every TCP connection what comes.
func echo(args []string) error {
	flags := flag.NewFlagSet("whereami echo", flag.ExitOnError)
	listen := flags.String("listen", ":7", "UDP and TCP address and port to listen on")
	_ = flags.Parse(args) // ends the process on an error
	conn, err := net.ListenPacket("udp", *listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", *listen, err)
	}
	enlarge(conn.(*net.UDPConn))
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", *listen, err)
	}
	ended := make(chan error, 2)
	go func() { ended <- sendBack(conn) }()
	go func() { ended <- sendBackLines(listener) }()
	return <-ended
}

func sendBackLines(listener net.Listener) error {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return fmt.Errorf("accept a connection: %w", err)
		}
		go func() {
			defer conn.Close()
			_, _ = io.Copy(conn, conn) // a client that is gone is its own affair
		}()
	}
}

// socketBuffer holds the datagrams of some seconds: on a busy machine a reader waits for its turn,
// and what its socket drops then would look as if the network had lost it.
const socketBuffer = 8 << 20

// enlarge needs CAP_NET_ADMIN to exceed net.core.rmem_max; without it the buffer is what that
// allows.
func enlarge(conn *net.UDPConn) {
	_ = conn.SetReadBuffer(socketBuffer) // as far as the machine lets it
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { // fails only on a closed socket
		// without the right, as above
		_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUFFORCE, socketBuffer)
	})
}

func sendBack(conn net.PacketConn) error {
	buffer := make([]byte, 65536)
	for {
		n, from, err := conn.ReadFrom(buffer)
		if err != nil {
			return fmt.Errorf("read a datagram: %w", err)
		}
		// A client that is gone is its own affair.
		_, _ = conn.WriteTo(buffer[:n], from)
	}
}

// pings is what became of the datagrams of a ping.
type pings struct {
	Sent       int `json:"sent"`
	Lost       int `json:"lost"`
	Duplicates int `json:"duplicates"`
	// FirstLost and LastLost are sequence numbers from 0, -1 without a loss.
	FirstLost int `json:"firstLost"`
	LastLost  int `json:"lastLost"`
	// LongestGapMs is the longest time between two answers that follow each other.
	LongestGapMs float64 `json:"longestGapMs"`
	// GapUnscheduledMs is for how long of the longest gap one thread of this process was runnable
	// without a processor, that which was so for longest; to within waitSample.
	GapUnscheduledMs float64 `json:"gapUnscheduledMs"`
	MaxRTTMs         float64 `json:"maxRTTMs"`
}

// waitSample is how often the time without a processor is read.
const waitSample = 100 * time.Millisecond

// lastAnswers is how long answers are waited for after the last datagram, or the last answer;
// missingAnswers how long if some are missing: longer than a busy machine delays one.
const (
	lastAnswers    = time.Second
	missingAnswers = 5 * time.Second
)

func ping(args []string) error {
	flags := flag.NewFlagSet("whereami ping", flag.ExitOnError)
	rate := flags.Int("rate", 1000, "datagrams per second")
	size := flags.Int("size", 64, "bytes of payload, 16 to 65507")
	duration := flags.Duration("duration", 0, "how long; 0: until standard input ends")
	_ = flags.Parse(args) // ends the process on an error
	if flags.NArg() != 1 || *rate < 1 || *size < 16 || *size > 65507 {
		return errors.New("usage: whereami ping [-rate 1000] [-size 64] [-duration 10s] ADDRESS:PORT")
	}
	conn, err := net.Dial("udp", flags.Arg(0))
	if err != nil {
		return fmt.Errorf("open a socket towards %s: %w", flags.Arg(0), err)
	}
	defer conn.Close()
	enlarge(conn.(*net.UDPConn))
	ctx, cancel := lasting(*duration)
	defer cancel()
	return printJSON(exchange(ctx, conn, time.Second/time.Duration(*rate), *size))
}

// exchange sends a numbered datagram every interval until ctx ends, and counts what comes back. A
// sender that was not scheduled in time makes up for it at once.
func exchange(ctx context.Context, conn net.Conn, interval time.Duration, size int) pings {
	start, sent := time.Now(), 0
	r := receiver{start: start, last: start, answered: map[uint64]bool{}}
	var done sync.WaitGroup
	done.Go(func() { r.read(conn) })
	payload := make([]byte, size)
	for ctx.Err() == nil {
		wait := time.Until(start.Add(time.Duration(sent) * interval))
		if wait > 0 {
			time.Sleep(wait)
		}
		binary.BigEndian.PutUint64(payload, uint64(sent))
		binary.BigEndian.PutUint64(payload[8:], uint64(time.Since(start)))
		// A refusal that an earlier datagram met shows here too; the datagram that is not sent
		// counts as lost.
		_, _ = conn.Write(payload)
		sent++
	}
	r.sent.Store(int64(sent))
	// fails only on a closed socket, which ends the reader too
	_ = conn.SetReadDeadline(time.Now().Add(lastAnswers))
	done.Wait()
	return r.result(sent)
}

// receiver counts answers; its result is there when read has returned.
type receiver struct {
	start      time.Time
	last       time.Time
	sent       atomic.Int64 // in all; 0 while datagrams are sent
	answered   map[uint64]bool
	duplicates int
	gap, rtt   time.Duration
	// waited is unscheduled() at sampled, gapWaited its part of gap.
	sampled   time.Time
	waited    map[string]time.Duration
	gapWaited time.Duration
}

func (r *receiver) read(conn net.Conn) {
	buffer := make([]byte, 65536)
	var missing time.Time // until when missing answers are waited for
	for {
		n, err := conn.Read(buffer)
		now, sent := time.Now(), r.sent.Load()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			if missing.IsZero() {
				missing = now.Add(missingAnswers - lastAnswers)
			}
			if int64(len(r.answered)) == sent || now.After(missing) {
				return
			}
		case err != nil || n < 16:
			continue // "connection refused" for one datagram; the next may be answered
		default:
			r.note(binary.BigEndian.Uint64(buffer), time.Duration(binary.BigEndian.Uint64(buffer[8:])), now)
			missing = time.Time{}
		}
		if sent > 0 {
			_ = conn.SetReadDeadline(now.Add(lastAnswers)) // as above
		}
	}
}

func (r *receiver) note(sequence uint64, sentAt time.Duration, now time.Time) {
	if r.answered[sequence] {
		r.duplicates++
		return
	}
	if len(r.answered) == 0 {
		fmt.Fprintln(os.Stderr, "the first answer is here")
	}
	r.answered[sequence] = true
	if gap := now.Sub(r.last); gap > r.gap {
		r.gap, r.gapWaited = gap, 0
		for thread, wait := range unscheduled() {
			r.gapWaited = max(r.gapWaited, min(gap, wait-r.waited[thread]))
		}
	}
	if now.Sub(r.sampled) > waitSample {
		r.sampled, r.waited = now, unscheduled()
	}
	r.rtt = max(r.rtt, now.Sub(r.start)-sentAt)
	r.last = now
}

func (r *receiver) result(sent int) pings {
	out := pings{Sent: sent, Duplicates: r.duplicates, FirstLost: -1, LastLost: -1, LongestGapMs: milliseconds(r.gap),
		GapUnscheduledMs: milliseconds(r.gapWaited), MaxRTTMs: milliseconds(r.rtt)}
	for i := range sent {
		if r.answered[uint64(i)] {
			continue
		}
		if out.Lost == 0 {
			out.FirstLost = i
		}
		out.Lost++
		out.LastLost = i
	}
	return out
}

// unscheduled is how long each thread of this process has been runnable without a processor
// (Documentation/scheduler/sched-stats.rst); empty where the kernel does not count it.
func unscheduled() map[string]time.Duration {
	out := map[string]time.Duration{}
	files, _ := filepath.Glob("/proc/self/task/*/schedstat") // the pattern is valid
	for _, file := range files {
		var run, wait int64
		text, err := os.ReadFile(file)
		if err == nil {
			_, err = fmt.Sscan(string(text), &run, &wait)
		}
		if err == nil { // else a thread that has ended
			out[file] = time.Duration(wait)
		}
	}
	return out
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
