package broker

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
)

// InfoFile is the usual name of the file that deploy-broker writes and join reads.
const InfoFile = "broker-info.subm"

// Info is the content of broker-info.subm: what a cluster needs to register. The field names are
// those that Submariner's tool reads and writes.
type Info struct {
	// BrokerURL is the URL of the hub's API server.
	BrokerURL string `json:"brokerURL"`
	// ClientToken has the keys ca.crt, namespace and token.
	ClientToken *corev1.Secret
	// IPSecPSK has the key psk.
	IPSecPSK         *corev1.Secret
	ServiceDiscovery bool
	Components       []string
	CustomDomains    []string
}

// Encode returns the file's content: one line of URL-safe base64 (RFC 4648 §5) of JSON. It is not
// encrypted.
func (i Info) Encode() ([]byte, error) {
	text, err := json.Marshal(i)
	if err != nil {
		return nil, fmt.Errorf("encode broker information: %w", err)
	}
	return append(base64.URLEncoding.AppendEncode(nil, text), '\n'), nil
}

// DecodeInfo reads the file's content. It ignores the expiry: see CheckExpiry.
func DecodeInfo(content []byte) (Info, error) {
	const remedy = "use the file that `pelago deploy-broker` wrote, unchanged"
	text, err := base64.URLEncoding.DecodeString(strings.TrimSpace(string(content)))
	if err != nil {
		return Info{}, fmt.Errorf("it is not one line of URL-safe base64 (%w): %s", err, remedy)
	}
	var i Info
	if err := json.Unmarshal(text, &i); err != nil {
		return Info{}, fmt.Errorf("it does not hold JSON (%w): %s", err, remedy)
	}
	var missing []string
	if i.BrokerURL == "" {
		missing = append(missing, "brokerURL")
	}
	if i.ClientToken == nil {
		i.ClientToken = new(corev1.Secret)
	}
	for _, key := range []string{corev1.ServiceAccountRootCAKey, corev1.ServiceAccountNamespaceKey, corev1.ServiceAccountTokenKey} {
		if len(i.ClientToken.Data[key]) == 0 {
			missing = append(missing, "ClientToken."+key)
		}
	}
	if i.IPSecPSK == nil || len(i.IPSecPSK.Data["psk"]) == 0 {
		missing = append(missing, "IPSecPSK.psk")
	}
	if len(missing) > 0 {
		return Info{}, fmt.Errorf("it lacks %s: %s", strings.Join(missing, ", "), remedy)
	}
	if !strings.Contains(i.BrokerURL, "://") {
		i.BrokerURL = "https://" + i.BrokerURL
	}
	return i, nil
}

// Namespace is the broker namespace at the hub.
func (i Info) Namespace() string {
	return string(i.ClientToken.Data[corev1.ServiceAccountNamespaceKey])
}

// CA is the PEM bundle that the hub's certificate is checked against.
func (i Info) CA() []byte { return i.ClientToken.Data[corev1.ServiceAccountRootCAKey] }

// Config is the access to the hub with the credential of the file.
func (i Info) Config() *rest.Config {
	return &rest.Config{
		Host:            i.BrokerURL,
		BearerToken:     string(i.ClientToken.Data[corev1.ServiceAccountTokenKey]),
		TLSClientConfig: rest.TLSClientConfig{CAData: i.CA()},
		Timeout:         30 * time.Second,
		QPS:             50, Burst: 100,
	}
}

// Expiry is when the credential of the file ends; ok is false if it has no end.
func (i Info) Expiry() (expiry time.Time, ok bool, err error) {
	claims, err := tokenClaims(string(i.ClientToken.Data[corev1.ServiceAccountTokenKey]))
	if err != nil {
		return time.Time{}, false, err
	}
	if claims.Expiry == 0 {
		return time.Time{}, false, nil
	}
	return time.Unix(claims.Expiry, 0), true, nil
}

// CheckExpiry returns an error if the credential has ended at now.
func (i Info) CheckExpiry(now time.Time) error {
	expiry, ok, err := i.Expiry()
	if err != nil {
		return err
	}
	if ok && !now.Before(expiry) {
		return fmt.Errorf("its credential expired at %s, %s ago: run `pelago deploy-broker` at the hub again "+
			"(it keeps what is registered) and use the file that it writes",
			expiry.UTC().Format(time.RFC3339), now.Sub(expiry).Round(time.Second))
	}
	return nil
}

// claims are the claims of a ServiceAccount token that are used here.
type claims struct {
	Expiry int64 `json:"exp"` // Unix seconds; 0 = none
}

// tokenClaims reads the claims of a JSON Web Token (RFC 7519) without checking its signature: the
// API server does that.
func tokenClaims(token string) (claims, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return claims{}, errors.New("its credential is no ServiceAccount token: run `pelago deploy-broker` at the hub again")
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return claims{}, fmt.Errorf("read the claims of its credential: %w", err)
	}
	var c claims
	if err := json.Unmarshal(text, &c); err != nil {
		return claims{}, fmt.Errorf("read the claims of its credential: %w", err)
	}
	return c, nil
}
