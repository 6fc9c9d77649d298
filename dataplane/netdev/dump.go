package netdev

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// dumpAttempts bounds how often a list that changes during the read is tried.
const dumpAttempts = 3

// Dump returns a consistent snapshot of a kernel list. Netlink returns lists in parts; if one
// changes between two parts, entries may be missing or duplicated (NLM_F_DUMP_INTR), and it is read
// again.
func Dump[T any](list func() ([]T, error)) ([]T, error) {
	for attempt := 1; ; attempt++ {
		all, err := list()
		if attempt == dumpAttempts || !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
}
