// Package cable makes the wires between the gateways of two clusters: devices on which packets from this gateway's fabric
// address to another's go in, and come out at the other end as they were. pelago-node calls it on gateway nodes and
// attaches the programs to the devices; the choice of a gateway and of a tunnel is theirs. The package works in the network
// namespace of the calling thread, knows no Kubernetes, and never looks up a name.
package cable

import (
	"fmt"
	"net/netip"
	"time"
)

// Drivers, as in --cable-driver and Endpoint.spec.backend.
const (
	WireGuardDriver = "wireguard"
	IPsecDriver     = "libreswan"
	VXLANDriver     = "vxlan"
)

// Keys of what Identity returns and Peer.Identity holds; they stand in Endpoint.spec.backend_config.
const (
	// IdentityPublicKey lists the WireGuard keys in base64, one per tunnel, with commas between.
	IdentityPublicKey = "publicKey"
	// IdentityStandbyKey is the key of the tunnel that carries packets while another changes its key.
	IdentityStandbyKey = "publicKeyStandby"
	// IdentityTunnels is the number of tunnels, decimal; without it one.
	IdentityTunnels = "tunnels"
	// IdentityDraining lists tunnels by number, with commas between: they take packets, but others shall send none there.
	IdentityDraining = "draining"
)

// MaxTunnels bounds Local.Tunnels. WireGuard's standby tunnel has this number, so its UDP port is Listen+MaxTunnels.
const MaxTunnels = 4

// DefaultMTU of a wire's device, bytes: fits every wire on an underlay of 1,500 bytes.
const DefaultMTU = 1420

// Wire carries cable packets between this gateway and others.
type Wire interface {
	// Ensure brings devices and peers to what is wanted. It may be repeated and changes nothing that is as wanted, so
	// traffic is not disturbed. Of several peers it does what it can; the error names the others. Call it every few
	// seconds: it calls again those who did not answer, and takes up tunnels that have come to work.
	Ensure(local Local, peers []Peer) (Devices, error)
	// Identity is what others must know to reach this gateway. Ensure may change it.
	Identity() (map[string]string, error)
	// Status says of each peer, by fabric address, what the wire itself knows.
	Status() (map[netip.Addr]Status, error)
	// Remove takes away all that Ensure made. Keys stay.
	Remove() error
	// Close stops what runs inside this process. A kernel device stays and goes on.
	Close() error
}

// Queued is a Wire that carries packets in this process, where they may have to wait for their turn.
type Queued interface {
	// Waiting says whether packets wait to go into the wire or to come out of it.
	Waiting() (bool, error)
}

// Keyed is a Wire whose keys stay until they are changed on command.
type Keyed interface {
	// Rotate begins to change all keys; the following calls of Ensure do it, and Identity tells others. A request is done once: that
	// of the last call again changes nothing, also after a restart. It has at most 64 printable characters.
	Rotate(request string) error
	// Rotation says how far that is.
	Rotation() Rotation
}

// Rotation is a change of all keys.
type Rotation struct {
	// Request is that of the last Rotate; empty: there was none.
	Request string
	// Left is how many tunnels are still to get new keys; 0: it is done.
	Left int
	// Waits says in words what the next step waits for. At the end: who made no handshake with the new keys; empty if all did.
	Waits string
}

// Outlived is a Wire whose tunnels are another process's, which at the end of the pod waits for this one.
type Outlived interface {
	// Left says that this process has ended its use of the wire.
	Left() error
}

// Local is this gateway.
type Local struct {
	// Fabric is its address inside the wire, IPv4.
	Fabric netip.Addr
	// Listen is the UDP port of tunnel 0; tunnel i has Listen+i (WireGuard), or all share it (IPsec).
	Listen uint16
	// Tunnels to each peer that has as many, 1 to MaxTunnels; 0: 1.
	Tunnels int
	// PSK is the secret of the clusterset. Each pair of gateways uses a key derived from it.
	PSK []byte
	// MTU of the devices, bytes; 0: DefaultMTU.
	MTU int
}

// Peer is another gateway.
type Peer struct {
	// Name is for errors and logs, e.g. the name of its Endpoint.
	Name   string
	Fabric netip.Addr
	// Address and Port reach its tunnel 0. Without an Address this gateway waits for the other's call.
	Address netip.Addr
	Port    uint16
	// Identity is what the peer's own wire returned from Identity.
	Identity map[string]string
	// Tunnels that the peer has; 0: 1.
	Tunnels int
	// Keepalive is how often an idle tunnel sends something, so that mappings of NAT boxes on the way stay; 0: 25 s.
	Keepalive time.Duration
}

// Devices are what the programs attach to and redirect into. They are L3: packets have no Ethernet header.
type Devices struct {
	// Ifindexes of all devices on which packets of peers come in.
	Ifindexes []int
	// Ports besides those of Ports(driver, Local) at which it listens: of tunnels that are wanted no longer and still take packets.
	Ports []uint16
	// Fleeting: the devices, or the keys in them, change when the pod of this process ends: flows must move away before if no packet is
	// to be lost.
	Fleeting bool
	// Peers says into which of the devices packets to a peer's fabric address may go: flows are spread over them.
	// While a key changes it leaves out that tunnel, so follow it to lose no packet.
	Peers map[netip.Addr][]int
	// MTU of the devices, bytes of IPv4 packet.
	MTU int
}

// Status of a peer.
type Status struct {
	// Handshake is when the keys in use were agreed on, latest of all tunnels; zero: never.
	Handshake time.Time
	// Tunnels that have keys.
	Tunnels int
	// Endpoint is the address that the peer was last heard from (or is called at) in the underlay.
	Endpoint netip.AddrPort
	// RxBytes and TxBytes of the packets inside, since the device or the SA was made.
	RxBytes, TxBytes uint64
	// Error says in a sentence what is wrong; empty if nothing is known to be.
	Error string
}

// header is what the overlay's header adds to a pod's packet: Ethernet 14, VXLAN 8, UDP 8, IPv4 20 bytes. On an encrypted
// wire it is always IPv4, between fabric addresses.
const header = 50

// wireOverhead is what a wire adds to a packet that goes into its device, without the outer IP header: WireGuard UDP 8,
// header 16, tag 16; ESP with AES-GCM in UDP: UDP 8, header 8, IV 8, padding up to 3, trailer 2, tag 16 (RFC 4106).
var wireOverhead = map[string]int{WireGuardDriver: 40, IPsecDriver: 45}

// Overhead is by how many bytes a pod's packet is longer in the underlay between two gateways: the overlay's header plus
// what the wire adds, with an outer IPv4 header (20 bytes) or IPv6 header (40 bytes; v6). An unknown driver gets the
// largest of all.
func Overhead(driver string, v6 bool) int {
	outer := 20
	if v6 {
		outer = 40
	}
	switch d, _ := Driver(driver); d { // "" if it is unknown
	case VXLANDriver:
		return header - 20 + outer
	case WireGuardDriver:
		return header + wireOverhead[WireGuardDriver] + outer
	default:
		return header + wireOverhead[IPsecDriver] + outer
	}
}

// DeviceMTU is the largest MTU of a wire's device over an underlay of the given MTU. The vxlan wire has no such device.
func DeviceMTU(driver string, underlay int, v6 bool) int {
	return underlay - (Overhead(driver, v6) - header)
}

// Ports are the UDP ports at which a wire listens, to be let in by firewalls; none of an unknown one. That of the vxlan wire netdev
// lets in.
func Ports(driver string, l Local) []uint16 {
	switch d, _ := Driver(driver); d { // "" if it is unknown
	case WireGuardDriver:
		out := []uint16{l.Listen + MaxTunnels}
		for i := range max(l.Tunnels, 1) {
			out = append(out, l.Listen+uint16(i))
		}
		return out
	case IPsecDriver:
		return []uint16{l.Listen}
	}
	return nil
}

// Driver is the name by which a driver is known; `ipsec` is another word for libreswan.
func Driver(name string) (string, error) {
	switch name {
	case WireGuardDriver, VXLANDriver, IPsecDriver:
		return name, nil
	case "ipsec":
		return IPsecDriver, nil
	}
	return "", fmt.Errorf("cable driver %q: use %s, %s or %s", name, WireGuardDriver, IPsecDriver, VXLANDriver)
}

// check fills in what l leaves out.
func (l Local) check() (Local, error) {
	if !l.Fabric.Is4() {
		return l, fmt.Errorf("fabric address %q: an IPv4 address is needed", l.Fabric)
	}
	if l.Tunnels == 0 {
		l.Tunnels = 1
	}
	if l.Tunnels < 1 || l.Tunnels > MaxTunnels {
		return l, fmt.Errorf("%d tunnels: use 1 to %d", l.Tunnels, MaxTunnels)
	}
	if l.Listen == 0 || int(l.Listen)+MaxTunnels > 65535 {
		return l, fmt.Errorf("UDP port %d: use 1 to %d", l.Listen, 65535-MaxTunnels)
	}
	if len(l.PSK) == 0 {
		return l, fmt.Errorf("the PSK of the clusterset is empty: join again")
	}
	if l.MTU == 0 {
		l.MTU = DefaultMTU
	}
	return l, nil
}

// among is check, for a gateway with these peers: no two fabric addresses may be the same.
func (l Local) among(peers []Peer) (Local, error) {
	l, err := l.check()
	if err != nil {
		return l, err
	}
	return l, fabricClash(l, peers)
}

// fabricClash says whether two of the peers, or a peer and this gateway, have one fabric address.
func fabricClash(local Local, peers []Peer) error {
	seen := map[netip.Addr]string{local.Fabric: "this gateway"}
	for _, p := range peers {
		if !p.Fabric.Is4() {
			return fmt.Errorf("peer %s: fabric address %q: an IPv4 address is needed", p.Name, p.Fabric)
		}
		if other, ok := seen[p.Fabric]; ok {
			return fmt.Errorf("peer %s: fabric address %s is that of %s as well: one of the two must join again", p.Name, p.Fabric, other)
		}
		seen[p.Fabric] = p.Name
	}
	return nil
}
