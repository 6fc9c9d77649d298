package config

import (
	"errors"
	"fmt"
	"strconv"
)

// Keys of the Secrets.
const (
	KeyBrokerCA     = "ca.crt"
	KeyBrokerToken  = "token"
	KeyBrokerServer = "server"
	// KeyReturnToken is the token of a longer life by which a cluster that was off gets another one.
	KeyReturnToken = "return-token"
	// KeyOtherServer is another address of the same hub: the next one or the former one.
	KeyOtherServer  = "other-server"
	KeyNamespace    = "namespace"
	KeyPSK          = "psk"
	KeyTokenCurrent = "current"
	KeyTokenPrev    = "previous"
)

// OverlayTokenBits is the width of the secret in the overlay header (its first reserved field).
const OverlayTokenBits = 24

// Broker is the member's access to the hub, from the Secret submariner-broker-secret.
type Broker struct {
	CA        []byte // PEM
	Namespace string
	Token     string // bearer token of the ServiceAccount cluster-<id>
	Server    string // https URL
	// ReturnToken is used when Token has expired; empty if the agent has not requested one yet.
	ReturnToken string
	// Other is another https URL of the hub, for when Server does not answer; empty: none is known.
	Other string
}

// ParseBroker reads the data of the Secret submariner-broker-secret.
func ParseBroker(data map[string][]byte) (Broker, error) {
	s := secret{name: BrokerSecretName, data: data}
	b := Broker{
		CA:        []byte(s.required(KeyBrokerCA)),
		Namespace: s.required(KeyNamespace),
		Token:     s.required(KeyBrokerToken),
		Server:    s.required(KeyBrokerServer),

		ReturnToken: string(data[KeyReturnToken]),
		Other:       string(data[KeyOtherServer]),
	}
	return b, s.err()
}

// ParsePSK reads the data of the Secret submariner-ipsec-psk: the key shared by the clusterset, not
// empty.
func ParsePSK(data map[string][]byte) ([]byte, error) {
	s := secret{name: PSKSecretName, data: data}
	psk := []byte(s.required(KeyPSK))
	return psk, s.err()
}

// OverlayTokens are the secrets that packets on this cluster's overlay carry. Current is sent; both
// are accepted, so that a change reaches the nodes one by one.
type OverlayTokens struct {
	Current     uint32 // 24 bits
	Previous    uint32 // 24 bits, valid only with HasPrevious
	HasPrevious bool
}

// ParseOverlayTokens reads the data of the Secret pelago-overlay-token: six hexadecimal digits
// each, previous may be empty.
func ParseOverlayTokens(data map[string][]byte) (OverlayTokens, error) {
	s := secret{name: OverlayTokenSecretName, data: data}
	t := OverlayTokens{Current: s.token(KeyTokenCurrent, s.required(KeyTokenCurrent))}
	if previous := string(data[KeyTokenPrev]); previous != "" {
		t.Previous, t.HasPrevious = s.token(KeyTokenPrev, previous), true
	}
	return t, s.err()
}

// secret reads keys and collects what is wrong with them; no error quotes a value.
type secret struct {
	name string
	data map[string][]byte
	errs []error
}

func (s *secret) required(key string) string {
	if len(s.data[key]) == 0 {
		s.errs = append(s.errs, fmt.Errorf("key %s is missing", key))
	}
	return string(s.data[key])
}

func (s *secret) token(key, text string) uint32 {
	if text == "" {
		return 0 // reported as missing
	}
	n, err := strconv.ParseUint(text, 16, OverlayTokenBits)
	if err != nil || len(text) != OverlayTokenBits/4 {
		s.errs = append(s.errs, fmt.Errorf("key %s is not %d hexadecimal digits", key, OverlayTokenBits/4))
	}
	return uint32(n)
}

func (s *secret) err() error {
	if len(s.errs) == 0 {
		return nil
	}
	return fmt.Errorf("read Secret %s/%s (written by `pelago join`): %w", SystemNamespace, s.name, errors.Join(s.errs...))
}
