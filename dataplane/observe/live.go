package observe

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane/dump"
	"github.com/pelago-net/pelago/dataplane/loader"
	"github.com/pelago-net/pelago/dataplane/trace"
)

const (
	ethLen  = 14
	ipv4Len = 20
	// of the overlay header; programs also make probes of clones of a packet
	typeAt   = ipv4Len + 8 + 4
	innerAt  = ipv4Len + 8 + 8 + ethLen // offset of the inner IPv4 header from the outer one
	seqAt    = ipv4Len + 4
	ackAt    = ipv4Len + 8 // of TCP; the payload of UDP and of an ICMP echo
	ttl      = 64
	snapLen  = 256 // bytes read of a packet
	maxWatch = time.Minute
)

// Send sends a probe. For a local pod it is injected at the ingress of the pod's device, as if the
// pod had sent it: nothing runs in the pod. For the node itself it is sent through a raw socket.
func Send(l *loader.Loader, p trace.Probe) error {
	state, err := l.Read()
	if err != nil {
		return err
	}
	source, ok := state.Sources[p.Packet.Source.Addr()]
	if !ok {
		return fmt.Errorf("send as %s: this node has no such source: see `pelago map dump sources --local`", p.Packet.Source.Addr())
	}
	if source.Host || source.Ifindex == 0 {
		return sendRaw(p)
	}
	pod := state.Endpoints[p.Packet.Source.Addr()]
	device, err := net.InterfaceByIndex(int(source.Ifindex))
	if err != nil {
		return fmt.Errorf("find the device of %s: %w", p.Packet.Source.Addr(), err)
	}
	// Of a pod on a bridge, the frame comes in by its port, and is for the bridge.
	return inject(cmp.Or(pod.Ifindex, source.Ifindex), device.HardwareAddr, pod.MAC, packetOf(p, ttl))
}

func sendRaw(p trace.Probe) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
	if err != nil {
		return fmt.Errorf("open a raw socket: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, packetOf(p, ttl), 0, &unix.SockaddrInet4{Addr: p.Packet.Destination.Addr().As4()}); err != nil {
		return fmt.Errorf("send to %s: %w", p.Packet.Destination, err)
	}
	return nil
}

// inject has a program redirect a clone of a frame with an IPv4 packet to the ingress of a device. A
// test run executes that helper for real.
func inject(ifindex uint32, to net.HardwareAddr, from [6]byte, packet []byte) error {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "trace_inject", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{
			asm.Mov.Imm(asm.R2, int32(ifindex)),
			asm.Mov.Imm(asm.R3, 1), // BPF_F_INGRESS
			asm.FnCloneRedirect.Call(),
			asm.Return(),
		},
	})
	if err != nil {
		return fmt.Errorf("load the program that sends the packet: %w", err)
	}
	defer program.Close()
	frame := append([]byte{}, to...)
	frame = append(frame, from[:]...)
	frame = append(frame, 0x08, 0x00)
	if len(frame) != ethLen {
		return fmt.Errorf("send by device %d: it has no Ethernet address", ifindex)
	}
	result, err := program.Run(&ebpf.RunOptions{Data: append(frame, packet...)})
	if err == nil && result != 0 {
		err = fmt.Errorf("redirect: error %d", -int32(result))
	}
	if err != nil {
		return fmt.Errorf("send by device %d: %w", ifindex, err)
	}
	return nil
}

// packetOf is the probe as an IPv4 packet.
func packetOf(p trace.Probe, ttl uint8) []byte {
	var l4 []byte
	be := binary.BigEndian
	source, destination := p.Packet.Source, p.Packet.Destination
	switch p.Packet.Protocol {
	case unix.IPPROTO_TCP:
		l4 = be.AppendUint16(l4, source.Port())
		l4 = be.AppendUint16(l4, destination.Port())
		l4 = be.AppendUint32(l4, p.Marker)
		// SYN, an MSS of 1280
		l4 = append(l4, 0, 0, 0, 0, 6<<4, 0x02, 0xff, 0xff, 0, 0, 0, 0, 2, 4, 0x05, 0x00)
		be.PutUint16(l4[16:], checksum(l4, pseudo(p.Packet, len(l4))))
	case unix.IPPROTO_UDP:
		l4 = be.AppendUint16(l4, source.Port())
		l4 = be.AppendUint16(l4, destination.Port())
		l4 = append(l4, 0, 12, 0, 0)
		l4 = be.AppendUint32(l4, p.Marker)
		be.PutUint16(l4[6:], checksum(l4, pseudo(p.Packet, len(l4))))
	default:
		l4 = append(l4, 8, 0, 0, 0) // echo request
		l4 = be.AppendUint16(l4, source.Port())
		l4 = append(l4, 0, 1)
		l4 = be.AppendUint32(l4, p.Marker)
		be.PutUint16(l4[2:], checksum(l4, 0))
	}
	ip := []byte{0x45, 0, 0, 0, byte(p.Marker >> 8), byte(p.Marker), 0x40, 0, ttl, p.Packet.Protocol, 0, 0}
	be.PutUint16(ip[2:], uint16(ipv4Len+len(l4)))
	ip = append(ip, source.Addr().AsSlice()...)
	ip = append(ip, destination.Addr().AsSlice()...)
	be.PutUint16(ip[10:], checksum(ip, 0))
	return append(ip, l4...)
}

func pseudo(p trace.Packet, length int) (sum uint32) {
	for _, a := range []netip.Addr{p.Source.Addr(), p.Destination.Addr()} {
		b := a.As4()
		sum += uint32(b[0])<<8 + uint32(b[1]) + uint32(b[2])<<8 + uint32(b[3])
	}
	return sum + uint32(p.Protocol) + uint32(length)
}

// checksum of an even number of bytes (RFC 1071).
func checksum(b []byte, sum uint32) uint16 {
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(b[i])<<8 + uint32(b[i+1])
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// Watch records the sightings of a probe on all devices of this node until done is closed, at most
// for a minute. ready is called once nothing can be missed. The filter runs in the kernel, and only
// for the duration of the call.
func Watch(l *loader.Loader, p trace.Probe, ready func() error, done <-chan struct{}) (trace.Watched, error) {
	before, err := l.Counters()
	if err != nil {
		return trace.Watched{}, err
	}
	fd, err := listen(p)
	if err != nil {
		return trace.Watched{}, fmt.Errorf("watch the devices: %w", err)
	}
	defer unix.Close(fd)
	if err := ready(); err != nil {
		return trace.Watched{}, err
	}
	w := trace.Watched{Sightings: []trace.Sighting{}, Drops: []dump.Counter{}}
	buffer := make([]byte, snapLen)
	for end, last := time.Now().Add(maxWatch), false; !last; {
		select {
		case <-done:
			last = true // after what the socket still holds
		default:
			last = time.Now().After(end)
		}
		for {
			n, from, err := unix.Recvfrom(fd, buffer, 0)
			if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
				break
			}
			if err != nil {
				return w, fmt.Errorf("watch the devices: %w", err)
			}
			if s, ok := sighting(p, buffer[:n], from); ok {
				w.Sightings = append(w.Sightings, s)
			}
		}
	}
	after, err := l.Counters()
	for _, c := range after {
		for _, b := range before {
			if b.Hook == c.Hook && b.Verdict == c.Verdict {
				c.Packets, c.Bytes = c.Packets-b.Packets, c.Bytes-b.Bytes
			}
		}
		if c.Packets > 0 && c.Dropped() {
			w.Drops = append(w.Drops, c)
		}
	}
	return w, err
}

// listen opens a socket that receives the packets with the marker, or with the answer to it, from
// the IPv4 header on.
func listen(p trace.Probe) (int, error) {
	// receives nothing until it is bound
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	var filter []unix.SockFilter
	for _, at := range []uint32{seqAt, ackAt, innerAt + seqAt, innerAt + ackAt} {
		// A load past the end of the packet ends the program: it does not match.
		filter = append(filter, unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at})
		for _, value := range []uint32{p.Marker, p.Marker + 1} {
			filter = append(filter, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: value},
				unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: snapLen})
		}
	}
	filter = append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K})
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
	if err == nil {
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000})
	}
	if err == nil {
		all := uint16(unix.ETH_P_ALL)
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all<<8 | all>>8})
	}
	if err != nil {
		unix.Close(fd)
	}
	return fd, err
}

// sighting reads a packet from its IPv4 header on; ok is false if it is not the probe and no answer
// to it.
func sighting(p trace.Probe, b []byte, from unix.Sockaddr) (s trace.Sighting, ok bool) {
	if inner, answer, ok := parse(p, b, innerAt); ok {
		outer, to := netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
		s = trace.Sighting{Packet: inner, Answer: answer, From: &outer, To: &to}
	} else if s.Packet, s.Answer, ok = parse(p, b, 0); !ok {
		return s, false
	}
	if sll, ok := from.(*unix.SockaddrLinklayer); ok {
		s.Out = sll.Pkttype == unix.PACKET_OUTGOING
		if device, err := net.InterfaceByIndex(sll.Ifindex); err == nil {
			s.Device = device.Name
		}
	}
	return s, true
}

// parse reads the IPv4 packet at an offset.
func parse(p trace.Probe, b []byte, at int) (packet trace.Packet, answer, ok bool) {
	if len(b) < at+ackAt+4 || b[at] != 0x45 || b[at+9] != p.Packet.Protocol || at > 0 && (b[9] != unix.IPPROTO_UDP || b[typeAt] != byte(bpf.PelagoPacketTypePACKET_FORWARD)) {
		return packet, false, false
	}
	b = b[at:]
	be := binary.BigEndian
	source, destination := be.Uint16(b[ipv4Len:]), be.Uint16(b[ipv4Len+2:])
	switch p.Packet.Protocol {
	case unix.IPPROTO_TCP:
		answer = be.Uint32(b[ackAt:]) == p.Marker+1
		ok = answer || be.Uint32(b[seqAt:]) == p.Marker
	case unix.IPPROTO_ICMP:
		answer, ok = b[ipv4Len] == 0, be.Uint32(b[ackAt:]) == p.Marker
		if source, destination = be.Uint16(b[seqAt:]), 0; answer {
			source, destination = destination, source
		}
	default:
		ok = be.Uint32(b[ackAt:]) == p.Marker
		// An echo server answers with the payload, in a packet with another identification.
		answer = be.Uint16(b[4:]) != uint16(p.Marker)
	}
	packet = trace.Packet{
		Protocol:    p.Packet.Protocol,
		Source:      netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[12:])), source),
		Destination: netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[16:])), destination),
	}
	return packet, answer, ok
}
