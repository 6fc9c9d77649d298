// Package load generates and measures traffic: the benchmark's own binary, started again inside a
// network namespace with the argument Command, is a worker that performs one measurement after
// another. It reads Specs from its standard input, one JSON value a line, and answers each with a
// Response, one line as well. A worker is one thread, pinned to one processor, that makes bare
// system calls (no runtime poller, no goroutine switch, no garbage collection while it measures),
// so that the figures are those of the path and not of Go. Between two Specs it sleeps in read(2).
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
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// Command is the first argument that makes the benchmark's binary a load generator.
	Command = "load"

	// Ready is the line that a server prints before its Response, once it listens.
	Ready = "ready"

	// stopTimeout bounds how long a server waits for its client, and after the client for the line
	// that stops it.
	stopTimeout = 10 * time.Second
)

// Role is one end of one measurement.
type Role string

const (
	Generate Role = "generate" // UDP datagrams as fast as the processor allows
	Sink     Role = "sink"     // counts them
	// TCP server that returns what it reads, one connection after another; ended by a signal
	Echo   Role = "echo"
	RR     Role = "rr"     // one byte there and back over one TCP connection
	CRR    Role = "crr"    // connect, one byte there and back, reset
	Stream Role = "stream" // one TCP connection, as many bytes as possible
	Drain  Role = "drain"  // reads them
)

func roles() map[Role]func(Spec, io.Writer) (Result, error) {
	return map[Role]func(Spec, io.Writer) (Result, error){
		Generate: (&generator{}).run, Sink: sink, Echo: echo, RR: rr, CRR: crr, Stream: stream, Drain: drain,
	}
}

// Spec is one end of one measurement. Sink is stopped by an empty line after its Spec, Drain by the
// end of the connection.
type Spec struct {
	Role Role
	// the target; servers listen on all addresses if it is none of their own
	Addr     netip.AddrPort
	Duration time.Duration // clients: length of the measurement
	Payload  int           // Generate: bytes of UDP payload
	Flows    int           // Generate: number of sockets, thus of source ports
	Batch    int           // Generate: datagrams that a socket sends at its turn; 0: sendBatch
}

// Response answers a Spec.
type Response struct {
	Result Result
	Error  string // empty: the measurement succeeded
}

// Result is what one end measured. Fields that a role does not measure are 0.
type Result struct {
	Count   int64   // datagrams sent or received, transactions, or bytes
	Warmup  int64   // Generate: datagrams sent before the measurement, not in Count
	Dropped int64   // Sink: datagrams that reached the socket and found its buffer full
	Errors  int64   // failed calls or transactions
	Seconds float64 // from the first to the last event
	// Generate: processor time of this process while it sent, softirq work in its context included
	CPUNanos int64
	P50, P99 float64 // RR, CRR: microseconds per transaction
}

// Cmd prepares a worker pinned to a processor; the caller starts it inside a namespace and owns its
// standard input and output. It ends with its standard input or its parent.
func Cmd(cpu int) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", Command, strconv.Itoa(cpu))
	// A preemption signal would interrupt the system call that is being measured.
	cmd.Env = append(os.Environ(), "GODEBUG=asyncpreemptoff=1")
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	return cmd
}

// Main is a worker. args (what follows Command) is the number of its processor.
func Main(args []string, in io.Reader, out io.Writer) error {
	if len(args) != 1 {
		return errors.New("load takes one argument, the number of a processor")
	}
	cpu, err := strconv.Atoi(args[0])
	if err != nil {
		return fmt.Errorf("read the number of the processor: %w", err)
	}
	debug.SetGCPercent(-1)
	runtime.LockOSThread()
	if err := pin(cpu); err != nil {
		return err
	}
	specs, responses, roles := json.NewDecoder(in), json.NewEncoder(out), roles()
	for {
		var spec Spec
		if err := specs.Decode(&spec); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read a load specification: %w", err)
		}
		if err := responses.Encode(respond(roles[spec.Role], spec, out)); err != nil {
			return err
		}
		runtime.GC()
	}
}

func respond(play func(Spec, io.Writer) (Result, error), spec Spec, out io.Writer) Response {
	if play == nil {
		return Response{Error: fmt.Sprintf("load role %q is unknown", spec.Role)}
	}
	result, err := play(spec, out)
	if err != nil {
		return Response{Error: fmt.Sprintf("%s %s: %v", spec.Role, spec.Addr, err)}
	}
	return Response{Result: result}
}

// pin binds the calling thread to one processor and raises its priority above that of other load on
// the machine.
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
