package netdev

import (
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// RuleUpdate is a change of an IPv4 routing rule.
type RuleUpdate struct {
	// Type is RTM_NEWRULE or RTM_DELRULE.
	Type uint16
	// Ours: it has the priority of our rule and was made as ours is.
	Ours bool
}

// RuleSubscribe sends changes of routing rules to updates until done is closed or the kernel ends
// the notifications, and then closes updates.
func RuleSubscribe(updates chan<- RuleUpdate, done <-chan struct{}) error {
	return subscribe(unix.RTNLGRP_IPV4_RULE, updates, done, func(kind uint16, data []byte) (u RuleUpdate, ok bool) {
		if kind != unix.RTM_NEWRULE && kind != unix.RTM_DELRULE || len(data) < unix.SizeofRtMsg {
			return u, false
		}
		u.Type = kind
		attrs, err := nl.ParseRouteAttrAsMap(data[unix.SizeofRtMsg:])
		if err != nil {
			return u, true // someone's
		}
		priority, protocol := attrs[nl.FRA_PRIORITY].Value, attrs[nl.FRA_PROTOCOL].Value
		u.Ours = len(priority) == 4 && nl.NativeEndian().Uint32(priority) == RulePriority && len(protocol) == 1 && protocol[0] == kernelProtocol
		return u, true
	})
}

// FilterUpdate is a change of a traffic control filter or qdisc.
type FilterUpdate struct {
	// Type is RTM_NEWTFILTER, RTM_DELTFILTER or RTM_DELQDISC.
	Type uint16
	// Ifindex is the device.
	Ifindex int
	// Handle of the filter or qdisc.
	Handle uint32
}

// FilterSubscribe sends changes of filters and removals of qdiscs to updates until done is closed or
// the kernel ends the notifications, and then closes updates.
func FilterSubscribe(updates chan<- FilterUpdate, done <-chan struct{}) error {
	return subscribe(unix.RTNLGRP_TC, updates, done, func(kind uint16, data []byte) (u FilterUpdate, ok bool) {
		switch kind {
		case unix.RTM_NEWTFILTER, unix.RTM_DELTFILTER, unix.RTM_DELQDISC:
		default:
			return u, false
		}
		if len(data) < nl.SizeofTcMsg {
			return u, false
		}
		m := nl.DeserializeTcMsg(data)
		return FilterUpdate{Type: kind, Ifindex: int(m.Ifindex), Handle: m.Handle}, true
	})
}

// subscribe joins a group of rtnetlink (rtnetlink(7)) whose messages the library does not offer.
func subscribe[T any](group uint, updates chan<- T, done <-chan struct{}, parse func(kind uint16, data []byte) (T, bool)) error {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, group)
	if err != nil {
		return fmt.Errorf("subscribe to group %d of rtnetlink: %w", group, err)
	}
	ended := make(chan struct{})
	go func() {
		select {
		case <-done:
		case <-ended:
		}
		s.Close()
	}()
	go func() {
		defer close(updates)
		defer close(ended)
		for {
			messages, from, err := s.Receive()
			if err != nil {
				return // closed, or ENOBUFS: some were lost
			}
			if from.Pid != nl.PidKernel {
				continue
			}
			for _, m := range messages {
				if u, ok := parse(m.Header.Type, m.Data); ok {
					updates <- u
				}
			}
		}
	}()
	return nil
}
