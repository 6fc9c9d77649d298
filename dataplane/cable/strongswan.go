package cable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// confName, socketName and leftName are what lies in the directory that pelago-node and the IKE daemon share. The last one says
// that pelago-node has ended and needs the daemon no more.
const (
	confName   = "strongswan.conf"
	socketName = "charon.vici"
	leftName   = "left"
)

// userspaceNote begins a configuration with ESP in the daemon.
const userspaceNote = "# ESP in this daemon: the kernel has none.\n"

// Charon says how the IKE daemon beside the gateway is to run. The daemon needs the host's network, NET_ADMIN, and a
// directory for the socket that it shares with pelago-node.
type Charon struct {
	// Socket is the path of the vici socket that it listens on.
	Socket string
	// Port is the one UDP port for IKE and ESP: the cable port.
	Port uint16
	// Userspace: ESP in the daemon over a TUN, for kernels without ESP. One core, no offloads.
	Userspace bool
	// Log is a file; "": standard error.
	Log string
}

// plugins besides the back ends of the kernel: AES-GCM, SHA-2 and (elliptic) Diffie-Hellman by OpenSSL, files and
// certificates, sockets, vici.
const plugins = "random nonce openssl aes gcm kdf sha1 sha2 hmac pem pkcs1 pkcs8 x509 pubkey revocation constraints socket-default vici"

// File is the content of the daemon's strongswan.conf. Everything else it is told through vici.
func (c Charon) File() string {
	backend, route, table := "kernel-netlink", "no", 0
	if c.Userspace {
		// The first that offers ESP is taken; kernel-netlink stays for addresses and routes. Its TUN needs the routes that it makes.
		backend, route, table = "kernel-libipsec kernel-netlink", "yes", 220
	}
	log := "stderr" // standard output it would buffer
	if c.Log != "" {
		log = "log"
	}
	var b strings.Builder
	if c.Userspace {
		b.WriteString(userspaceNote)
	}
	fmt.Fprintf(&b, "charon {\n  load_modular = no\n  load = %s %s\n", plugins, backend)
	// Port 500 is left to others: with one port on both sides IKE goes by the NAT traversal port from its first packet.
	fmt.Fprintf(&b, "  port = 0\n  port_nat_t = %d\n", c.Port)
	fmt.Fprintf(&b, "  install_routes = %s\n  routing_table = %d\n  install_virtual_ip = no\n", route, table)
	// A dead peer is given up after 1.5 * (1 + 1.6 + 1.6^2 + 1.6^3) = 14 s. Failover does not wait for it.
	b.WriteString("  retransmit_timeout = 1.5\n  retransmit_base = 1.6\n  retransmit_tries = 3\n  retransmit_limit = 10\n")
	// After a rekey packets on the way by the old keys are still taken.
	b.WriteString("  delete_rekeyed_delay = 5\n  make_before_break = yes\n")
	fmt.Fprintf(&b, "  plugins {\n    vici {\n      socket = unix://%s\n    }\n    kernel-libipsec {\n      allow_peer_ts = yes\n    }\n  }\n", c.Socket)
	b.WriteString("  filelog {\n    " + log + " {\n")
	if c.Log != "" {
		fmt.Fprintf(&b, "      path = %s\n", c.Log)
	}
	b.WriteString("      default = 1\n      enc = 0\n      net = 0\n      knl = 0\n      time_format = %b %e %T\n      time_add_ms = yes\n      flush_line = yes\n    }\n  }\n}\n")
	return b.String()
}

// write puts the configuration into the directory and says whether it is another than before.
func (c Charon) write(dir string) (changed bool, err error) {
	file, text := filepath.Join(dir, confName), c.File()
	old, err := os.ReadFile(file)
	if err == nil && string(old) == text {
		return false, nil
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		// By renaming: the supervisor must not read half of it.
		if err = os.WriteFile(file+".new", []byte(text), 0o600); err == nil {
			err = os.Rename(file+".new", file)
		}
	}
	if err != nil {
		return false, fmt.Errorf("write the configuration of the IKE daemon: %w: does the pod have the container ike? join again with --cable-driver %s", err, IPsecDriver)
	}
	return true, nil
}
