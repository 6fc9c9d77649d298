package apiserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// pki is a certificate authority of one server and what it has signed: paths of PEM files, and the
// PEM texts that a client needs.
type pki struct {
	caFile, caKeyFile         string
	serverFile, serverKeyFile string
	serviceAccountKeyFile     string // signs ServiceAccount tokens
	serviceAccountPubFile     string
	// signs the client certificate by which aggregated APIs recognize the API server
	frontCAFile             string
	frontFile, frontKeyFile string
	ca, admin, adminKey     []byte
}

// frontName is that of the API server at aggregated APIs.
const frontName = "front-proxy-client"

func newPKI(dir string) (*pki, error) {
	p, err := makePKI(dir)
	if err != nil {
		return nil, fmt.Errorf("make certificates: %w", err)
	}
	return p, nil
}

func makePKI(dir string) (*pki, error) {
	file := func(name string) string { return filepath.Join(dir, name) }
	p := &pki{
		caFile: file("ca.crt"), caKeyFile: file("ca.key"),
		serverFile: file("server.crt"), serverKeyFile: file("server.key"),
		serviceAccountKeyFile: file("sa.key"), serviceAccountPubFile: file("sa.pub"),
		frontCAFile: file("front-ca.crt"), frontFile: file("front.crt"), frontKeyFile: file("front.key"),
	}
	ca := &authority{}
	var err error
	var caKey []byte
	if p.ca, caKey, err = ca.create(); err != nil {
		return nil, err
	}
	server, serverKey, err := ca.sign(&x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		DNSNames:    []string{"localhost", "kubernetes.default.svc"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return nil, err
	}
	p.admin, p.adminKey, err = ca.sign(&x509.Certificate{
		Subject:     pkix.Name{CommonName: "administrator", Organization: []string{"system:masters"}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return nil, err
	}
	front := &authority{}
	frontCA, _, err := front.create()
	if err != nil {
		return nil, err
	}
	frontCert, frontKey, err := front.sign(&x509.Certificate{
		Subject:     pkix.Name{CommonName: frontName},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	saKey, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return nil, err
	}
	for path, content := range map[string][]byte{
		p.caFile: p.ca, p.caKeyFile: caKey,
		p.serverFile: server, p.serverKeyFile: serverKey,
		p.frontCAFile: frontCA, p.frontFile: frontCert, p.frontKeyFile: frontKey,
		p.serviceAccountKeyFile: saKey,
		p.serviceAccountPubFile: pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}),
	} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	last int64 // serial number
}

// create makes the authority's own certificate and key, both as PEM.
func (a *authority) create() (cert, key []byte, err error) {
	return a.sign(&x509.Certificate{
		Subject:               pkix.Name{CommonName: "pelago test authority"},
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	})
}

// sign completes the template and returns certificate and key as PEM. The first one is self-signed.
func (a *authority) sign(template *x509.Certificate) (cert, key []byte, err error) {
	a.last++
	template.SerialNumber = big.NewInt(a.last)
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = time.Now().Add(24 * time.Hour)
	if !template.IsCA {
		template.KeyUsage = x509.KeyUsageDigitalSignature
	}
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, own
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &own.PublicKey, signer)
	if err != nil {
		return nil, nil, err
	}
	if a.cert == nil {
		if a.cert, err = x509.ParseCertificate(der); err != nil {
			return nil, nil, err
		}
		a.key = own
	}
	key, err = encodeKey(own)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key, err
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}
