package images

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
)

// charon is the IKE daemon of Debian's strongswan-charon; it loads plugins from the directory below and writes its pid file
// to /var/run.
const charon = "/usr/lib/ipsec/charon"

// charonPlugins are those that the configuration of the IPsec wire (dataplane/cable) loads.
var charonPlugins = []string{
	"random", "nonce", "openssl", "aes", "gcm", "kdf", "sha1", "sha2", "hmac", "pem", "pkcs1", "pkcs8", "x509", "pubkey", "revocation",
	"constraints", "socket-default", "vici", "kernel-netlink", "kernel-libipsec",
}

// strongswan gathers the IKE daemon with its plugins and their libraries.
func strongswan() (Layer, error) {
	files := []string{charon}
	for _, p := range charonPlugins {
		files = append(files, filepath.Join(filepath.Dir(charon), "plugins", fmt.Sprintf("libstrongswan-%s.so", p)))
	}
	// The C library loads it when a thread of the daemon ends.
	gcc, err := filepath.Glob("/lib/*/libgcc_s.so.1")
	if err != nil || len(gcc) == 0 {
		return nil, fmt.Errorf("find /lib/*/libgcc_s.so.1 (Debian package libgcc-s1): %w", errors.Join(err, fs.ErrNotExist))
	}
	layer, err := Programs(append(files, gcc...)...)
	return append(layer, File{Path: "/var/run", Link: "/run"}), err
}
