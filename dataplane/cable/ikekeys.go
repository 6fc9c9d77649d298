//go:build linux

package cable

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// maxIKEKeys bounds the public keys that a peer may publish: two in a rotation.
const maxIKEKeys = 4

// Files in IPsecOptions.Keys: PKCS #8 in PEM. The next key exists while a rotation publishes it.
const (
	ikeKeyFile     = "ike.key"
	ikeNextKeyFile = "ike-next.key"
)

// ikeKeys are the keys with which this gateway authenticates itself: ECDSA P-256, raw public keys in
// IKEv2 (RFC 7670). Peers know them from Identity; there is no authority, and a peer's key is valid
// as long as the peer is one.
type ikeKeys struct {
	dir keyDir
	// own is in use; next, nil: none, is published and replaces it after settle.
	own, next *ecdsa.PrivateKey
	// request is the last one that rotated the keys; since is when next was first published by this
	// process.
	request string
	since   time.Time
	settle  time.Duration
}

func openIKEKeys(dir string, settle time.Duration) (*ikeKeys, error) {
	k := &ikeKeys{dir: keyDir(dir), settle: settle, since: time.Now()}
	var err error
	if k.own, err = k.load(ikeKeyFile); errors.Is(err, fs.ErrNotExist) {
		k.own, err = k.make(ikeKeyFile)
	}
	if err != nil {
		return nil, err
	}
	if k.next, err = k.load(ikeNextKeyFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if _, k.request, err = k.dir.rotation(); err != nil {
		return nil, err
	}
	return k, nil
}

func (k *ikeKeys) load(name string) (*ecdsa.PrivateKey, error) {
	path := filepath.Join(string(k.dir), name)
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the private key of IKE: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("read the private key of IKE: no PEM in %s: delete the file to get a new key", path)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read the private key of IKE in %s: %w: delete the file to get a new key", path, err)
	}
	own, ok := key.(*ecdsa.PrivateKey)
	if !ok || own.Curve != elliptic.P256() {
		return nil, fmt.Errorf("read the private key of IKE in %s: a key of ECDSA P-256 is needed: delete the file to get one", path)
	}
	return own, nil
}

// make generates a key and stores it in place of the file's.
func (k *ikeKeys) make(name string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a private key of IKE: %w", err)
	}
	text, err := privatePEM(key)
	if err != nil {
		return nil, err
	}
	return key, k.dir.write(filepath.Join(string(k.dir), name), strings.TrimSpace(text))
}

// published are the public keys for Identity, the one in use first.
func (k *ikeKeys) published() (string, error) {
	var out []string
	for _, key := range []*ecdsa.PrivateKey{k.own, k.next} {
		if key == nil {
			continue
		}
		der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
		if err != nil {
			return "", fmt.Errorf("encode the public key of IKE: %w", err)
		}
		out = append(out, base64.StdEncoding.EncodeToString(der))
	}
	return strings.Join(out, ","), nil
}

// rotate begins a rotation, unless the request was performed before.
func (k *ikeKeys) rotate(request string) error {
	if err := validRequest(request); err != nil || request == k.request {
		return err
	}
	if k.next == nil {
		next, err := k.make(ikeNextKeyFile)
		if err != nil {
			return err
		}
		k.next, k.since = next, time.Now()
	}
	if err := k.dir.setRequest(request); err != nil {
		return err
	}
	k.request = request
	return nil
}

// settled puts the next key in place of the one in use once it has been published for settle.
func (k *ikeKeys) settled(now time.Time) (bool, error) {
	if k.next == nil || now.Sub(k.since) < k.settle {
		return false, nil
	}
	if err := os.Rename(filepath.Join(string(k.dir), ikeNextKeyFile), filepath.Join(string(k.dir), ikeKeyFile)); err != nil {
		return false, fmt.Errorf("rotate the key of IKE: %w", err)
	}
	k.own, k.next = k.next, nil
	return true, nil
}

// rotation is the progress of the last request.
func (k *ikeKeys) rotation() Rotation {
	if k.next == nil {
		return Rotation{Request: k.request}
	}
	return Rotation{Request: k.request, Left: 1, Waits: fmt.Sprintf("the next key is published; it is used from %s on", k.since.Add(k.settle).UTC().Format(time.RFC3339))}
}

func privatePEM(key *ecdsa.PrivateKey) (string, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", fmt.Errorf("encode the private key of IKE: %w", err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), nil
}

func publicPEM(der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

// peerKeys parses the public keys that a peer publishes, to PEM; none: it has only the PSK.
func peerKeys(identity map[string]string) (out []string, err error) {
	field := identity[IdentityIKEKeys]
	if field == "" {
		return nil, nil
	}
	texts := strings.Split(field, ",")
	if len(texts) > maxIKEKeys {
		return nil, fmt.Errorf("it publishes %d IKE keys, want at most %d", len(texts), maxIKEKeys)
	}
	for _, text := range texts {
		der, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, fmt.Errorf("its IKE key %q: %w", text, err)
		}
		key, err := x509.ParsePKIXPublicKey(der)
		if err != nil {
			return nil, fmt.Errorf("its IKE key %q: %w", text, err)
		}
		if public, ok := key.(*ecdsa.PublicKey); !ok || public.Curve != elliptic.P256() {
			return nil, fmt.Errorf("its IKE key %q is none of ECDSA P-256", text)
		}
		out = append(out, publicPEM(bytes.Clone(der)))
	}
	return out, nil
}
