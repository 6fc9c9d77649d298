package load

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// chunk is how much the stream writes and reads at a time.
const chunk = 128 << 10

// echo serves one connection after another until a signal ends the process.
func echo(spec Spec, out io.Writer) (Result, error) {
	l, err := listen(unix.SOCK_STREAM, spec.Addr)
	if err != nil {
		return Result{}, err
	}
	fmt.Fprintln(out, Ready)
	buf := make([]byte, 256)
	for {
		fd, err := accept(l)
		if timedOut(err) || errors.Is(err, unix.ECONNABORTED) {
			continue
		}
		if err != nil {
			return Result{}, fmt.Errorf("accept: %w", err)
		}
		// A client that is gone must not block the next one.
		if err := errors.Join(noDelay(fd), timeout(fd, unix.SO_RCVTIMEO, 2*time.Second)); err != nil {
			return Result{}, err
		}
		for {
			n, err := read(fd, buf)
			if err != nil || n == 0 { // a reset is how clients end
				break
			}
			if _, err := write(fd, buf[:n]); err != nil {
				break
			}
		}
		unix.Close(fd)
	}
}

func rr(spec Spec, _ io.Writer) (Result, error) {
	fd, err := dial(unix.SOCK_STREAM, spec.Addr)
	if err != nil {
		return Result{}, err
	}
	defer unix.Close(fd)
	if err := noDelay(fd); err != nil {
		return Result{}, err
	}
	b := []byte{0}
	return transactions(spec.Duration, func() error { return exchange(fd, b) })
}

// crr closes with a reset: neither end keeps TIME_WAIT sockets, piles of which make every following
// connection slower.
func crr(spec Spec, _ io.Writer) (Result, error) {
	target, b := rawAddr(spec.Addr), []byte{0}
	reset := &unix.Linger{Onoff: 1, Linger: 0}
	patient := unix.NsecToTimeval((2 * time.Second).Nanoseconds())
	return transactions(spec.Duration, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		err = errors.Join(
			unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, reset),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patient),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &patient),
			connect(fd, target))
		if err != nil {
			return err
		}
		return exchange(fd, b)
	})
}

// exchange sends one byte and waits for it to come back.
func exchange(fd int, b []byte) error {
	if _, err := write(fd, b); err != nil {
		return err
	}
	n, err := read(fd, b)
	if err == nil && n == 0 {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// transactions repeats do for the duration and measures each; it stops at the first error, which it
// counts.
func transactions(d time.Duration, do func() error) (Result, error) {
	took := make([]time.Duration, 0, 1<<17)
	start := time.Now()
	for last := start; last.Sub(start) < d; {
		if err := do(); err != nil {
			return Result{}, fmt.Errorf("transaction %d: %w", len(took), err)
		}
		now := time.Now()
		took = append(took, now.Sub(last))
		last = now
	}
	r := Result{Count: int64(len(took)), Seconds: time.Since(start).Seconds()}
	r.P50, r.P99 = percentile(took, 50), percentile(took, 99)
	return r, nil
}

// percentile returns the p-th percentile of d (at least one value, reordered) in microseconds.
func percentile(d []time.Duration, p int) float64 {
	slices.Sort(d)
	return float64(d[min(len(d)*p/100, len(d)-1)].Nanoseconds()) / 1e3
}

func stream(spec Spec, _ io.Writer) (Result, error) {
	fd, err := dial(unix.SOCK_STREAM, spec.Addr)
	if err != nil {
		return Result{}, err
	}
	defer unix.Close(fd)
	buf := make([]byte, chunk)
	var r Result
	start := time.Now()
	for time.Since(start) < spec.Duration {
		n, err := write(fd, buf)
		if err != nil {
			return r, fmt.Errorf("after %d bytes: %w", r.Count, err)
		}
		r.Count += int64(n)
	}
	r.Seconds = time.Since(start).Seconds()
	return r, nil
}

// drain reads one connection to its end.
func drain(spec Spec, out io.Writer) (Result, error) {
	l, err := listen(unix.SOCK_STREAM, spec.Addr)
	if err != nil {
		return Result{}, err
	}
	defer unix.Close(l)
	fmt.Fprintln(out, Ready)
	var fd int
	for begin := time.Now(); ; {
		if fd, err = accept(l); err == nil {
			break
		}
		if !timedOut(err) || stopped() || time.Since(begin) > stopTimeout {
			return Result{}, fmt.Errorf("accept: %w", err)
		}
	}
	defer unix.Close(fd)
	if err := timeout(fd, unix.SO_RCVTIMEO, 2*time.Second); err != nil {
		return Result{}, err
	}
	buf := make([]byte, chunk)
	var r Result
	var first time.Time
	for {
		n, err := read(fd, buf)
		if err != nil {
			return r, fmt.Errorf("after %d bytes: %w", r.Count, err)
		}
		if n == 0 {
			r.Seconds = time.Since(first).Seconds()
			return r, nil
		}
		if first.IsZero() {
			first = time.Now()
		}
		r.Count += int64(n)
	}
}
