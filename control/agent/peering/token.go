package peering

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TokenSource holds the current token. It is safe for concurrent use.
type TokenSource struct {
	token atomic.Value
	skew  prometheus.Gauge
}

// NewTokenSource starts with a token.
func NewTokenSource(token string) *TokenSource {
	s := &TokenSource{skew: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "pelago_hub_clock_skew_seconds",
		Help: "By how much this cluster's clock was ahead of the hub's at the last renewal of the token; 0 before the first.",
	})}
	s.token.Store(token)
	return s
}

// Metrics is the gauge pelago_hub_clock_skew_seconds, for the process that renews the token.
func (s *TokenSource) Metrics() prometheus.Collector { return s.skew }

// Token is the current token.
func (s *TokenSource) Token() string { return s.token.Load().(string) }

func (s *TokenSource) set(token string) { s.token.Store(token) }

// claims are those of a ServiceAccount token (RFC 7519, and the claim kubernetes.io).
type claims struct {
	IssuedAt   int64 `json:"iat"` // Unix seconds
	Expiry     int64 `json:"exp"` // Unix seconds; 0: it does not expire
	Kubernetes struct {
		Secret *object `json:"secret"`
	} `json:"kubernetes.io"`
}

type object struct {
	Name string    `json:"name"`
	UID  types.UID `json:"uid"`
}

// parse reads a token's claims. Only the hub verifies the signature.
func parse(token string) (claims, error) {
	var c claims
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return c, errors.New("the token is no JSON Web Token: run `pelago join` again")
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err == nil {
		err = json.Unmarshal(payload, &c)
	}
	if err != nil {
		return c, fmt.Errorf("the token cannot be read: run `pelago join` again: %w", err)
	}
	return c, nil
}

// renewal is when a token is due: after half of its life, at once if it does not expire.
func (c claims) renewal() time.Time {
	if c.Expiry == 0 {
		return time.Time{}
	}
	return time.Unix(c.IssuedAt+(c.Expiry-c.IssuedAt)/2, 0)
}

// expired reports whether the hub refuses the token at now.
func (c claims) expired(now time.Time) bool { return c.Expiry != 0 && now.Unix() >= c.Expiry }

// request is a TokenRequest for a successor, bound to the same Secret: deleting that one revokes
// both.
func (c claims) request(life time.Duration) *authenticationv1.TokenRequest {
	seconds := int64(life / time.Second)
	r := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	if s := c.Kubernetes.Secret; s != nil {
		r.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: s.Name, UID: s.UID}
	}
	return r
}
