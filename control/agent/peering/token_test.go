package peering

import (
	"encoding/base64"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/utils/ptr"
)

// token makes an unsigned token with the given claims.
func token(payload string) string {
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".signature"
}

func TestRenewalIsAtHalfLife(t *testing.T) {
	tests := map[string]struct {
		payload string
		want    time.Time
	}{
		"an hour":  {`{"iat":1000,"exp":4600}`, time.Unix(2800, 0)},
		"no end":   {`{"iat":1000}`, time.Time{}},
		"no start": {`{"exp":4000}`, time.Unix(2000, 0)},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c, err := parse(token(tt.payload))
			if err != nil {
				t.Fatal(err)
			}
			if got := c.renewal(); !got.Equal(tt.want) {
				t.Errorf("renewal at %s, want %s", got, tt.want)
			}
		})
	}
}

func TestExpired(t *testing.T) {
	c := claims{Expiry: 100}
	if c.expired(time.Unix(99, 0)) || !c.expired(time.Unix(100, 0)) || (claims{}).expired(time.Unix(1<<40, 0)) {
		t.Error("a token is valid until its expiry, one without is valid for ever")
	}
}

func TestBadTokensAreRefused(t *testing.T) {
	for _, text := range []string{"", "a.b", "a.!.c", "a." + base64.RawURLEncoding.EncodeToString([]byte("no JSON")) + ".c"} {
		if _, err := parse(text); err == nil {
			t.Errorf("%q accepted", text)
		}
	}
}

func TestTheSuccessorIsBoundToTheSameSecret(t *testing.T) {
	c, err := parse(token(`{"kubernetes.io":{"serviceaccount":{"name":"cluster-g1"},"secret":{"name":"cluster-g1.registration","uid":"u1"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := authenticationv1.TokenRequestSpec{
		ExpirationSeconds: ptr.To[int64](3600),
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: "cluster-g1.registration", UID: "u1"},
	}
	if diff := cmp.Diff(want, c.request(time.Hour).Spec); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if c, _ := parse(token(`{}`)); c.request(time.Hour).Spec.BoundObjectRef != nil {
		t.Error("a token without a binding gets one")
	}
}

func TestSource(t *testing.T) {
	s := NewTokenSource("old")
	s.set("new")
	if s.Token() != "new" {
		t.Errorf("token %q", s.Token())
	}
}
