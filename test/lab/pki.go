package lab

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// authority is a certificate authority with its files in a directory.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte // the certificate
}

// keyPair is a certificate with its key, both PEM.
type keyPair struct{ cert, key []byte }

// identity is the subject of a certificate.
type identity struct {
	name  string   // common name: the user
	orgs  []string // organizations: the groups
	hosts []string // addresses and DNS names; none for a client
}

// openAuthority loads NAME.crt and NAME.key from dir, or makes them.
func openAuthority(dir, name string) (*authority, error) {
	certFile, keyFile := filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	if certPEM, err := os.ReadFile(certFile); err == nil {
		keyPEM, err := os.ReadFile(keyFile)
		if err != nil {
			return nil, fmt.Errorf("load authority %s: %w", name, err)
		}
		return parseAuthority(dir, certPEM, keyPEM)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make authority %s: %w", name, err)
	}
	t, err := leaf(identity{name: name})
	if err != nil {
		return nil, err
	}
	t.IsCA, t.BasicConstraintsValid = true, true
	t.KeyUsage, t.ExtKeyUsage = x509.KeyUsageCertSign|x509.KeyUsageDigitalSignature, nil
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("make authority %s: %w", name, err)
	}
	pair, err := encode(der, key)
	if err != nil {
		return nil, err
	}
	// The key first: a certificate in place means that both are.
	if err := errors.Join(writeFile(keyFile, pair.key, 0o600), writeFile(certFile, pair.cert, 0o644)); err != nil {
		return nil, fmt.Errorf("write authority %s: %w", name, err)
	}
	return parseAuthority(dir, pair.cert, pair.key)
}

func parseAuthority(dir string, certPEM, keyPEM []byte) (*authority, error) {
	certBlock, _ := pem.Decode(certPEM)
	keyBlock, _ := pem.Decode(keyPEM)
	if certBlock == nil || keyBlock == nil {
		return nil, fmt.Errorf("load the authority in %s: not PEM", dir)
	}
	cert, err := x509.ParseCertificate(certBlock.Bytes)
	if err != nil {
		return nil, fmt.Errorf("load the authority in %s: %w", dir, err)
	}
	key, err := x509.ParsePKCS8PrivateKey(keyBlock.Bytes)
	if err != nil {
		return nil, fmt.Errorf("load the authority in %s: %w", dir, err)
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("load the authority in %s: its key is no ECDSA key", dir)
	}
	return &authority{dir: dir, cert: cert, key: ec, pem: certPEM}, nil
}

// issue makes a certificate for id.
func (a *authority) issue(id identity) (keyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return keyPair{}, fmt.Errorf("issue a certificate for %s: %w", id.name, err)
	}
	t, err := leaf(id)
	if err != nil {
		return keyPair{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return keyPair{}, fmt.Errorf("issue a certificate for %s: %w", id.name, err)
	}
	return encode(der, key)
}

// issueFiles issues a certificate into NAME.crt and NAME.key of the
// authority's directory, unless they are there.
func (a *authority) issueFiles(name string, id identity) error {
	certFile := filepath.Join(a.dir, name+".crt")
	if _, err := os.Stat(certFile); err == nil {
		return nil
	}
	pair, err := a.issue(id)
	if err != nil {
		return err
	}
	return errors.Join(writeFile(filepath.Join(a.dir, name+".key"), pair.key, 0o600), writeFile(certFile, pair.cert, 0o644))
}

// leaf fills in a leaf certificate for id, valid for a year.
func leaf(id identity) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: id.name, Organization: id.orgs},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().AddDate(1, 0, 0),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, host := range id.hosts {
		t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
		if ip := net.ParseIP(host); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, host)
		}
	}
	return t, nil
}

// serviceAccountKey writes the key pair that signs service account tokens,
// unless it is there.
func serviceAccountKey(dir string) error {
	public := filepath.Join(dir, "sa.pub")
	if _, err := os.Stat(public); err == nil {
		return nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make the service account key: %w", err)
	}
	pair, err := encode(nil, key)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return fmt.Errorf("make the service account key: %w", err)
	}
	return errors.Join(writeFile(filepath.Join(dir, "sa.key"), pair.key, 0o600),
		writeFile(public, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o644))
}

func encode(der []byte, key *ecdsa.PrivateKey) (keyPair, error) {
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return keyPair{}, fmt.Errorf("encode a private key: %w", err)
	}
	return keyPair{
		cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
	}, nil
}
