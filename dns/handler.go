package dns

import (
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"
	"time"

	miekg "github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
)

// Handler answers queries from the newest table. It implements the library's
// Handler interface; Server also passes it raw UDP packets.
type Handler struct {
	index   atomic.Pointer[index]
	metrics *metrics
	buffers sync.Pool // of *buffer

	setting sync.Mutex // one Set at a time; never taken by a query
}

// buffer holds one query and its answer.
type buffer struct {
	query query
	out   []byte
}

// NewHandler returns a handler that answers SERVFAIL until the first Set. Its
// metrics are registered with reg.
func NewHandler(reg prometheus.Registerer) *Handler {
	return &Handler{
		metrics: newMetrics(reg),
		buffers: sync.Pool{New: func() any { return &buffer{out: make([]byte, 0, maxUDP)} }},
	}
}

// Set replaces the table. Queries in flight use the former one, which stays on
// an error.
func (h *Handler) Set(t Table) error {
	h.setting.Lock()
	defer h.setting.Unlock()
	old := h.index.Load()
	now, err := compile(t, old, h.metrics)
	if err != nil {
		return err
	}
	h.index.Store(now)
	h.metrics.forget(old, now)
	return nil
}

// ServeDNS answers a query that the library has read and unpacked.
func (h *Handler) ServeDNS(w miekg.ResponseWriter, m *miekg.Msg) {
	begin := time.Now()
	b := h.buffers.Get().(*buffer)
	b.query.parse(m)
	limit := b.query.size
	if _, tcp := w.RemoteAddr().(*net.TCPAddr); tcp {
		limit = maxTCP
	}
	h.reply(b, limit, begin)
	// A failed write loses one answer; the client repeats its query.
	_, _ = w.Write(b.out)
	h.buffers.Put(b)
}

// reply answers b.query into b.out and counts it.
func (h *Handler) reply(b *buffer, limit int, begin time.Time) {
	var rcode int
	b.out, rcode = h.index.Load().reply(b.out, &b.query, limit)
	h.metrics.query(rcode, b.query.qtype, time.Since(begin))
}

// packet answers one UDP message into b.out and reports whether there is an
// answer to send.
func (h *Handler) packet(b *buffer, in []byte) bool {
	begin := time.Now()
	if b.query.parsePlain(in) {
		h.reply(b, b.query.size, begin)
		return true
	}
	if len(in) < headerLen {
		return false
	}
	head := miekg.Header{
		Id:      binary.BigEndian.Uint16(in),
		Bits:    binary.BigEndian.Uint16(in[2:]),
		Qdcount: binary.BigEndian.Uint16(in[4:]),
		Ancount: binary.BigEndian.Uint16(in[6:]),
		Nscount: binary.BigEndian.Uint16(in[8:]),
		Arcount: binary.BigEndian.Uint16(in[10:]),
	}
	switch h.accept(head) {
	case miekg.MsgIgnore:
		return false
	case miekg.MsgAccept:
		var m miekg.Msg
		if m.Unpack(in) == nil {
			b.query.parse(&m)
			h.reply(b, b.query.size, begin)
			return true
		}
		h.metrics.outcome(miekg.RcodeFormatError, miekg.TypeNone).Inc()
		b.refuse(head, miekg.RcodeFormatError)
	case miekg.MsgRejectNotImplemented:
		b.refuse(head, miekg.RcodeNotImplemented)
	default:
		b.refuse(head, miekg.RcodeFormatError)
	}
	return true
}

// accept validates a message by its header: responses get no answer, opcodes
// other than QUERY NOTIMP (RFC 8906 §8.1.4), invalid counts FORMERR.
func (h *Handler) accept(head miekg.Header) miekg.MsgAcceptAction {
	action := miekg.DefaultMsgAcceptFunc(head)
	if action != miekg.MsgIgnore && opcode(head) != miekg.OpcodeQuery {
		action = miekg.MsgRejectNotImplemented
	}
	switch action {
	case miekg.MsgReject:
		h.metrics.outcome(miekg.RcodeFormatError, miekg.TypeNone).Inc()
	case miekg.MsgRejectNotImplemented:
		h.metrics.outcome(miekg.RcodeNotImplemented, miekg.TypeNone).Inc()
	}
	return action
}

func opcode(head miekg.Header) int { return int(head.Bits>>11) & 0xf }

// refuse packs an answer that is a header only.
func (b *buffer) refuse(head miekg.Header, rcode int) {
	bits := bitQR | head.Bits&(0xf<<11|bitRD) | uint16(rcode)
	b.out = binary.BigEndian.AppendUint16(b.out[:0], head.Id)
	b.out = binary.BigEndian.AppendUint16(b.out, bits)
	b.out = append(b.out, make([]byte, headerLen-4)...)
}
