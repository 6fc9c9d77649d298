// Command relay is a slow and lossy stretch of the way between two clusters of a lab: "relay DEVICE
// DELAY LOSS". It makes a TUN device in its network namespace, takes the packets that are routed
// into it, drops a share of them (0–1) and gives the others back after the delay. It stands in for
// the kernel's netem, which not every kernel has. The lab starts it in the router (lab.ImpairPath)
// and ends it.
package main

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func main() {
	slog.Error("the relay ends", "error", run(os.Args[1:]))
	os.Exit(1)
}

func run(args []string) error {
	if len(args) != 3 {
		return errors.New("usage: relay DEVICE DELAY LOSS")
	}
	delay, err := time.ParseDuration(args[1])
	if err != nil {
		return fmt.Errorf("read the delay: %w", err)
	}
	share, err := strconv.ParseFloat(args[2], 64)
	if err != nil {
		return fmt.Errorf("read the loss: %w", err)
	}
	// One thread does everything. It sleeps in the kernel, not in Go's scheduler.
	runtime.LockOSThread()
	if err := hurry(); err != nil {
		slog.Warn("without real-time priority: delays are longer while the machine is busy", "error", err)
	}
	tun, err := open(args[0])
	if err != nil {
		return err
	}
	return (&relay{tun: tun, delay: delay, drop: func() bool { return rand.Float64() < share }}).run()
}

// hurry gives all threads of this process, and those that they start, real-time priority: a busy
// machine would add delays of its own. It must be all threads: Go's runtime spins while it waits
// for its other threads, and would keep those with lower priority off the CPU.
func hurry() error {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("list the threads: %w", err)
	}
	for _, t := range threads {
		id, err := strconv.Atoi(t.Name())
		if err == nil {
			err = unix.SchedSetAttr(id, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: 1}, 0)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) { // it has ended
			return fmt.Errorf("thread %s: %w", t.Name(), err)
		}
	}
	return nil
}

// open makes a TUN device and brings it up.
func open(name string) (fd int, err error) {
	fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq(name)
	if err != nil {
		return 0, fmt.Errorf("device name %q: %w", name, err)
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return 0, fmt.Errorf("make TUN device %s: %w", name, err)
	}
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetTxQLen(link, queueLength)
	}
	if err == nil {
		err = netlink.LinkSetUp(link)
	}
	if err != nil {
		return 0, fmt.Errorf("bring up %s: %w", name, err)
	}
	return fd, nil
}

const (
	// queueLength packets wait for the relay itself to be scheduled.
	queueLength = 10000
	// underway bounds the packets within the delay; more are dropped.
	underway = 1 << 15
	// largest packet: the MTU of a TUN device is 1500 bytes.
	largest = 2048
)

// packet is one that is under way.
type packet struct {
	due  time.Time
	data []byte
}

// relay keeps packets in the order of their arrival: all have the same delay.
type relay struct {
	tun     int
	delay   time.Duration
	drop    func() bool
	waiting []packet // those before first are done
	first   int
	free    [][]byte
}

func (r *relay) run() error {
	for {
		if err := r.wait(); err != nil {
			return err
		}
		if err := r.take(); err != nil {
			return err
		}
		r.give(time.Now())
	}
}

// wait sleeps until there is something to take or to give.
func (r *relay) wait() error {
	var limit *unix.Timespec
	if r.first < len(r.waiting) {
		ts := unix.NsecToTimespec(int64(max(0, time.Until(r.waiting[r.first].due))))
		limit = &ts
	}
	_, err := unix.Ppoll([]unix.PollFd{{Fd: int32(r.tun), Events: unix.POLLIN}}, limit, nil)
	if err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("wait for packets: %w", err)
	}
	return nil
}

// take takes what has come.
func (r *relay) take() error {
	for {
		var buffer []byte
		if n := len(r.free); n > 0 {
			buffer, r.free = r.free[n-1], r.free[:n-1]
		} else {
			buffer = make([]byte, largest)
		}
		n, err := unix.Read(r.tun, buffer[:cap(buffer)])
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			r.free = append(r.free, buffer)
			return nil
		}
		if err != nil {
			return fmt.Errorf("take a packet: %w", err)
		}
		if len(r.waiting)-r.first >= underway || r.drop() {
			r.free = append(r.free, buffer)
			continue
		}
		r.waiting = append(r.waiting, packet{time.Now().Add(r.delay), buffer[:n]})
	}
}

// give gives back what is due.
func (r *relay) give(now time.Time) {
	for ; r.first < len(r.waiting) && !r.waiting[r.first].due.After(now); r.first++ {
		// what the router cannot take is lost, as on any way
		_, _ = unix.Write(r.tun, r.waiting[r.first].data)
		r.free = append(r.free, r.waiting[r.first].data)
	}
	if r.first > len(r.waiting)/2 { // not each time: it copies the rest
		r.waiting = append(r.waiting[:0], r.waiting[r.first:]...)
		r.first = 0
	}
}
