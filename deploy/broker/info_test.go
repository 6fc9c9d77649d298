package broker

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// token makes a token with the given claims and no valid signature.
func token(claims string) []byte {
	return []byte("e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln")
}

func info() Info {
	return Info{
		BrokerURL: "https://192.0.2.1:6443",
		ClientToken: &corev1.Secret{Data: map[string][]byte{
			"ca.crt": []byte("PEM"), "namespace": []byte("submariner-k8s-broker"), "token": token(`{"exp":1700000000}`),
		}},
		IPSecPSK:         &corev1.Secret{Data: map[string][]byte{"psk": []byte("key")}},
		ServiceDiscovery: true,
		Components:       []string{"service-discovery", "connectivity"},
		CustomDomains:    []string{"example.org"},
	}
}

func TestInfoIsReadAsWritten(t *testing.T) {
	text, err := info().Encode()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(text), "\n") != 1 || strings.ContainsAny(string(text), "+/") {
		t.Errorf("not one line of URL-safe base64: %q", text)
	}
	got, err := DecodeInfo(text)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(info(), got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// Submariner's tool writes the same fields.
func TestInfoFieldNames(t *testing.T) {
	text, err := info().Encode()
	if err != nil {
		t.Fatal(err)
	}
	json, err := base64.URLEncoding.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{`"brokerURL":`, `"ClientToken":`, `"IPSecPSK":`, `"ServiceDiscovery":`, `"Components":`, `"CustomDomains":`} {
		if !strings.Contains(string(json), field) {
			t.Errorf("%s is missing in %s", field, json)
		}
	}
}

func TestUnreadableInfo(t *testing.T) {
	encode := func(text string) []byte { return []byte(base64.URLEncoding.EncodeToString([]byte(text))) }
	for name, tt := range map[string]struct {
		content []byte
		want    string
	}{
		"empty":      {nil, "does not hold JSON"},
		"not base64": {[]byte("apiVersion: v1"), "not one line of URL-safe base64"},
		"not JSON":   {encode("{"), "does not hold JSON"},
		"no fields":  {encode("{}"), "lacks brokerURL, ClientToken.ca.crt, ClientToken.namespace, ClientToken.token, IPSecPSK.psk"},
	} {
		_, err := DecodeInfo(tt.content)
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "deploy-broker") {
			t.Errorf("%s: error %v, want one with %q and a remedy", name, err, tt.want)
		}
	}
}

func TestExpiry(t *testing.T) {
	end := time.Unix(1700000000, 0)
	i := info()
	if err := i.CheckExpiry(end.Add(-time.Second)); err != nil {
		t.Errorf("one second before the end: %v", err)
	}
	err := i.CheckExpiry(end.Add(3 * time.Hour))
	if err == nil || !strings.Contains(err.Error(), "2023-11-14T22:13:20Z, 3h0m0s ago") || !strings.Contains(err.Error(), "deploy-broker") {
		t.Errorf("three hours after the end: %v", err)
	}
	i.ClientToken.Data["token"] = token(`{}`)
	if err := i.CheckExpiry(end.Add(3 * time.Hour)); err != nil {
		t.Errorf("a token without end: %v", err)
	}
	i.ClientToken.Data["token"] = []byte("abc")
	if err := i.CheckExpiry(end); err == nil {
		t.Error("no token at all: no error")
	}
}

func TestURLWithoutScheme(t *testing.T) {
	i := info()
	i.BrokerURL = "192.0.2.1:6443"
	text, err := i.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeInfo(text)
	if err != nil || got.BrokerURL != "https://192.0.2.1:6443" {
		t.Errorf("got %s, %v", got.BrokerURL, err)
	}
}

func FuzzDecodeInfo(f *testing.F) {
	text, err := info().Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte("e30="))
	f.Fuzz(func(_ *testing.T, content []byte) {
		if i, err := DecodeInfo(content); err == nil {
			// Whatever stands in the file, using it must not panic.
			_ = i.CheckExpiry(time.Now())
			_ = i.Config()
		}
	})
}
