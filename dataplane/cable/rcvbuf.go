package cable

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// udpQueue is the receive buffer of the IKE daemon's UDP sockets where it does ESP itself, bytes: some 4,000 packets while the
// daemon is not scheduled. The kernel's 200 KiB are full within 50 ms at 5,000 packets/s, and the daemon has no setting.
const udpQueue = 4 << 20

// widen sets the receive buffers of a process's UDP sockets and returns how many it has. The process must be a child of this
// one, or this one needs CAP_SYS_PTRACE (pidfd_getfd(2), Linux 5.6).
func widen(pid, bytes int) (sockets int, err error) {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return 0, fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(process)
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, fmt.Errorf("list the files of process %d: %w", pid, err)
	}
	var errs []error
	for _, e := range entries {
		number, err := strconv.Atoi(e.Name())
		target, gone := os.Readlink(dir + "/" + e.Name())
		if err != nil || gone != nil || !strings.HasPrefix(target, "socket:") {
			continue
		}
		udp, err := widenOne(process, number, bytes)
		if err != nil {
			errs = append(errs, fmt.Errorf("enlarge the receive buffer of file %d of process %d: %w", number, pid, err))
		}
		if udp {
			sockets++
		}
	}
	return sockets, errors.Join(errs...)
}

func widenOne(process, number, bytes int) (udp bool, err error) {
	fd, err := unix.PidfdGetfd(process, number, 0)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return false, err
	}
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil || kind != unix.SOCK_DGRAM || domain != unix.AF_INET && domain != unix.AF_INET6 {
		return false, err
	}
	return true, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bytes)
}
