package hubaddress

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/pelago-net/pelago/control/config"
)

// askTimeout bounds one request to an address of the hub.
const askTimeout = 10 * time.Second

// hubAt is an address that may be the hub's.
type hubAt struct {
	server string
	kubernetes.Interface
}

// at opens an address. Each request has a connection of its own: one that is still open would
// hide that the address leads elsewhere by now.
func at(server string, ca []byte, token string) (hubAt, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return hubAt{}, errors.New("the CAs of the hub hold no certificate")
	}
	c, err := kubernetes.NewForConfigAndClient(&rest.Config{Host: server, UserAgent: "pelago-agent"}, &http.Client{
		Timeout:       askTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // the token goes nowhere else
		Transport: bearer{token, &http.Transport{
			Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		}},
	})
	if err != nil {
		return hubAt{}, fmt.Errorf("use the address %s: %w", server, err)
	}
	return hubAt{server, c}, nil
}

// bearer sets the token. It is sent after the handshake of TLS, so to a server of the CAs only.
type bearer struct {
	token string
	next  http.RoundTripper
}

func (b bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context()) // a RoundTripper may not change the request
	req.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(req)
}

// announcement is what the hub announces.
func (h hubAt) announcement(ctx context.Context, namespace string) (config.Announcement, error) {
	cm, err := h.CoreV1().ConfigMaps(namespace).Get(ctx, config.ClustersetConfigMap, metav1.GetOptions{})
	if err != nil {
		return config.Announcement{}, err
	}
	found, err := config.ParseAnnouncement(cm.Data)
	if err != nil {
		return found, invalidError{err}
	}
	return found, nil
}

// invalidError: the hub has answered with what cannot be followed.
type invalidError struct{ error }

// cause is an error without what differs from one connection to the next.
func cause(err error) string {
	var failed *net.OpError
	var timeout net.Error
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	case errors.As(err, &failed):
		return failed.Err.Error()
	}
	return err.Error()
}

// refusal is why an address is not used, with the remedy; empty: it is the hub.
func refusal(server, hubID string, found config.Announcement, err error) string {
	var untrusted *tls.CertificateVerificationError
	switch {
	case errors.As(err, &untrusted):
		return fmt.Sprintf("the certificate of %s is of none of the CAs that the hub announces: give its CA to `pelago deploy-broker --broker-ca` at the hub (%v)", server, untrusted.Err)
	case errors.As(err, new(invalidError)):
		return err.Error()
	case apierrors.IsUnauthorized(err):
		return fmt.Sprintf("%s refuses this cluster's token: it is another hub, or one without the former keys of ServiceAccounts: announce the hub's own "+
			"address with `pelago deploy-broker --broker-url`, or run `pelago join` again", server)
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return fmt.Sprintf("%s is another hub, or one without this clusterset: announce the hub's own address with `pelago deploy-broker --broker-url` (%v)", server, err)
	case err != nil:
		return fmt.Sprintf("%s does not answer: let this cluster reach it, or announce another address with `pelago deploy-broker --broker-url` (%s)", server, cause(err))
	case found.HubID != hubID:
		return fmt.Sprintf("%s is another hub, with the id %s instead of %s: announce the hub's own address with `pelago deploy-broker --broker-url`", server, found.HubID, hubID)
	}
	return ""
}
