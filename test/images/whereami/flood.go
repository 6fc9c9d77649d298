package main

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"
)

// flooded is the outcome of a flood.
type flooded struct {
	// Sent are the datagrams, each from another port or to another port than those before it, as
	// long as there are some.
	Sent int `json:"sent"`
	// Refused are those for which an ICMP error came back, or that the kernel did not send.
	Refused int `json:"refused"`
}

// floodSockets is how many sockets send at a time.
const floodSockets = 64

func flood(args []string) error {
	flags := flag.NewFlagSet("whereami flood", flag.ExitOnError)
	duration := flags.Duration("duration", 0, "how long; 0: until standard input ends")
	fresh := flags.Bool("fresh", false, "send to the port alone, each datagram from a new socket, instead of to all ports")
	_ = flags.Parse(args) // ends the process on an error
	to, err := netip.ParseAddrPort(flags.Arg(0))
	if err != nil || flags.NArg() != 1 {
		return errors.New("usage: whereami flood [-duration 10s] [-fresh] ADDRESS:PORT")
	}
	ctx, cancel := lasting(*duration)
	defer cancel()
	out := flooded{}
	var sockets [floodSockets]*net.UDPConn
	defer func() {
		for _, c := range sockets {
			if c != nil {
				_ = c.Close() // nothing is lost with it
			}
		}
	}()
	fmt.Fprintf(os.Stderr, "flooding %s\n", to)
	for i := 0; ctx.Err() == nil; i++ {
		c := &sockets[i%floodSockets]
		if *c != nil && *fresh {
			_ = (*c).Close() // as above
			*c = nil
		}
		if *c == nil {
			if *c, err = net.ListenUDP("udp4", nil); err != nil {
				return fmt.Errorf("open a socket: %w", err)
			}
		}
		target := to
		if !*fresh {
			target = netip.AddrPortFrom(to.Addr(), uint16(1+i/floodSockets%65535))
		}
		if _, err := (*c).WriteToUDPAddrPort([]byte("flood"), target); err != nil {
			out.Refused++
			time.Sleep(time.Millisecond) // a full queue of the device
		} else {
			out.Sent++
		}
	}
	return printJSON(out)
}
