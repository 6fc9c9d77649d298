package natt

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// All messages have the same size, so there is no amplification. Numbers are big endian, IPv4
// addresses IPv4-mapped, the zero address is sixteen zeros.
//
//	 0  4  magic "pNAT"
//	 4  1  version
//	 5  1  kind
//	 6  2  zero
//	 8 16  nonce
//	24 16  echo: the nonce of the message that this one replies to
//	40 16  id of the sender
//	56 16  id of the receiver
//	72 18  source address and port
//	90 18  destination address and port
//	108 32 HMAC-SHA256 of the above
const (
	magic          = "pNAT"
	messageVersion = 1
	macOffset      = 108
	messageSize    = macOffset + sha256.Size
)

// kind of a message. An exchange consists of a request, an answer and a confirmation.
type kind uint8

const (
	// request: destination is the address that it is sent to.
	request kind = 1
	// answer echoes the request's nonce, with source and destination of the request as received.
	// Its own nonce is a cookie.
	answer kind = 2
	// confirmation echoes that cookie, which proves that the sender receives at its source address,
	// with source and destination as sent. There is no reply to it.
	confirmation kind = 3
)

type (
	nonce [16]byte
	id    [16]byte
)

// message is a message with a valid MAC.
type message struct {
	kind                kind
	nonce, echo         nonce
	from, to            id
	source, destination netip.AddrPort
}

// Errors of decode.
var (
	errFormat  = errors.New("not a message of NAT discovery")
	errVersion = errors.New("another version of NAT discovery")
	errMAC     = errors.New("authenticated with another key")
)

// codec encodes and decodes messages with the keys of a clusterset.
type codec struct{ mac, ids []byte }

// newCodec derives the keys from the clusterset's PSK (HKDF, RFC 5869), since other protocols use
// the PSK as well.
func newCodec(psk []byte) (codec, error) {
	if len(psk) == 0 {
		return codec{}, errors.New("the PSK of the clusterset is empty: take it from the Secret submariner-ipsec-psk")
	}
	var c codec
	for info, key := range map[string]*[]byte{"message": &c.mac, "name": &c.ids} {
		var err error
		if *key, err = hkdf.Key(sha256.New, psk, nil, "pelago natt 1 "+info, sha256.Size); err != nil {
			return codec{}, fmt.Errorf("derive the key of NAT discovery: %w", err)
		}
	}
	return c, nil
}

// id is a gateway's name in messages: of fixed length, and not revealed to an eavesdropper.
func (c codec) id(name string) id { return id(sum(c.ids, []byte(name))[:16]) }

func (c codec) encode(m message) []byte {
	b := slices.Concat([]byte(magic), []byte{messageVersion, byte(m.kind), 0, 0}, m.nonce[:], m.echo[:], m.from[:], m.to[:])
	b = appendAddrPort(appendAddrPort(b, m.source), m.destination)
	return append(b, sum(c.mac, b)...)
}

// decode parses a packet. Only size, magic and version are used before the MAC is verified.
func (c codec) decode(b []byte) (message, error) {
	if len(b) != messageSize || string(b[:4]) != magic {
		return message{}, errFormat
	}
	if b[4] != messageVersion {
		return message{}, errVersion
	}
	if !hmac.Equal(b[macOffset:], sum(c.mac, b[:macOffset])) {
		return message{}, errMAC
	}
	m := message{
		kind: kind(b[5]), nonce: nonce(b[8:24]), echo: nonce(b[24:40]), from: id(b[40:56]), to: id(b[56:72]),
		source: addrPort(b[72:90]), destination: addrPort(b[90:108]),
	}
	if m.kind < request || m.kind > confirmation {
		return message{}, errFormat
	}
	return m, nil
}

// cookie is the nonce of an answer, which can be verified without state per request. slot numbers
// periods of our own clock; key is that of the process.
func cookie(key []byte, slot uint64, peer id, source netip.AddrPort) nonce {
	b := binary.BigEndian.AppendUint64(nil, slot)
	b = append(b, peer[:]...)
	b = appendAddrPort(b, source)
	return nonce(sum(key, b)[:16])
}

func sum(key, text []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(text)
	return h.Sum(nil)
}

func appendAddrPort(b []byte, a netip.AddrPort) []byte {
	if !a.Addr().IsValid() {
		return append(b, make([]byte, 18)...)
	}
	address := a.Addr().As16()
	return binary.BigEndian.AppendUint16(append(b, address[:]...), a.Port())
}

func addrPort(b []byte) netip.AddrPort {
	address := netip.AddrFrom16([16]byte(b[:16])).Unmap()
	if address == netip.IPv6Unspecified() {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(address, binary.BigEndian.Uint16(b[16:]))
}
