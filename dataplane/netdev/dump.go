package netdev

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// dumpAttempts bounds how often a list is read that changes meanwhile.
const dumpAttempts = 3

// Dump returns a list of the kernel as it was at one time. Netlink returns it in parts; if it changes between two of them, entries
// may be missing or doubled (NLM_F_DUMP_INTR), and it is read again.
func Dump[T any](list func() ([]T, error)) ([]T, error) {
	for attempt := 1; ; attempt++ {
		all, err := list()
		if attempt == dumpAttempts || !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
}
