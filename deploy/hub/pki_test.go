package hub

import (
	"bytes"
	"crypto/x509"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"
)

var hubNames = PKINames{APIServer: []string{"hub.example.org", "192.0.2.7", "localhost"}, Etcd: []string{"*.etcd.svc", "localhost"},
	Karmada: []string{"tools.example.org"}, KarmadaURL: "https://tools.example.org:6444",
	Internal: "https://apiserver:6443", External: "https://hub.example.org:443"}

func completed(t *testing.T, p *PKI, n PKINames, now time.Time) []string {
	t.Helper()
	renewed, err := p.Complete(n, now)
	if err != nil {
		t.Fatal(err)
	}
	return renewed
}

func TestPKI(t *testing.T) {
	var p PKI
	start := time.Now()
	all := completed(t, &p, hubNames, start)
	if diff := cmp.Diff(KeptFiles(), slices.Sorted(maps.Keys(p.Kept))); diff != "" {
		t.Errorf("kept files: -want +got\n%s", diff)
	}
	if diff := cmp.Diff(p, Split(p.Files())); diff != "" {
		t.Errorf("files and back: -want +got\n%s", diff)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(p.Kept["ca.crt"])
	server, _, err := pair(p.Issued, "apiserver")
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"hub.example.org", "192.0.2.7"} {
		if _, err := server.Verify(x509.VerifyOptions{Roots: roots, DNSName: host}); err != nil {
			t.Errorf("the API server's certificate for %s: %v", host, err)
		}
	}
	etcd := x509.NewCertPool()
	etcd.AppendCertsFromPEM(p.Kept["etcd-ca.crt"])
	hub, _, err := pair(p.Issued, "hub")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hub.Verify(x509.VerifyOptions{Roots: etcd, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err == nil {
		t.Error("etcd accepts a certificate of the API: whoever gets one from it reads all data")
	}
	if hub.Subject.CommonName != "system:serviceaccount:pelago-system:pelago-hub" {
		t.Errorf("pelago-hub is %s", hub.Subject.CommonName)
	}
	for file, url := range map[string]string{"admin.kubeconfig": hubNames.External, "hub.kubeconfig": hubNames.Internal} {
		c, err := clientcmd.Load(p.Issued[file])
		if err != nil || c.Clusters["hub"].Server != url {
			t.Errorf("%s leads to %s (%v), want %s", file, c.Clusters["hub"].Server, err, url)
		}
	}

	for _, tt := range []struct {
		name  string
		names PKINames
		at    time.Duration
		lose  string
		want  []string
	}{
		{name: "at once", names: hubNames},
		{name: "with names that are not known", at: time.Hour},
		{name: "with half of the life left", names: hubNames, at: certificateLife / 2},
		{name: "with a quarter of the life left", at: certificateLife * 3 / 4, want: all},
		{name: "another address", names: PKINames{APIServer: []string{"other"}, External: "https://other"}, want: []string{"apiserver"}},
		{name: "a lost certificate", names: hubNames, lose: "hub.key", want: []string{"hub"}},
		{name: "a lost authority", names: hubNames, lose: "etcd-ca.crt", want: []string{"apiserver-etcd", "etcd"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			next := PKI{Kept: maps.Clone(p.Kept), Issued: maps.Clone(p.Issued)}
			delete(next.Kept, tt.lose)
			delete(next.Issued, tt.lose)
			if diff := cmp.Diff(tt.want, completed(t, &next, tt.names, start.Add(tt.at))); diff != "" {
				t.Errorf("renewed: -want +got\n%s", diff)
			}
			if tt.lose == "" && !maps.EqualFunc(p.Kept, next.Kept, bytes.Equal) {
				t.Error("authorities or keys have changed")
			}
			c, err := clientcmd.Load(next.Issued[AdminKubeconfig])
			if err != nil {
				t.Fatal(err)
			}
			if tools := c.Clusters[KarmadaName]; (tools == nil) != (tt.names.External != "" && tt.names.KarmadaURL == "") ||
				tools != nil && tools.Server != hubNames.KarmadaURL {
				t.Errorf("the address for Karmada's tools is %v", tools)
			}
			renewed, _, err := pair(next.Issued, "apiserver")
			if err != nil {
				t.Fatal(err)
			}
			if len(tt.names.APIServer) == 0 && !sameNames(renewed, server) {
				t.Errorf("the names of the API server have changed: %v", renewed.DNSNames)
			}
		})
	}

	if _, err := p.Complete(hubNames, start.Add(authorityLife+time.Hour)); err == nil || !strings.Contains(err.Error(), "its authority ca.crt has expired") {
		t.Errorf("an authority that has expired: %v", err)
	}
	without := PKI{}
	plain := hubNames
	plain.Karmada, plain.KarmadaURL = nil, ""
	if renewed := completed(t, &without, plain, start); slices.Contains(renewed, KarmadaName) {
		t.Error("a certificate for Karmada's tools, which are not served")
	}
	late := PKI{Kept: maps.Clone(p.Kept)}
	completed(t, &late, hubNames, start.Add(authorityLife-time.Hour))
	if c, _, err := pair(late.Issued, "apiserver"); err != nil || c.NotAfter.After(start.Add(authorityLife)) {
		t.Errorf("a certificate outlives its authority: %v", err)
	}
	if _, err := (&PKI{}).Complete(PKINames{}, start); err == nil || !strings.Contains(err.Error(), "run `pelago init`") {
		t.Errorf("without any address: %v", err)
	}
}
