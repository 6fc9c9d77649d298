package cable

import (
	"fmt"
	"strings"
)

// Charon says how the IKE daemon beside the gateway is to run. The daemon needs the host's network, NET_ADMIN, and a
// directory for the socket that it shares with pelago-node.
type Charon struct {
	// Socket is the path of the vici socket that it listens on.
	Socket string
	// Port is the one UDP port for IKE and ESP: the cable port.
	Port uint16
	// Userspace: ESP in the daemon over a TUN, for kernels without ESP. One core, no offloads.
	Userspace bool
	// Log is a file; "": standard output.
	Log string
}

// plugins besides the back ends of the kernel: AES-GCM, SHA-2 and (elliptic) Diffie-Hellman by OpenSSL, files and
// certificates, sockets, vici.
const plugins = "random nonce openssl aes gcm kdf sha1 sha2 hmac pem pkcs1 pkcs8 x509 pubkey revocation constraints socket-default vici"

// File is the content of the daemon's strongswan.conf. Everything else it is told through vici.
func (c Charon) File() string {
	backend, route := "kernel-netlink", "no"
	if c.Userspace {
		// The first that offers ESP is taken; kernel-netlink stays for addresses and routes. Its TUN needs the routes that it makes.
		backend, route = "kernel-libipsec kernel-netlink", "yes"
	}
	log := "stdout"
	if c.Log != "" {
		log = "log"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "charon {\n  load_modular = no\n  load = %s %s\n", plugins, backend)
	// Port 500 is left to others: with one port on both sides IKE goes by the NAT traversal port from its first packet.
	fmt.Fprintf(&b, "  port = 0\n  port_nat_t = %d\n", c.Port)
	fmt.Fprintf(&b, "  install_routes = %s\n  install_virtual_ip = no\n", route)
	// A dead peer is given up after 1.5 * (1 + 1.6 + 1.6^2 + 1.6^3) = 14 s. Failover does not wait for it.
	b.WriteString("  retransmit_timeout = 1.5\n  retransmit_base = 1.6\n  retransmit_tries = 3\n  retransmit_limit = 10\n")
	// After a rekey packets on the way by the old keys are still taken.
	b.WriteString("  delete_rekeyed_delay = 5\n  make_before_break = yes\n")
	fmt.Fprintf(&b, "  plugins {\n    vici {\n      socket = unix://%s\n    }\n    kernel-libipsec {\n      allow_peer_ts = yes\n    }\n  }\n", c.Socket)
	b.WriteString("  filelog {\n    " + log + " {\n")
	if c.Log != "" {
		fmt.Fprintf(&b, "      path = %s\n", c.Log)
	}
	b.WriteString("      default = 1\n      time_format = %b %e %T\n      time_add_ms = yes\n      flush_line = yes\n    }\n  }\n}\n")
	return b.String()
}
