// Package load generates and measures traffic: the benchmark's own binary, started again inside a network namespace
// with the argument Command, becomes one end of one measurement. Each end is one thread, pinned to one processor, that
// makes bare system calls (no runtime poller, no goroutine switch, no garbage collection), so that the figures are those
// of the path and not of Go. Servers print Ready when they listen; every role except Echo prints one Result as JSON.
package load

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// Command is the first argument that makes the benchmark's binary a load generator.
	Command = "load"

	// Ready is the line that a server prints once it can be reached.
	Ready = "ready"

	// idle is how long a server that has seen traffic waits for more before it reports.
	idle = 300 * time.Millisecond

	// patience is how long a server waits for its client to begin.
	patience = 10 * time.Second
)

// Role is one end of one measurement.
type Role string

const (
	Generate Role = "generate" // UDP datagrams as fast as the processor allows
	Sink     Role = "sink"     // counts them
	Echo     Role = "echo"     // TCP server that returns what it reads, one connection after the other; ended by a signal
	RR       Role = "rr"       // one byte there and back over one TCP connection
	CRR      Role = "crr"      // connect, one byte there and back, reset
	Stream   Role = "stream"   // one TCP connection, as many bytes as possible
	Drain    Role = "drain"    // reads them
)

var roles = map[Role]func(Spec, io.Writer) (Result, error){
	Generate: generate, Sink: sink, Echo: echo, RR: rr, CRR: crr, Stream: stream, Drain: drain,
}

// Spec says what one process does.
type Spec struct {
	Role     Role
	Addr     netip.AddrPort // clients: the target; servers: only the port is used, they listen on all addresses
	Duration time.Duration  // clients: how long traffic is made
	CPU      int            // the processor that the thread is pinned to
	Payload  int            // Generate: bytes of UDP payload
	Flows    int            // Generate: number of sockets, thus of source ports
}

// Result is what one process measured. Fields that a role does not measure are 0.
type Result struct {
	Count    int64   // datagrams sent or received, transactions, or bytes
	Dropped  int64   // Sink: datagrams that reached the socket and found its buffer full
	Errors   int64   // failed calls or transactions
	Seconds  float64 // from the first to the last event
	CPUNanos int64   // Generate: processor time of this process while it sent, softirq work in its context included
	P50, P99 float64 // RR, CRR: microseconds per transaction
}

// Cmd prepares the process that plays spec; the caller starts it inside a namespace. It dies with its parent.
func Cmd(spec Spec) (*exec.Cmd, error) {
	arg, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("encode the load specification: %w", err)
	}
	cmd := exec.Command("/proc/self/exe", Command, string(arg))
	// A preemption signal would interrupt the system call that is being measured.
	cmd.Env = append(os.Environ(), "GODEBUG=asyncpreemptoff=1")
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	return cmd, nil
}

// Main plays the role that args (what follows Command) names and writes Ready and the Result to out.
func Main(args []string, out io.Writer) error {
	var spec Spec
	if len(args) != 1 {
		return errors.New("load takes one argument, a JSON specification")
	}
	if err := json.Unmarshal([]byte(args[0]), &spec); err != nil {
		return fmt.Errorf("read the load specification: %w", err)
	}
	play, ok := roles[spec.Role]
	if !ok {
		return fmt.Errorf("load role %q is unknown", spec.Role)
	}
	debug.SetGCPercent(-1)
	runtime.LockOSThread()
	if err := pin(spec.CPU); err != nil {
		return err
	}
	result, err := play(spec, out)
	if err != nil {
		return fmt.Errorf("%s %s: %w", spec.Role, spec.Addr, err)
	}
	return json.NewEncoder(out).Encode(result)
}

// pin ties the calling thread to one processor and raises its priority, as a busy machine would else decide the result.
func pin(cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("pin to processor %d: %w", cpu, err)
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, -10); err != nil {
		return fmt.Errorf("raise the priority: %w", err)
	}
	return nil
}
