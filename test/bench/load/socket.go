package load

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The calls below go to the kernel without telling Go's scheduler (RawSyscall), also where they
// block: nothing else has to run in this process, and the hand-over of the processor to another
// thread would be measured with the traffic.

func read(fd int, b []byte) (int, error) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	return result(n, errno)
}

func write(fd int, b []byte) (int, error) {
	n, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	return result(n, errno)
}

func connect(fd int, sa *unix.RawSockaddrInet4) error {
	_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(sa)), unsafe.Sizeof(*sa))
	_, err := result(0, errno)
	return err
}

func accept(fd int) (int, error) {
	n, _, errno := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(fd), 0, 0, unix.SOCK_CLOEXEC, 0, 0)
	return result(n, errno)
}

// mmsghdr is struct mmsghdr of sendmmsg(2) and recvmmsg(2).
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
	_   [4]byte
}

// sendmmsg sends all of m and returns how many were taken.
func sendmmsg(fd int, m []mmsghdr) (int, error) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&m[0])), uintptr(len(m)), 0, 0, 0)
	return result(n, errno)
}

// recvmmsg takes as many datagrams as are there, or fails with EAGAIN.
func recvmmsg(fd int, m []mmsghdr) (int, error) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&m[0])), uintptr(len(m)), unix.MSG_DONTWAIT, 0, 0)
	return result(n, errno)
}

func result(n uintptr, errno unix.Errno) (int, error) {
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// timedOut reports whether a receive timed out, found nothing or was interrupted by a signal.
func timedOut(err error) bool { return errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) }

// stopped reports whether a line waits on the standard input of the worker.
func stopped() bool {
	waiting, err := unix.IoctlGetInt(unix.Stdin, unix.TIOCINQ)
	return err == nil && waiting > 0
}

// reply sends a received datagram back to its sender if it wants that.
func (m *mmsghdr) reply(fd int) error {
	if *m.hdr.Iov.Base != wantReply {
		return nil
	}
	from := (*unix.RawSockaddrInet4)(unsafe.Pointer(m.hdr.Name))
	_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(m.hdr.Iov.Base)), 1, 0, uintptr(unsafe.Pointer(from)), unix.SizeofSockaddrInet4)
	_, err := result(0, errno)
	return err
}

// messages returns n message headers; all share buf when sending, each has its own copy of it when
// receiving, and room for the sender's address.
func messages(n int, buf []byte, shared bool) []mmsghdr {
	m := make([]mmsghdr, n)
	iov := make([]unix.Iovec, n)
	for i := range m {
		b := buf
		if !shared {
			b = make([]byte, len(buf))
			m[i].hdr.Name = (*byte)(unsafe.Pointer(&unix.RawSockaddrInet4{}))
			m[i].hdr.Namelen = unix.SizeofSockaddrInet4
		}
		iov[i].Base = &b[0]
		iov[i].SetLen(len(b))
		m[i].hdr.Iov = &iov[i]
		m[i].hdr.SetIovlen(1)
	}
	return m
}

// rawAddr is a as the kernel reads it; the port is in network byte order.
func rawAddr(a netip.AddrPort) *unix.RawSockaddrInet4 {
	sa := &unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: a.Addr().As4()}
	port := (*[2]byte)(unsafe.Pointer(&sa.Port))
	port[0], port[1] = byte(a.Port()>>8), byte(a.Port())
	return sa
}

// dial opens a socket of the kind (unix.SOCK_STREAM or SOCK_DGRAM) connected to a.
func dial(kind int, a netip.AddrPort) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open a socket: %w", err)
	}
	// A connection that the path does not carry must end the measurement, not hang it.
	if err := errors.Join(timeout(fd, unix.SO_SNDTIMEO, 2*time.Second), timeout(fd, unix.SO_RCVTIMEO, 2*time.Second)); err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	err = connect(fd, rawAddr(a))
	if errors.Is(err, unix.EINPROGRESS) { // how the kernel reports that the send timeout passed
		err = unix.ETIMEDOUT
	}
	if err != nil {
		return -1, errors.Join(fmt.Errorf("connect: %w", err), unix.Close(fd))
	}
	return fd, nil
}

// listen opens a socket of the kind on the port of a, and on its address if that is one of the
// pod's own, so that replies have it as source; else, behind a translation, on all addresses. Its
// receive calls come back at least every 100 ms.
func listen(kind int, a netip.AddrPort) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open a socket: %w", err)
	}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		timeout(fd, unix.SO_RCVTIMEO, 100*time.Millisecond))
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()})
	}
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		err = unix.Bind(fd, &unix.SockaddrInet4{Port: int(a.Port())})
	}
	if err == nil && kind == unix.SOCK_STREAM {
		err = unix.Listen(fd, 4096)
	}
	if err != nil {
		return -1, errors.Join(fmt.Errorf("listen: %w", err), unix.Close(fd))
	}
	return fd, nil
}

func timeout(fd, option int, d time.Duration) error {
	tv := unix.NsecToTimeval(d.Nanoseconds())
	return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &tv)
}

func noDelay(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) }
