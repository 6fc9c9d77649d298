package images

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// PelagoName is the reference of Pelago's image.
const PelagoName = "localhost/pelago:dev"

// PelagoPrograms returns the names of the image's programs, each from cmd/<name>.
func PelagoPrograms() []string {
	return []string{"pelago", "pelago-node", "pelago-agent", "pelago-dns", "pelago-hub"}
}

// Pelago is the one image of all components; the command of a container selects
// the program. Binaries maps a program's name to its file and holds at least
// one. The iptables of the node daemon, nftables and legacy flavour, and the IKE
// daemon are those of the machine; the daemon must use the flavour of the node's
// kube-proxy.
func Pelago(binaries map[string]string) (Image, error) {
	tables, err := xtables()
	if err != nil {
		return Image{}, fmt.Errorf("gather iptables for %s: %w (Debian package: iptables)", PelagoName, err)
	}
	base := slices.Concat(tables, Busybox("sh", "cat", "ls", "ps", "kill", "sleep", "grep", "ip", "env"), Accounts())
	ike, err := strongswan()
	if err != nil {
		return Image{}, fmt.Errorf("gather the IKE daemon for %s: %w (Debian packages: strongswan-charon, strongswan-swanctl, "+
			"libstrongswan-standard-plugins, libcharon-extra-plugins)", PelagoName, err)
	}
	layers := []Layer{base, ike}
	image := Image{Name: PelagoName, Layers: layers}
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
func xtables() (Layer, error) {
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
	extensions, err := filepath.Glob("/usr/lib/*/xtables/*.so")
	if err != nil {
		return nil, err
	}
	if len(extensions) == 0 {
		return nil, fmt.Errorf("no extensions in /usr/lib/*/xtables: %w", fs.ErrNotExist)
	}
	for _, extension := range extensions {
		target, err := os.Readlink(extension)
		switch {
		case err == nil: // an extension that another file implements
			links = append(links, File{Path: extension, Link: target})
		default:
			files = append(files, extension)
		}
	}
	layer, err := Programs(files...)
	return append(layer, links...), err
}
