package hub

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net"
	"slices"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"github.com/pelago-net/pelago/deploy/manifests"
)

const (
	// authorityLife is the life of a certificate authority, which is never renewed by itself.
	authorityLife = 10 * 365 * 24 * time.Hour
	// certificateLife is the life of what an authority signs. It is renewed when less than a third
	// is left.
	certificateLife = 365 * 24 * time.Hour
)

// PKI holds the keys and certificates of a hub, by file name.
type PKI struct {
	// Kept are the authorities, the keys of ServiceAccount tokens and the key by which the API
	// server encrypts. None of them is ever made again: tokens and kubeconfigs in members, and the
	// data of etcd, depend on them.
	Kept map[string][]byte
	// Issued are certificates and kubeconfigs, which can be made again at any time.
	Issued map[string][]byte
}

// PKINames are the names that certificates have and kubeconfigs use. Empty ones stay as they are.
type PKINames struct {
	// APIServer and Etcd are host names and addresses of the servers.
	APIServer, Etcd []string
	// Karmada are those of pelago-hub for Karmada's tools, and KarmadaURL its address; empty:
	// there is none, or with an empty External it stays.
	Karmada    []string
	KarmadaURL string
	// Internal is the URL of the API server for the hub's own programs, External for everybody
	// else.
	Internal, External string
}

// authorities sign for different purposes: a certificate that the hub's API issues is none that
// etcd accepts.
var authorities = []string{"ca", "etcd-ca", "front-proxy-ca"}

// issued are the certificates, by file name.
var issued = []struct {
	name, authority, user string
	groups                []string
	hosts                 func(PKINames) []string // of a server
}{
	{"apiserver", "ca", "kube-apiserver", nil, func(n PKINames) []string { return n.APIServer }},
	{"apiserver-etcd", "etcd-ca", "kube-apiserver", nil, nil},
	{"etcd", "etcd-ca", "etcd", nil, func(n PKINames) []string { return n.Etcd }},
	{KarmadaName, "ca", "pelago-hub", nil, func(n PKINames) []string { return n.Karmada }},
	{"front-proxy-client", "front-proxy-ca", "front-proxy-client", nil, nil},
	{"controller-manager", "ca", "system:kube-controller-manager", nil, nil},
	// The ServiceAccount that has the rights. A certificate is renewed without the API server, a
	// token is not.
	{"hub", "ca", "system:serviceaccount:" + manifests.SystemNamespace + ":" + manifests.HubName,
		[]string{"system:serviceaccounts", "system:serviceaccounts:" + manifests.SystemNamespace}, nil},
	{AdminName, "ca", "pelago-admin", []string{"system:masters"}, nil},
}

// KarmadaName is the certificate of pelago-hub for Karmada's tools, which exists if they are
// served, and the context of AdminKubeconfig that leads there.
const KarmadaName = "karmada"

// AdminName is the certificate of the hub's administrator.
const AdminName = "admin"

// AdminKubeconfig is the file in PKI.Issued by which the hub's administrator reaches it.
const AdminKubeconfig = AdminName + ".kubeconfig"

// Complete makes what is missing, and issues certificates again that are not signed by their
// authority, have other names, or have less than a third of their life left at now. It returns the
// names of the certificates that it issued.
func (p *PKI) Complete(n PKINames, now time.Time) (renewed []string, err error) {
	if p.Kept == nil {
		p.Kept = map[string][]byte{}
	}
	if p.Issued == nil {
		p.Issued = map[string][]byte{}
	}
	if err := p.completeKept(now); err != nil {
		return nil, err
	}
	for _, c := range issued {
		authority, key, err := pair(p.Kept, c.authority)
		if err != nil {
			return nil, err
		}
		want := &x509.Certificate{Subject: pkix.Name{CommonName: c.user, Organization: c.groups}, KeyUsage: x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(certificateLife)}
		if want.NotAfter.After(authority.NotAfter) {
			want.NotAfter = authority.NotAfter
		}
		have, _, errHave := pair(p.Issued, c.name)
		if c.hosts != nil {
			want.ExtKeyUsage = append(want.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
			hosts := c.hosts(n)
			if c.name == KarmadaName && len(hosts) == 0 && p.Issued[KarmadaName+".crt"] == nil {
				continue
			}
			if len(hosts) == 0 && errHave == nil {
				want.DNSNames, want.IPAddresses = have.DNSNames, have.IPAddresses
			}
			for _, h := range hosts {
				if ip := net.ParseIP(h); ip != nil {
					want.IPAddresses = append(want.IPAddresses, ip)
				} else {
					want.DNSNames = append(want.DNSNames, h)
				}
			}
		}
		if errHave == nil && have.CheckSignatureFrom(authority) == nil && sameNames(have, want) &&
			have.NotAfter.Sub(now) > have.NotAfter.Sub(have.NotBefore)/3 {
			continue
		}
		if now.After(authority.NotAfter) {
			return nil, fmt.Errorf("issue certificate %s: its authority %s.crt has expired at %s: the hub needs a new one, made by "+
				"`pelago init` without the Secrets of this one", c.name, c.authority, authority.NotAfter.Format(time.RFC3339))
		}
		if err := sign(p.Issued, c.name, want, authority, key); err != nil {
			return nil, err
		}
		renewed = append(renewed, c.name)
	}
	return renewed, p.kubeconfigs(n)
}

func sameNames(a, b *x509.Certificate) bool {
	sort := func(c *x509.Certificate) []string {
		names := slices.Clone(c.DNSNames)
		for _, ip := range c.IPAddresses {
			names = append(names, ip.String())
		}
		slices.Sort(names)
		return slices.Compact(names)
	}
	return a.Subject.CommonName == b.Subject.CommonName && slices.Equal(sort(a), sort(b))
}

// completeKept makes what is missing of Kept.
func (p *PKI) completeKept(now time.Time) error {
	for _, name := range authorities {
		if p.Kept[name+".crt"] != nil {
			continue
		}
		t := &x509.Certificate{Subject: pkix.Name{CommonName: "pelago-hub-" + name}, IsCA: true, BasicConstraintsValid: true,
			KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(authorityLife)}
		if err := sign(p.Kept, name, t, t, nil); err != nil {
			return err
		}
	}
	if p.Kept["sa.key"] == nil {
		key, text, err := newKey()
		if err != nil {
			return err
		}
		public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
		if err != nil {
			return fmt.Errorf("encode the key of ServiceAccount tokens: %w", err)
		}
		p.Kept["sa.key"], p.Kept["sa.pub"] = text, pem.EncodeToMemory(&pem.Block{Type: keyutil.PublicKeyBlockType, Bytes: public})
	}
	if p.Kept["encryption.yaml"] == nil {
		secret := make([]byte, 32)
		if _, err := rand.Read(secret); err != nil {
			return fmt.Errorf("make the key of the data at rest: %w", err)
		}
		p.Kept["encryption.yaml"] = fmt.Appendf(nil, encryption, base64.StdEncoding.EncodeToString(secret))
	}
	return nil
}

// encryption is what the API server encrypts in etcd: Works contain what templates do, Secrets
// among it.
const encryption = `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets, works.work.karmada.io]
  providers:
  - secretbox:
      keys:
      - name: key1
        secret: %s
  - identity: {}
`

// pair is the certificate and the key of a name.
func pair(files map[string][]byte, name string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	both, err := tls.X509KeyPair(files[name+".crt"], files[name+".key"])
	if err != nil {
		return nil, nil, fmt.Errorf("read certificate %s.crt with its key: %w", name, err)
	}
	key, ok := both.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, nil, fmt.Errorf("read %s.key: not an ECDSA key", name)
	}
	return both.Leaf, key, nil
}

// sign makes a key and its certificate t, signed by the authority; a nil key means by itself.
func sign(files map[string][]byte, name string, t, authority *x509.Certificate, by *ecdsa.PrivateKey) error {
	key, text, err := newKey()
	if err != nil {
		return err
	}
	if by == nil {
		by = key
	}
	var der []byte
	t.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err == nil {
		der, err = x509.CreateCertificate(rand.Reader, t, authority, &key.PublicKey, by)
	}
	if err != nil {
		return fmt.Errorf("issue certificate %s: %w", name, err)
	}
	files[name+".crt"], files[name+".key"] = pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: der}), text
	return nil
}

func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	text, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode a key: %w", err)
	}
	return key, text, nil
}

// kubeconfigs writes the kubeconfigs. Those of the hub's programs name files of the same directory,
// which the programs read again when they change; the administrator's contains everything.
func (p *PKI) kubeconfigs(n PKINames) error {
	for name, url := range map[string]string{"controller-manager": n.Internal, "hub": n.Internal, AdminName: n.External} {
		file, tools := name+".kubeconfig", n.KarmadaURL
		if url == "" {
			former, err := clientcmd.Load(p.Issued[file])
			if err != nil || former.Clusters["hub"] == nil {
				return fmt.Errorf("read the address of the API server from %s: %w", file, errors.Join(err, errors.New("it has none: run `pelago init`")))
			}
			url = former.Clusters["hub"].Server
			if at := former.Clusters[KarmadaName]; at != nil {
				tools = at.Server
			}
		}
		c := clientcmdapi.NewConfig()
		c.Clusters["hub"] = &clientcmdapi.Cluster{Server: url, CertificateAuthority: "ca.crt"}
		c.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificate: name + ".crt", ClientKey: name + ".key"}
		if name == AdminName {
			c.Clusters["hub"] = &clientcmdapi.Cluster{Server: url, CertificateAuthorityData: p.Kept["ca.crt"]}
			c.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: p.Issued[name+".crt"], ClientKeyData: p.Issued[name+".key"]}
			if tools != "" {
				c.Clusters[KarmadaName] = &clientcmdapi.Cluster{Server: tools, CertificateAuthorityData: p.Kept["ca.crt"]}
				c.Contexts[KarmadaName] = &clientcmdapi.Context{Cluster: KarmadaName, AuthInfo: name}
			}
		}
		c.Contexts["hub"] = &clientcmdapi.Context{Cluster: "hub", AuthInfo: name}
		c.CurrentContext = "hub"
		text, err := clientcmd.Write(*c)
		if err != nil {
			return fmt.Errorf("write %s: %w", file, err)
		}
		p.Issued[file] = text
	}
	return nil
}

// Files are all files of the PKI.
func (p *PKI) Files() map[string][]byte {
	all := maps.Clone(p.Kept)
	maps.Copy(all, p.Issued)
	return all
}

// Split is the reverse of Files.
func Split(files map[string][]byte) PKI {
	p := PKI{Kept: map[string][]byte{}, Issued: map[string][]byte{}}
	for name, content := range files {
		if kept(name) {
			p.Kept[name] = content
		} else {
			p.Issued[name] = content
		}
	}
	return p
}

func kept(name string) bool {
	base, _, _ := bytes.Cut([]byte(name), []byte("."))
	return slices.Contains(append([]string{"sa", "encryption"}, authorities...), string(base))
}

// KeptFiles are the names of the files of PKI.Kept, sorted.
func KeptFiles() []string {
	names := []string{"encryption.yaml", "sa.key", "sa.pub"}
	for _, a := range authorities {
		names = append(names, a+".crt", a+".key")
	}
	slices.Sort(names)
	return names
}
