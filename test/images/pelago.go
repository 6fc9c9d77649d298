package images

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// PelagoName is the reference of Pelago's image.
const PelagoName = "localhost/pelago:dev"

// PelagoPrograms returns the names of the image's programs, each from cmd/<name>.
func PelagoPrograms() []string {
	return []string{"pelago", "pelago-node", "pelago-agent", "pelago-dns", "pelago-hub"}
}

// pelagoPackages are the Debian packages from which Pelago's image takes programs.
var pelagoPackages = []string{"busybox-static", "iptables", "libgcc-s1",
	"strongswan-charon", "strongswan-swanctl", "libstrongswan-standard-plugins", "libcharon-extra-plugins"}

// Pelago is the image of all components; a container's command selects the
// binary. Binaries maps a binary's name to its file and has at least one entry.
// The node daemon's iptables, nftables and legacy variant, and the IKE daemon
// are those of the system; the daemon must use the variant of the node's
// kube-proxy.
func Pelago(system System, binaries map[string]string) (Image, error) {
	tables, err := system.xtables()
	var ike Layer
	if err == nil {
		ike, err = system.strongswan()
	}
	if err != nil {
		return Image{}, fmt.Errorf("gather iptables and the IKE daemon for %s: %w (Debian packages: %s)", PelagoName, err, strings.Join(pelagoPackages, ", "))
	}
	base := slices.Concat(tables, system.busybox("sh", "cat", "ls", "mv", "rm", "ps", "kill", "sleep", "grep", "ip", "env"), Accounts())
	layers := []Layer{base, ike}
	image := Image{Name: PelagoName, Arch: system.Arch, Layers: layers}
	// One layer per program: a rebuilt one leaves the others as they are.
	for _, name := range PelagoPrograms() {
		if file, ok := binaries[name]; ok {
			image.Layers = append(image.Layers, Layer{{Path: "/usr/bin/" + name, Source: file}})
		}
	}
	if len(image.Layers) == len(layers) {
		return Image{}, errors.New("assemble " + PelagoName + ": none of its programs is built")
	}
	return image, nil
}

// xtables gathers both flavours of iptables with their commands and extensions.
func (s System) xtables() (Layer, error) {
	const dir = "/usr/sbin"
	flavours := map[string][]string{
		"xtables-nft-multi": {
			"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore",
			"iptables-nft", "iptables-nft-save", "iptables-nft-restore", "ip6tables-nft", "ip6tables-nft-save", "ip6tables-nft-restore"},
		"xtables-legacy-multi": {
			"iptables-legacy", "iptables-legacy-save", "iptables-legacy-restore",
			"ip6tables-legacy", "ip6tables-legacy-save", "ip6tables-legacy-restore"},
	}
	var files []string
	var links Layer
	for program, names := range flavours {
		files = append(files, filepath.Join(dir, program))
		for _, name := range names {
			links = append(links, File{Path: filepath.Join(dir, name), Link: program})
		}
	}
	extensions := filepath.Join("/usr/lib", architectures[s.Arch].triplet, "xtables")
	entries, err := os.ReadDir(filepath.Join(s.Root, extensions))
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		extension := filepath.Join(extensions, entry.Name())
		// implemented by another file
		if target, err := os.Readlink(filepath.Join(s.Root, extension)); err == nil {
			links = append(links, File{Path: extension, Link: target})
			continue
		}
		files = append(files, extension)
	}
	layer, err := s.Programs(files...)
	return append(layer, links...), err
}

// charon is the IKE daemon of Debian's strongswan-charon; it loads plugins from the directory below
// and writes its pid file to /var/run.
const charon = "/usr/lib/ipsec/charon"

// charonPlugins are those that the configuration of the IPsec wire (dataplane/cable) loads.
var charonPlugins = []string{
	"random", "nonce", "openssl", "aes", "gcm", "kdf", "sha1", "sha2", "hmac", "pem", "pkcs1", "pkcs8", "x509", "pubkey", "revocation",
	"constraints", "socket-default", "vici", "kernel-netlink", "kernel-libipsec",
}

// strongswan gathers the IKE daemon with its plugins and their libraries.
func (s System) strongswan() (Layer, error) {
	// The C library loads libgcc_s when a thread of the daemon ends.
	files := []string{charon, filepath.Join("/lib", architectures[s.Arch].triplet, "libgcc_s.so.1")}
	for _, p := range charonPlugins {
		files = append(files, filepath.Join(filepath.Dir(charon), "plugins", fmt.Sprintf("libstrongswan-%s.so", p)))
	}
	layer, err := s.Programs(files...)
	return append(layer, File{Path: "/var/run", Link: "/run"}), err
}

// busybox is the path of the program in Debian's busybox-static.
const busybox = "/bin/busybox"

// Busybox returns a static busybox with links in /bin for the given commands.
func Busybox(commands ...string) Layer { return Host().busybox(commands...) }

func (s System) busybox(commands ...string) Layer {
	layer := Layer{{Path: busybox, Source: filepath.Join(s.Root, busybox)}}
	for _, command := range commands {
		layer = append(layer, File{Path: "/bin/" + command, Link: "busybox"})
	}
	return layer
}

// Accounts returns the files in /etc that the C library and shells read.
func Accounts() Layer {
	return Layer{
		{Path: "/etc/passwd", Content: "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"},
		{Path: "/etc/group", Content: "root:x:0:\nnogroup:x:65534:\n"},
		{Path: "/etc/nsswitch.conf", Content: "passwd: files\ngroup: files\nhosts: files dns\n"},
	}
}
