// Package netns makes network namespaces on this machine for tests and benchmarks, joins them with
// veth pairs and runs code and commands inside them. Namespaces carry names under /run/netns
// (always with Prefix), so that a person can look into a running test with `ip netns exec`. The
// package never touches a namespace without that prefix and never changes the network of the
// namespace in which the caller runs. Only tests and the benchmark import it.
package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
)

const (
	// Prefix begins the name of every namespace that this package makes or removes.
	Prefix = "plg-"

	// dir is where iproute2 and vishvananda/netns keep named namespaces.
	dir = "/run/netns"
)

// validName keeps names usable as one path element and readable in `ip netns list`.
var validName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,63}$`)

// NS is one network namespace. Its methods may be called from any goroutine.
type NS struct {
	// Name is the full name under /run/netns, Prefix included.
	Name string

	fd vnetns.NsHandle
	nl *netlink.Handle
}

// Create makes the namespace Prefix+name with `lo` up. The caller closes it. A namespace of that
// name that exists already is an error: call RemoveStale first where leftovers of an earlier run
// are possible.
func Create(name string) (*NS, error) {
	if !validName.MatchString(name) {
		return nil, fmt.Errorf("create namespace %q: the name must match %s", name, validName)
	}
	full := Prefix + name
	if err := shareDir(); err != nil {
		return nil, fmt.Errorf("create namespace %s: %w", full, err)
	}
	fd, err := create(full)
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("create namespace %s: it exists already (left by an earlier run? `ip netns del %s`): %w", full, full, err)
	}
	if err != nil {
		return nil, fmt.Errorf("create namespace %s: %w", full, err)
	}
	n, err := open(full, fd)
	if err == nil {
		err = n.up("lo")
	}
	if err != nil {
		fd.Close()
		return nil, errors.Join(fmt.Errorf("create namespace %s: %w", full, err), vnetns.DeleteNamed(full))
	}
	return n, nil
}

// create makes the namespace and brings its thread, which NewNamed leaves inside, home again.
// (Throwing the thread away instead does not work for the process's main thread: the runtime parks
// it, and it would hold the namespace for ever.)
func create(full string) (vnetns.NsHandle, error) {
	var fd vnetns.NsHandle
	err := excursion(func() (err error) {
		fd, err = vnetns.NewNamed(full)
		return err
	})
	return fd, err
}

// Open finds a namespace that another process made with Create; name is without Prefix. Closing it
// removes it, so a process that only visits calls Release instead.
func Open(name string) (*NS, error) { return Visit(Prefix + name) }

// Visit finds a namespace by its full name, whatever made it. The caller ends with Release.
func Visit(full string) (*NS, error) {
	fd, err := vnetns.GetFromName(full)
	if err != nil {
		return nil, fmt.Errorf("open namespace %s: %w", full, err)
	}
	n, err := open(full, fd)
	if err != nil {
		fd.Close()
		return nil, fmt.Errorf("open namespace %s: %w", full, err)
	}
	return n, nil
}

func open(full string, fd vnetns.NsHandle) (*NS, error) {
	nl, err := netlink.NewHandleAt(fd)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	return &NS{Name: full, fd: fd, nl: nl}, nil
}

// Release gives up the handles and leaves the namespace in place.
func (n *NS) Release() error {
	n.nl.Close()
	return n.fd.Close()
}

// Close removes the namespace with all devices in it. Processes still inside keep it alive in the
// kernel until they end; its name is gone at once.
func (n *NS) Close() error {
	err := errors.Join(n.Release(), vnetns.DeleteNamed(n.Name))
	if err != nil {
		return fmt.Errorf("remove namespace %s: %w", n.Name, err)
	}
	return nil
}

// Path is the file that names the namespace, for nsenter and for link.AttachNetNs style options.
func (n *NS) Path() string { return filepath.Join(dir, n.Name) }

// FD is the open file descriptor of the namespace; it is valid until Close or Release.
func (n *NS) FD() int { return int(n.fd) }

// Handle is a netlink handle whose requests act inside the namespace; it is valid until Close or
// Release.
func (n *NS) Handle() *netlink.Handle { return n.nl }

// RemoveStale removes every namespace whose name begins with Prefix+name, as an earlier run that
// was killed leaves them, and returns the names removed.
func RemoveStale(name string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	var removed []string
	var errs []error
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), Prefix+name) {
			continue
		}
		if err := vnetns.DeleteNamed(e.Name()); err != nil {
			errs = append(errs, fmt.Errorf("remove namespace %s: %w", e.Name(), err))
			continue
		}
		removed = append(removed, e.Name())
	}
	return removed, errors.Join(errs...)
}
