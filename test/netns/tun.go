package netns

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// TUN joins two namespaces with a TUN device each, which carry IP packets without an Ethernet
// header, as the devices of a VPN do. This process copies the packets, until close is called. The
// devices end with it.
func TUN(a, b End) (close func() error, err error) {
	ends := []End{a, b}
	files := make([]*os.File, len(ends))
	close = func() error {
		var errs []error
		for _, f := range files {
			if f != nil {
				errs = append(errs, f.Close())
			}
		}
		return errors.Join(errs...)
	}
	for i, e := range ends {
		if files[i], err = e.openTUN(); err != nil {
			return nil, errors.Join(fmt.Errorf("make TUN %s/%s: %w", e.NS.Name, e.Name, err), close())
		}
	}
	for i := range files {
		go func() {
			packet := make([]byte, 1<<16)
			for {
				n, err := files[i].Read(packet)
				if err != nil {
					return // closed
				}
				_, _ = files[1-i].Write(packet[:n]) // EIO while the device is down: the packet is lost
			}
		}()
	}
	return close, nil
}

// openTUN makes the device, sets it up and gives it its addresses.
func (e End) openTUN() (*os.File, error) {
	var f *os.File
	err := e.NS.Do(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open /dev/net/tun: %w", err)
		}
		request, err := unix.NewIfreq(e.Name)
		if err == nil {
			request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
			err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
		}
		if err == nil && e.LinkType != 0 {
			err = unix.IoctlSetInt(fd, unix.TUNSETLINK, e.LinkType)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("set up the device: %w", err), unix.Close(fd))
		}
		f = os.NewFile(uintptr(fd), "/dev/net/tun")
		return nil
	})
	if err != nil {
		return nil, err
	}
	l, err := e.NS.link(e.Name)
	if err == nil && e.MTU != 0 {
		err = e.NS.nl.LinkSetMTU(l, e.MTU)
	}
	if err == nil {
		err = e.NS.up(e.Name)
	}
	for _, p := range e.Addrs {
		if err == nil {
			err = e.NS.AddAddr(e.Name, p)
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
