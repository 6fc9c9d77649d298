//go:build linux

package dns

import (
	"net"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// batchSize bounds the packets of one system call. At 32 the calls are a tenth
	// of a query's cost; a socket's buffers take 180 KiB.
	batchSize = 32
	// maxQuery is the room for a query, in octets. Queries are small; one that is
	// longer is cut, fails to parse and gets FORMERR.
	maxQuery = 4096
)

// batch holds the packets of one receive and their answers, which go back to
// the addresses from which the packets came.
type batch struct {
	n      int // packets received
	in     [batchSize][]byte
	answer [batchSize][]byte // nil: none
	// from and oob are as the kernel wrote them: source address, and destination
	// address as a control message.
	from [batchSize][]byte
	oob  [batchSize][]byte

	memory *batchMemory
}

// batchMemory are the buffers that the slices of a batch point into.
type batchMemory struct {
	in   [batchSize][maxQuery]byte
	from [batchSize][unix.SizeofSockaddrInet6]byte
	oob  [batchSize][64]byte
}

func newBatch() *batch { return &batch{memory: new(batchMemory)} }

// mmsghdr is struct mmsghdr of recvmmsg(2), which package unix leaves out. The
// padding after len is the compiler's, in C as in Go.
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
}

// udpSocket receives and sends batches on a socket. It belongs to one loop.
type udpSocket struct {
	*net.UDPConn
	raw syscall.RawConn

	headers [batchSize]mmsghdr
	vectors [batchSize]unix.Iovec
	// receive and send are made once, so that a batch allocates nothing. They
	// are called by the runtime's poller and pass their result in the fields.
	receive, send func(fd uintptr) bool
	first, last   int // headers to send
	done          int
	errno         syscall.Errno
}

func newUDPSocket(conn *net.UDPConn) (*udpSocket, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	s := &udpSocket{UDPConn: conn, raw: raw}
	s.receive = func(fd uintptr) bool { return s.call(unix.SYS_RECVMMSG, fd, 0, batchSize) }
	s.send = func(fd uintptr) bool { return s.call(unix.SYS_SENDMMSG, fd, s.first, s.last) }
	return s, nil
}

// call reports false if the socket is not ready; the poller calls again when it
// is.
func (s *udpSocket) call(number, fd uintptr, first, last int) bool {
	n, _, errno := unix.Syscall6(number, fd, uintptr(unsafe.Pointer(&s.headers[first])), uintptr(last-first), unix.MSG_DONTWAIT, 0, 0)
	s.done, s.errno = int(n), errno
	return errno != unix.EAGAIN
}

// header points header i at the memory of a packet and its addresses.
func (s *udpSocket) header(i int, payload, name, oob []byte) {
	v, h := &s.vectors[i], &s.headers[i].hdr
	v.Base = unsafe.SliceData(payload)
	v.SetLen(len(payload))
	h.Name, h.Namelen = unsafe.SliceData(name), uint32(len(name))
	h.Control = unsafe.SliceData(oob)
	h.SetControllen(len(oob))
	h.Iov = v
	h.SetIovlen(1)
}

// readBatch waits for packets and receives those that are there.
func (s *udpSocket) readBatch(b *batch) error {
	b.n = 0
	for i := range batchSize {
		s.header(i, b.memory.in[i][:], b.memory.from[i][:], b.memory.oob[i][:])
	}
	if err := s.raw.Read(s.receive); err != nil {
		return err
	}
	if s.errno != 0 {
		return s.errno
	}
	b.n = s.done
	for i := range b.n {
		h := &s.headers[i]
		b.in[i] = b.memory.in[i][:h.len]
		b.from[i] = b.memory.from[i][:h.hdr.Namelen]
		b.oob[i] = b.memory.oob[i][:h.hdr.Controllen]
	}
	return nil
}

// writeBatch sends the answers of a batch. One that the kernel refuses is lost,
// as on the way; its client repeats the query.
func (s *udpSocket) writeBatch(b *batch) {
	s.first, s.last = 0, 0
	for i := range b.n {
		if b.answer[i] != nil {
			s.header(s.last, b.answer[i], b.from[i], answerFrom(b.oob[i]))
			s.last++
		}
	}
	for s.first < s.last {
		if s.raw.Write(s.send) != nil {
			return // closed
		}
		if s.errno != 0 {
			s.done = 1 // an error is that of the first one
		}
		s.first += s.done
	}
}
