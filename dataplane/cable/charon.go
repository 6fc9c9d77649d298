//go:build linux

package cable

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/strongswan/govici/vici"
)

// Files in the directory that pelago-node and the IKE daemon share. leftName exists once
// pelago-node no longer uses the wire.
const (
	confName   = "strongswan.conf"
	socketName = "charon.vici"
	leftName   = "left"
)

// userspaceNote is the first line of a configuration with ESP in the daemon.
const userspaceNote = "# ESP in this daemon: the kernel has none.\n"

// Charon configures the IKE daemon of a gateway. The daemon needs the host's network, NET_ADMIN,
// and a directory for the socket that it shares with pelago-node.
type Charon struct {
	// Socket is the path of its vici socket.
	Socket string
	// Port is the UDP port of both IKE and ESP: the cable port.
	Port uint16
	// Userspace: ESP in the daemon over a TUN, for kernels without ESP. One core, no offloads.
	Userspace bool
	// Log is a file; "": standard error.
	Log string
}

//go:embed strongswan.conf
var conf string

// File is the content of the daemon's configuration file. Everything else is loaded over vici.
func (c Charon) File() string {
	note, backends, routes, table := "", "kernel-netlink", "no", "0"
	if c.Userspace {
		// The first back end with ESP is used; kernel-netlink remains for addresses and routes. The
		// TUN depends on the daemon's routes.
		note, backends, routes, table = userspaceNote, "kernel-libipsec kernel-netlink", "yes", "220"
	}
	return note + strings.NewReplacer("@backends@", backends, "@routes@", routes, "@table@", table,
		"@port@", strconv.Itoa(int(c.Port)), "@socket@", c.Socket, "@log@", cmp.Or(c.Log, "stderr")).Replace(conf)
}

// write stores the configuration in the directory and reports whether it changed.
func (c Charon) write(dir string) (changed bool, err error) {
	file, text := filepath.Join(dir, confName), c.File()
	if old, err := os.ReadFile(file); err == nil && string(old) == text {
		return false, nil
	}
	if err := replaceFile(file, text); err != nil {
		return false, fmt.Errorf("configure the IKE daemon: %w: does the pod have the container ike? join again with --cable-driver %s", err, IPsecDriver)
	}
	return true, nil
}

// viciTimeout bounds a request to the daemon, which answers from memory.
const viciTimeout = 10 * time.Second

// maxSAs bounds the IKE SAs of the daemon: 4 tunnels to each of 2,000 gateways, and as many
// half-open.
const maxSAs = 16000

// charon is a client of the IKE daemon: a session for requests and one for log events.
type charon struct {
	session, log *vici.Session
	sas          chan vici.Event
	timeout      time.Duration // of a request
	// broken is the error of the first request without a response; later ones fail with it at once.
	broken error

	mu sync.Mutex
	// failures are the last logged ones by connection; "": of none.
	failures map[string]string
}

func dialCharon(socket string) (*charon, error) {
	c := &charon{sas: make(chan vici.Event, maxSAs), timeout: viciTimeout, failures: map[string]string{}}
	s, err := subscribe(socket, "list-sa", c.sas)
	if err != nil {
		return nil, err
	}
	lines := make(chan vici.Event, 1000)
	log, err := subscribe(socket, "log", lines)
	if err != nil {
		s.Close()
		return nil, err
	}
	c.session, c.log = s, log
	go func() {
		for e := range lines {
			c.record(text(e.Message, "ikesa-name"), text(e.Message, "msg"))
		}
	}()
	return c, nil
}

func subscribe(socket, event string, to chan<- vici.Event) (*vici.Session, error) {
	s, err := vici.NewSession(vici.WithSocketPath(socket))
	if err != nil {
		return nil, fmt.Errorf("reach the IKE daemon at %s: %w: does its container run?", socket, err)
	}
	s.NotifyEvents(to)
	if err := s.Subscribe(event); err != nil {
		s.Close()
		return nil, fmt.Errorf("subscribe to the events %s of the IKE daemon: %w", event, err)
	}
	return s, nil
}

// askCharon asks the daemon for its state and returns an error if it does not answer in time.
func askCharon(socket string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	s, err := vici.NewSession(vici.WithSocketPath(socket))
	if err != nil {
		return fmt.Errorf("reach the IKE daemon at %s: %w", socket, err)
	}
	defer s.Close()
	if _, err := s.Call(ctx, "stats", nil); err != nil {
		return fmt.Errorf("IKE daemon: stats: %w", err)
	}
	return nil
}

// close ends the sessions; the daemon and its tunnels are not affected.
func (c *charon) close() {
	// Errors mean that the daemon has ended, often the reason for this call.
	c.session.Close()
	c.log.Close()
}

// call sends a request with these fields and returns the response. If there is no response, the
// error is errDaemon.
func (c *charon) call(command string, in ...any) (*vici.Message, error) {
	if c.broken != nil {
		return nil, c.broken
	}
	request, err := message(in...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
	defer cancel()
	out, err := c.session.Call(ctx, command, request)
	if err != nil {
		err = fmt.Errorf("IKE daemon: %s: %w", command, err)
	}
	if err != nil && out == nil { // the response to a request that failed has the reason
		c.broken = fmt.Errorf("%w: %w", errDaemon, err)
		err = c.broken
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// list returns all IKE SAs. The daemon sends each as an event before it responds, and the library
// delivers events in order, so all have been delivered by the time of the response. (The library's
// streaming calls select between the two at random, as of v0.8.0, and mistake a remaining event for
// the response to the next request.)
func (c *charon) list() (out []*vici.Message, err error) {
	for range len(c.sas) {
		<-c.sas // of a request that timed out
	}
	if _, err := c.call("list-sas"); err != nil {
		return nil, err
	}
	for range len(c.sas) {
		out = append(out, (<-c.sas).Message)
	}
	return out, nil
}

// failureOf maps log lines of the daemon to the likely cause, for the operator. Other lines are
// dropped.
var failureOf = []struct{ line, cause string }{
	{"MAC mismatched", "the peer's PSK is another: both clusters must have joined the same clusterset"},
	{"received AUTHENTICATION_FAILED", "the peer refuses this gateway: its PSK is another, it does not know this gateway's key yet, or it has no Endpoint of this gateway yet"},
	{"no shared key found", "no PSK for this peer: it uses the PSK where this gateway wants its key, or does not know this gateway's key yet"},
	{"no trusted", "the peer's key is none that its Endpoint publishes"},
	{"no matching peer config found", "a gateway called that is no peer of this one"},
	{"no IKE config found", "a gateway called that is no peer of this one"},
	{"received NO_PROPOSAL_CHOSEN", "the peer refuses this gateway: it has no Endpoint of this gateway yet, or accepts none of our algorithms"},
	{"received TS_UNACCEPTABLE", "the peer knows this gateway under another fabric address"},
	{"giving up after", "the peer does not answer: UDP does not pass, or no IKE daemon runs there"},
}

// record stores the cause of a logged failure.
func (c *charon) record(connection, line string) {
	for _, f := range failureOf {
		if strings.Contains(line, f.line) {
			c.mu.Lock()
			c.failures[connection] = f.cause
			c.mu.Unlock()
			return
		}
	}
}

// failure is the last recorded failure of a connection; one that works now has none.
func (c *charon) failure(connection string, works bool) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if works {
		delete(c.failures, connection)
	}
	return c.failures[connection]
}

// fields are the fields of a message or section: alternating string keys and values of type string,
// []string or fields.
type fields []any

func message(f ...any) (*vici.Message, error) {
	m := vici.NewMessage()
	var errs []error
	for i := 0; i < len(f); i += 2 {
		value := f[i+1]
		if section, ok := value.(fields); ok {
			nested, err := message(section...)
			errs = append(errs, err)
			value = nested
		}
		errs = append(errs, m.Set(f[i].(string), value))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("encode a message to the IKE daemon: %w", err)
	}
	return m, nil
}

// text is a string field of a message, "" if absent.
func text(m *vici.Message, key string) string {
	s, _ := m.Get(key).(string)
	return s
}

func list(m *vici.Message, key string) []string {
	l, _ := m.Get(key).([]string)
	return l
}

func section(m *vici.Message, key string) *vici.Message {
	if s, ok := m.Get(key).(*vici.Message); ok {
		return s
	}
	return vici.NewMessage()
}
