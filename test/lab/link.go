package lab

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Shape limits a link in both directions.
type Shape struct {
	Rate  uint64 // bytes per second
	Burst uint32 // bytes that may pass at once
	Queue uint32 // bytes that may wait; more are dropped
}

// cable is the link of a node or of a cluster: a port of the cluster's switch
// and the device at its other end.
type cable struct {
	sw, far   *netspace
	port, dev string
}

func (c *cable) close() {
	c.sw.close()
	c.far.close()
}

// cableOf finds the cable of a node (to its switch) or of a cluster or the hub
// (from its switch to the router).
func (l *Lab) cableOf(target string) (*cable, error) {
	plan := l.record.Plan
	var cluster, port, farNamespace, dev string
	if n, err := plan.Node(target); err == nil {
		cluster, port, farNamespace, dev = n.Cluster, n.port(), plan.Namespace(n.Name), machineLink
	} else if c, err := plan.Cluster(target); err == nil {
		cluster, port, farNamespace, dev = c.Name, uplinkPort, plan.Namespace(routerName), c.Name
	} else {
		return nil, fmt.Errorf("lab %s has no node or cluster %q (pelago-lab status lists them)", plan.Name, target)
	}
	sw, err := openNetspace(plan.switchNamespace(cluster))
	if err != nil {
		return nil, err
	}
	far, err := openNetspace(farNamespace)
	if err != nil {
		sw.close()
		return nil, fmt.Errorf("%w (is %s switched off?)", err, target)
	}
	return &cable{sw: sw, far: far, port: port, dev: dev}, nil
}

// CutLink cuts the link of a node to its cluster, or of a cluster to the
// router. Unplugged, both ends see their carrier go; otherwise frames vanish
// silently, as behind a broken switch.
func (l *Lab) CutLink(target string, unplug bool) error {
	c, err := l.cableOf(target)
	if err != nil {
		return err
	}
	defer c.close()
	port, err := c.sw.LinkByName(c.port)
	if err == nil {
		if unplug {
			err = c.sw.LinkSetDown(port)
		} else {
			err = c.sw.LinkSetNoMaster(port)
		}
	}
	if err != nil {
		return fmt.Errorf("cut the link of %s: %w", target, err)
	}
	return nil
}

// HealLink undoes CutLink and ShapeLink.
func (l *Lab) HealLink(target string) error {
	c, err := l.cableOf(target)
	if err != nil {
		return err
	}
	defer c.close()
	if err := connectPort(c.sw, c.port); err != nil {
		return err
	}
	return errors.Join(unshape(c.sw, c.port), unshape(c.far, c.dev))
}

// ShapeLink limits the rate of a link in both directions by a token bucket.
func (l *Lab) ShapeLink(target string, s Shape) error {
	c, err := l.cableOf(target)
	if err != nil {
		return err
	}
	defer c.close()
	return errors.Join(shape(c.sw, c.port, s), shape(c.far, c.dev, s))
}

func shape(ns *netspace, device string, s Shape) error {
	link, err := ns.LinkByName(device)
	if err == nil {
		err = ns.QdiscReplace(&netlink.Tbf{
			QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
			Rate:       s.Rate, Limit: s.Queue + s.Burst, Buffer: netlink.Xmittime(s.Rate, s.Burst),
		})
	}
	if err != nil {
		return fmt.Errorf("limit the rate of %s in %s: %w", device, ns.name, err)
	}
	return nil
}

// unshape removes what shape set up, and nothing else that may be there.
func unshape(ns *netspace, device string) error {
	q, err := shaper(ns, device)
	if err == nil && q != nil {
		err = ns.QdiscDel(q)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("lift the rate limit of %s in %s: %w", device, ns.name, err)
	}
	return nil
}

// shaper returns the token bucket at the root of a device, nil if none exists.
func shaper(ns *netspace, device string) (*netlink.Tbf, error) {
	link, err := ns.LinkByName(device)
	if err != nil {
		return nil, err
	}
	qdiscs, err := ns.QdiscList(link)
	if err != nil {
		return nil, err
	}
	for _, q := range qdiscs {
		if tbf, ok := q.(*netlink.Tbf); ok && tbf.Parent == netlink.HANDLE_ROOT {
			return tbf, nil
		}
	}
	return nil, nil
}
