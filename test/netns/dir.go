package netns

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// shareDir makes /run/netns a mount point of its own as `ip netns add` does on its first call.
// Without it, that first call (by anybody, while our namespaces exist) would mount over our files,
// which could then not be removed (EBUSY). A directory that is in use already stays as it is.
func shareDir() error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", dir, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read %s: %w", dir, err)
	}
	// MS_SHARED on something that is no mount point answers EINVAL: that is the test for "not done
	// yet".
	if len(entries) > 0 || unix.Mount("", dir, "none", unix.MS_SHARED|unix.MS_REC, "") == nil {
		return nil
	}
	if err := unix.Mount(dir, dir, "none", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind-mount %s on itself: %w", dir, err)
	}
	if err := unix.Mount("", dir, "none", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make the mount %s shared: %w", dir, err)
	}
	return nil
}
