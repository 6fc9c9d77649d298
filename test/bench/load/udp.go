package load

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const (
	sendBatch = 32
	recvBatch = 64
	recvSpace = 8 << 20 // bytes of socket buffer at the sink
	recvPause = 20 * time.Microsecond
)

// wantReply is the first byte of a datagram that the sink answers.
const wantReply = 1

// streamAge is the time from its first packet after which conntrack regards a UDP flow with replies
// as a stream, whose entry is not dropped early (IPS_ASSURED, nf_conntrack_proto_udp.c).
const streamAge = 2100 * time.Millisecond

// generator holds the sockets of Generate from one measurement to the next: its flows are old ones,
// which the path and conntrack know.
type generator struct {
	addr netip.AddrPort
	fds  []int
}

// open opens the flows: it exchanges a datagram and its answer on each, and once more when
// conntrack regards them as streams.
func (g *generator) open(spec Spec) error {
	g.addr = spec.Addr
	for range spec.Flows {
		fd, err := dial(unix.SOCK_DGRAM, spec.Addr)
		if err != nil {
			return err
		}
		g.fds = append(g.fds, fd)
	}
	for age := range 2 {
		time.Sleep(time.Duration(age) * streamAge)
		for _, fd := range g.fds {
			if err := request(fd); err != nil {
				return err
			}
		}
	}
	return nil
}

func (g *generator) close() {
	for _, fd := range g.fds {
		unix.Close(fd)
	}
	g.fds = nil
}

// request has the sink answer. A datagram may be lost while a neighbour is resolved.
func request(fd int) (err error) {
	buf := []byte{wantReply}
	for range 3 {
		if _, err := write(fd, buf); err != nil {
			return fmt.Errorf("send: %w", err)
		}
		if _, err = read(fd, buf); err == nil {
			return nil
		}
	}
	return fmt.Errorf("receive the reply of the sink: %w", err)
}

// run sends datagrams over spec.Flows sockets in turn, spec.Batch of each, until the time is over.
// One batch a socket before that has the path look up its state for the flow. Processor time is
// that of the whole process: over veth pairs the kernel carries each packet through the whole path
// in the sender's context, so time per packet is the cost of the path and hardly depends on what
// else the machine does.
func (g *generator) run(spec Spec, _ io.Writer) (Result, error) {
	if spec.Payload < 1 || spec.Flows < 1 {
		return Result{}, fmt.Errorf("payload %d and flows %d must be at least 1", spec.Payload, spec.Flows)
	}
	var r Result
	if g.addr != spec.Addr || len(g.fds) != spec.Flows {
		g.close()
		if err := g.open(spec); err != nil {
			g.close()
			return r, err
		}
		r.Warmup += 2 * int64(spec.Flows)
	}
	fds := g.fds
	batch := messages(cmp.Or(spec.Batch, sendBatch), make([]byte, spec.Payload), true)
	for _, fd := range fds {
		n, err := sendmmsg(fd, batch)
		if err != nil {
			return r, fmt.Errorf("send: %w", err)
		}
		r.Warmup += int64(n)
	}
	cpu, err := cpuNanos()
	if err != nil {
		return r, err
	}
	start := time.Now()
	for i := 0; time.Since(start) < spec.Duration; i++ {
		n, err := sendmmsg(fds[i%len(fds)], batch)
		if err != nil {
			r.Errors++
		}
		r.Count += int64(n)
	}
	r.Seconds = time.Since(start).Seconds()
	after, err := cpuNanos()
	r.CPUNanos = after - cpu
	return r, err
}

// sink counts datagrams until it is stopped, and answers those that want it. It polls: a wakeup
// runs in the sender's context and costs an interrupt to another processor (4 to 5 µs in a virtual
// machine, more than a hop), which only a slow path, whose sink sleeps between packets, would pay.
func sink(spec Spec, out io.Writer) (Result, error) {
	fd, err := listen(unix.SOCK_DGRAM, spec.Addr)
	if err != nil {
		return Result{}, err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, recvSpace); err != nil {
		return Result{}, fmt.Errorf("enlarge the receive buffer: %w", err)
	}
	batch := messages(recvBatch, make([]byte, 2048), false)
	dropped, err := socketDrops()
	if err != nil {
		return Result{}, err
	}
	fmt.Fprintln(out, Ready)

	var r Result
	var first, last time.Time
	for begin := time.Now(); ; {
		n, err := recvmmsg(fd, batch)
		now := time.Now()
		switch {
		case err == nil:
			if first.IsZero() {
				first = now
			}
			last, r.Count = now, r.Count+int64(n)
			for i := range batch[:n] {
				if err := batch[i].reply(fd); err != nil {
					return r, err
				}
			}
			continue
		case !timedOut(err):
			return r, fmt.Errorf("receive: %w", err)
		}
		if stopped() || now.Sub(begin) > stopTimeout {
			r.Seconds = last.Sub(first).Seconds()
			after, err := socketDrops()
			r.Dropped = after - dropped
			return r, err
		}
		for time.Since(now) < recvPause { // leave the socket's lock to the sender
		}
	}
}

func cpuNanos() (int64, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil {
		return 0, fmt.Errorf("read the processor time: %w", err)
	}
	return ts.Nano(), nil
}

// socketDrops is the namespace's count of UDP datagrams that found their socket's buffer full (RFC
// 4113 udpInErrors, Linux RcvbufErrors).
func socketDrops() (int64, error) {
	b, err := os.ReadFile("/proc/self/net/snmp")
	if err != nil {
		return 0, fmt.Errorf("read the UDP counters: %w", err)
	}
	return parseDrops(b)
}

// parseDrops finds RcvbufErrors in the format of /proc/net/snmp: a line of names, then a line of
// values.
func parseDrops(snmp []byte) (int64, error) {
	var names [][]byte
	for line := range bytes.Lines(snmp) {
		fields := bytes.Fields(line)
		if len(fields) == 0 || string(fields[0]) != "Udp:" {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		for i, name := range names {
			if string(name) == "RcvbufErrors" && i < len(fields) {
				return strconv.ParseInt(string(fields[i]), 10, 64)
			}
		}
	}
	return 0, fmt.Errorf("the UDP counters of this kernel have no RcvbufErrors")
}
