package peering

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Source hands out the token of the moment. It is safe for use by many goroutines.
type TokenSource struct{ token atomic.Value }

// NewSource starts with a token.
func NewTokenSource(token string) *TokenSource {
	s := &TokenSource{}
	s.token.Store(token)
	return s
}

// Token is the token to use now.
func (s *TokenSource) Token() string { return s.token.Load().(string) }

func (s *TokenSource) set(token string) { s.token.Store(token) }

// claims is what a ServiceAccount token says of itself (RFC 7519, and the claim kubernetes.io).
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

// parse reads a token's claims. The signature is the hub's business.
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

// renewal is when a token is to be renewed: after half of its life, at once if it has no end.
func (c claims) renewal() time.Time {
	if c.Expiry == 0 {
		return time.Time{}
	}
	return time.Unix(c.IssuedAt+(c.Expiry-c.IssuedAt)/2, 0)
}

// expired says whether the hub refuses the token at now.
func (c claims) expired(now time.Time) bool { return c.Expiry != 0 && now.Unix() >= c.Expiry }

// request asks for a successor with the same life, bound to the same Secret: deleting that one revokes both.
func (c claims) request(life time.Duration) *authenticationv1.TokenRequest {
	seconds := int64(life / time.Second)
	r := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	if s := c.Kubernetes.Secret; s != nil {
		r.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: s.Name, UID: s.UID}
	}
	return r
}
