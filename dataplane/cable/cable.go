// Package cable makes the wires between the gateways of two clusters: devices that carry packets
// from this gateway's fabric address to that of another gateway, encrypted or in the clear.
// pelago-node calls it on gateways, attaches the programs to the devices and selects gateway and
// tunnel of each flow. The package works in the network namespace of the calling thread, knows no
// Kubernetes and does no DNS lookups.
package cable

import (
	"cmp"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
	"unicode"
)

// Drivers, as in --cable-driver and Endpoint.spec.backend.
const (
	WireGuardDriver = "wireguard"
	IPsecDriver     = "libreswan"
	VXLANDriver     = "vxlan"
)

// Keys of what Identity returns and Peer.Identity holds, as in Endpoint.spec.backend_config.
const (
	// IdentityPublicKey lists the WireGuard keys in base64, one per tunnel, comma-separated.
	IdentityPublicKey = "publicKey"
	// IdentityStandbyKey is the key of the standby tunnel, which carries packets while another
	// tunnel's key is changed.
	IdentityStandbyKey = "publicKeyStandby"
	// IdentityIKE is how an IPsec gateway authenticates itself to peers without a key: psk.
	IdentityIKE = "ike"
	// IdentityIKEKeys are the public keys by which an IPsec gateway authenticates itself:
	// SubjectPublicKeyInfo of ECDSA P-256 in base64, comma-separated; absent: it has only the PSK.
	IdentityIKEKeys = "ikePublicKeys"
	// IdentityESP is where an IPsec gateway does ESP: ESPKernel or ESPUserspace. Absent until its
	// IKE daemon was reached.
	IdentityESP = "esp"
	// IdentityTunnels is the number of tunnels, decimal; absent: one.
	IdentityTunnels = "tunnels"
	// IdentityDraining lists tunnels by number, comma-separated: they still receive, but peers must
	// not send into them.
	IdentityDraining = "draining"
)

// Values of IdentityESP.
const (
	ESPKernel    = "kernel"
	ESPUserspace = "userspace"
)

// MaxTunnels bounds Local.Tunnels. WireGuard's standby tunnel has this number, so its UDP port is
// Listen+MaxTunnels.
const MaxTunnels = 4

// DefaultMTU of a wire's device, bytes: fits every wire on an underlay of 1,500 bytes.
const DefaultMTU = 1420

// Wire carries cable packets between this gateway and others.
type Wire interface {
	// Ensure reconciles devices and peers. It is idempotent and changes only what differs, so
	// traffic is not disturbed. A peer that fails does not affect the others; the error names it.
	// Call it every few seconds: it initiates connections again and adds tunnels to Devices.Peers
	// once they have keys.
	Ensure(local Local, peers []Peer) (Devices, error)
	// Identity is what peers must know to reach this gateway. Ensure may change it.
	Identity() (map[string]string, error)
	// Status is the state of each peer of the last Ensure, by fabric address.
	Status() (map[netip.Addr]Status, error)
	// Remove deletes all that Ensure made, except keys on disk.
	Remove() error
	// Close stops what runs inside this process. Kernel devices stay and keep working.
	Close() error
	// Capabilities are what this wire has and others have not. They do not change.
	Capabilities() Capabilities
}

// Capabilities are what only some wires have; a nil field: this one has it not.
type Capabilities struct {
	// Queues are those of a wire that carries packets in this process.
	Queues Queues
	// Keys are static ones, which are rotated on request.
	Keys Keys
	// Leave notifies the process of the pod to which the tunnels belong, and which at termination
	// waits for this one, that this one no longer uses the wire.
	Leave func() error
}

// Queues are those of a wire in this process.
type Queues interface {
	// Waiting reports whether packets are queued in either direction.
	Waiting() (bool, error)
}

// Keys are the static keys of a wire.
type Keys interface {
	// Rotate starts a rotation of all keys. The following calls of Ensure perform it, Identity
	// publishes it. A request, at most 64 printable characters, is performed once: repeating the
	// last one changes nothing, also after a restart.
	Rotate(request string) error
	// Rotation is the progress of the last request.
	Rotation() Rotation
}

// validRequest returns why a request of Rotate is refused.
func validRequest(request string) error {
	unprintable := func(r rune) bool { return !unicode.IsPrint(r) }
	switch {
	case request == "" || len(request) > 64 || strings.ContainsFunc(request, unprintable):
		return fmt.Errorf("request %q: use 1 to 64 printable characters", request)
	case strings.TrimSpace(request) != request:
		return errors.New("a request neither begins nor ends with a space")
	}
	return nil
}

// Rotation is the progress of a rotation of all keys.
type Rotation struct {
	// Request is that of the last Rotate; empty: none yet.
	Request string
	// Left is the number of tunnels that still have their old key; 0: complete.
	Left int
	// Waits describes what the next step is waiting for; once complete, the peers without a
	// handshake with the new keys, if any.
	Waits string
}

// Local is this gateway.
type Local struct {
	// Fabric is its address inside the wire, IPv4.
	Fabric netip.Addr
	// Listen is the UDP port of tunnel 0; tunnel i has Listen+i (WireGuard), or all share it
	// (IPsec).
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
	// Name is used in errors and logs, e.g. the name of its Endpoint.
	Name   string
	Fabric netip.Addr
	// Address and Port are the underlay endpoint of its tunnel 0. Without an Address this gateway
	// waits for the peer to initiate.
	Address netip.Addr
	Port    uint16
	// Identity is what the peer's own wire returned from Identity.
	Identity map[string]string
	// Tunnels of the peer; 0: 1.
	Tunnels int
	// Keepalive is the interval at which an idle tunnel sends a keepalive, which refreshes NAT
	// mappings on the path; 0: 25 s.
	Keepalive time.Duration
}

// Devices are what the programs attach to and redirect into. They are L3: packets have no Ethernet
// header.
type Devices struct {
	// Ifindexes of all devices that receive packets of peers.
	Ifindexes []int
	// Ports at which it listens in addition to Ports(driver, Local): those of retired tunnels,
	// which still receive.
	Ports []uint16
	// Fleeting: devices or keys do not survive the pod of this process, so flows must move to
	// another gateway before it ends.
	Fleeting bool
	// Peers lists, by fabric address of the peer, the devices that packets to it may be sent into;
	// flows are spread over them. A tunnel whose key is being changed is left out.
	Peers map[netip.Addr][]int
	// MTU of the devices, bytes of IPv4 packet.
	MTU int
}

// Status of a peer.
type Status struct {
	// Handshake is the time of the latest key exchange of all tunnels; zero: none.
	Handshake time.Time
	// Tunnels that have keys.
	Tunnels int
	// Endpoint is the underlay address that packets of the peer came from last, or else the
	// configured one.
	Endpoint netip.AddrPort
	// RxBytes and TxBytes of the inner packets, since the device or the SA was made.
	RxBytes, TxBytes uint64
	// Error describes the problem and its likely cause for an operator; empty: none known.
	Error string
}

// tunnelStatus is the state of one tunnel to a peer.
type tunnelStatus struct {
	handshake time.Time
	endpoint  netip.AddrPort
	rx, tx    uint64
	up        bool // has keys
}

// add adds a tunnel to the status of its peer, whose endpoint is that of the latest handshake. A
// standby tunnel is not counted, and has another port.
func (s *Status) add(t tunnelStatus, standby bool) {
	s.RxBytes, s.TxBytes = s.RxBytes+t.rx, s.TxBytes+t.tx
	if t.up && !standby {
		s.Tunnels++
	}
	if t.endpoint.IsValid() && (!s.Endpoint.IsValid() || t.handshake.After(s.Handshake) && !standby) {
		s.Endpoint = t.endpoint
	}
	if t.handshake.After(s.Handshake) {
		s.Handshake = t.handshake
	}
}

// header is the overlay's overhead for a pod's packet: Ethernet 14, VXLAN 8, UDP 8, IPv4 20 bytes.
// On an encrypted wire it is always IPv4, between fabric addresses.
const header = 50

// wireOverhead is the overhead of a wire for a packet sent into its device: WireGuard IPv4 20, UDP
// 8, header 16, tag 16; ESP with AES-GCM in UDP: IPv4 20, UDP 8, header 8, IV 8, padding up to 3,
// trailer 2, tag 16 (RFC 4106). On the vxlan wire the overlay's IPv4 header is the outer one.
var wireOverhead = map[string]int{WireGuardDriver: 60, IPsecDriver: 65, VXLANDriver: 0}

// Overhead is the number of bytes that are added to a pod's packet in the underlay between two
// gateways: the overlay's header plus that of the wire. That of an unknown driver is the largest of
// all.
func Overhead(driver string) int {
	driver, err := Driver(driver)
	if err != nil {
		driver = IPsecDriver
	}
	return header + wireOverhead[driver]
}

// DeviceMTU is the largest MTU of a wire's device over an underlay of the given MTU. The vxlan wire
// has no such device.
func DeviceMTU(driver string, underlay int) int {
	return underlay - (Overhead(driver) - header)
}

// tunMTU bounds what the IKE daemon (kernel-libipsec) reads from its TUN, whatever the MTU of the
// device, in bytes.
const tunMTU = 1400

// Limit is the MTU of pods' packets, at most mtu, through a gateway with that identity
// (Wire.Identity). ESP in the IKE daemon accepts packets of up to 1,400 bytes, whatever the MTU of
// the underlay.
func Limit(identity map[string]string, mtu int) int {
	if identity[IdentityESP] == ESPUserspace {
		return min(mtu, tunMTU-header)
	}
	return mtu
}

// Ports are the UDP ports at which a wire listens, for the firewall; none for an unknown driver,
// nor for vxlan, whose port netdev opens.
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

// Driver is the canonical name of a driver; `ipsec` is an alias of libreswan.
func Driver(name string) (string, error) {
	switch name {
	case WireGuardDriver, VXLANDriver, IPsecDriver:
		return name, nil
	case "ipsec":
		return IPsecDriver, nil
	}
	return "", fmt.Errorf("cable driver %q: use %s, %s or %s", name, WireGuardDriver, IPsecDriver, VXLANDriver)
}

// validate returns l with its defaults.
func (l Local) validate() (Local, error) {
	l.Tunnels = cmp.Or(l.Tunnels, 1)
	l.MTU = cmp.Or(l.MTU, DefaultMTU)
	switch {
	case !l.Fabric.Is4():
		return l, fmt.Errorf("fabric address %q: an IPv4 address is needed", l.Fabric)
	case l.Tunnels < 1 || l.Tunnels > MaxTunnels:
		return l, fmt.Errorf("%d tunnels: use 1 to %d", l.Tunnels, MaxTunnels)
	case l.Listen == 0 || int(l.Listen)+MaxTunnels > 65535:
		return l, fmt.Errorf("UDP port %d: use 1 to %d", l.Listen, 65535-MaxTunnels)
	case len(l.PSK) == 0:
		return l, errors.New("the PSK of the clusterset is empty: join again")
	}
	return l, nil
}

// distinctFabric returns the peers without those whose fabric address is that of this gateway or of
// a peer before; the error names them. Package peering refuses them, too.
func distinctFabric(local Local, peers []Peer) ([]Peer, error) {
	var out []Peer
	var errs []error
	seen := map[netip.Addr]string{local.Fabric: "this gateway"}
	for _, p := range peers {
		if !p.Fabric.Is4() {
			errs = append(errs, fmt.Errorf("peer %s: fabric address %q: an IPv4 address is needed", p.Name, p.Fabric))
			continue
		}
		if other, ok := seen[p.Fabric]; ok {
			errs = append(errs, fmt.Errorf("peer %s: fabric address %s is that of %s as well: one of the two must join again", p.Name, p.Fabric, other))
			continue
		}
		seen[p.Fabric] = p.Name
		out = append(out, p)
	}
	return out, errors.Join(errs...)
}

// pairKey derives a key of 32 bytes for two gateways from the clusterset's secret, so that the leak
// of one pair's key does not expose the others: HKDF-SHA-256 (RFC 5869) with the wire's name and
// both fabric addresses, the lower one first, as info.
func pairKey(psk []byte, wire string, a, b netip.Addr) ([32]byte, error) {
	if b.Less(a) {
		a, b = b, a
	}
	key, err := hkdf.Key(sha256.New, psk, nil, fmt.Sprintf("pelago %s %s %s", wire, a, b), 32)
	if err != nil {
		return [32]byte{}, fmt.Errorf("derive the key of %s and %s: %w", a, b, err)
	}
	return [32]byte(key), nil
}
