package cable

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/strongswan/govici/vici"
)

// viciTimeout bounds every question to the daemon; it answers from memory.
const viciTimeout = 10 * time.Second

// maxSAs is how many IKE SAs the daemon may have: 4 tunnels to each of 2,000 gateways, and as many half-open.
const maxSAs = 16000

// charon is a conversation with the IKE daemon: a session for questions and one for what it logs.
type charon struct {
	session, log *vici.Session
	sas          chan vici.Event

	mu sync.Mutex
	// complaints are what it last said went wrong, by connection; "" is what belongs to none.
	complaints map[string]string
}

func dialCharon(socket string) (*charon, error) {
	c := &charon{sas: make(chan vici.Event, maxSAs), complaints: map[string]string{}}
	s, err := subscribe(socket, "list-sa", c.sas)
	if err != nil {
		return nil, err
	}
	lines := make(chan vici.Event, 1000)
	log, err := subscribe(socket, "log", lines)
	if err != nil {
		s.Close() // it is of no use alone
		return nil, err
	}
	c.session, c.log = s, log
	go func() {
		for e := range lines {
			c.heard(text(e.Message, "ikesa-name"), text(e.Message, "msg"))
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
		s.Close() // it is of no use
		return nil, fmt.Errorf("listen to events %s of the IKE daemon: %w", event, err)
	}
	return s, nil
}

// close ends the session; the daemon and its tunnels go on.
func (c *charon) close() {
	// An error says that the daemon has gone, often the reason why this is called.
	c.session.Close()
	c.log.Close() // likewise
}

func (c *charon) call(command string, in *vici.Message) (*vici.Message, error) {
	ctx, cancel := context.WithTimeout(context.Background(), viciTimeout)
	defer cancel()
	out, err := c.session.Call(ctx, command, in)
	if err != nil {
		return nil, fmt.Errorf("IKE daemon: %s: %w", command, err)
	}
	return out, nil
}

// list asks for all IKE SAs. The daemon sends each as an event before it answers, and the library hands events over in the
// order in which they come, so that with the answer all are there. (The library's own streaming calls choose between the
// two at random, as of v0.8.0, and take an event that is left over for the answer to the next question.)
func (c *charon) list() (out []*vici.Message, err error) {
	for range len(c.sas) {
		<-c.sas // of a question that was given up
	}
	if _, err := c.call("list-sas", nil); err != nil {
		return nil, err
	}
	for range len(c.sas) {
		out = append(out, (<-c.sas).Message)
	}
	return out, nil
}

// complaintOf turns what the daemon logs into a sentence for the operator. Only these are kept.
var complaintOf = []struct{ said, sentence string }{
	{"MAC mismatched", "the peer's PSK is another: both clusters must have joined the same clusterset"},
	{"received AUTHENTICATION_FAILED", "the peer refuses this gateway: its PSK is another, its certificate authority does not know ours, or it has no Endpoint of this gateway yet"},
	{"no shared key found", "no PSK for this peer: it uses a PSK where this gateway has certificates, or the other way round"},
	{"no trusted", "the peer's certificate is not from the authority that this gateway knows, or not for its fabric address"},
	{"no matching peer config found", "a gateway called that is no peer of this one"},
	{"no IKE config found", "a gateway called that is no peer of this one"},
	{"received NO_PROPOSAL_CHOSEN", "the peer refuses this gateway: it has no Endpoint of this gateway yet, or accepts none of our algorithms"},
	{"received TS_UNACCEPTABLE", "the peer knows this gateway under another fabric address"},
	{"giving up after", "the peer does not answer: UDP does not pass, or no IKE daemon runs there"},
}

func (c *charon) heard(connection, line string) {
	for _, k := range complaintOf {
		if strings.Contains(line, k.said) {
			c.mu.Lock()
			c.complaints[connection] = k.sentence
			c.mu.Unlock()
			return
		}
	}
}

func (c *charon) complaint(connection string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.complaints[connection]
}

// settled forgets what was wrong with a connection that works.
func (c *charon) settled(connection string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.complaints, connection)
}

// message makes a message of pairs: a string key and a string, []string or *vici.Message.
func message(pairs ...any) (*vici.Message, error) {
	m := vici.NewMessage()
	var errs []error
	for i := 0; i < len(pairs); i += 2 {
		errs = append(errs, m.Set(pairs[i].(string), pairs[i+1]))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("encode a message to the IKE daemon: %w", err)
	}
	return m, nil
}

// text is a string field of a message, "" if there is none.
func text(m *vici.Message, key string) string {
	s, _ := m.Get(key).(string)
	return s
}

func list(m *vici.Message, key string) []string {
	l, _ := m.Get(key).([]string)
	return l
}

func section(m *vici.Message, key string) *vici.Message {
	s, ok := m.Get(key).(*vici.Message)
	if !ok {
		return vici.NewMessage()
	}
	return s
}
