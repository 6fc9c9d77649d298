package natt

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// A message has one size whatever its kind, so an answer is never larger than what asked for it. All numbers are big
// endian, IPv4 addresses IPv4-mapped, the zero address is sixteen zeros.
//
//	 0  4  magic "pNAT"
//	 4  1  version
//	 5  1  kind
//	 6  2  zero
//	 8 16  nonce
//	24 16  echo: the nonce of the message that this one follows
//	40 16  id of the sender
//	56 16  id of the receiver
//	72 18  source address and port
//	90 18  destination address and port
//	108 32 HMAC-SHA256 over all before it
const (
	magic          = "pNAT"
	messageVersion = 1
	macOffset      = 108
	messageSize    = macOffset + sha256.Size
)

// kind of a message. The three of them are one exchange: request, answer, call.
type kind uint8

const (
	// request asks the receiver for an answer. destination is the address asked.
	request kind = 1
	// answer echoes the request's nonce and says from where (source) and to where (destination) the request came.
	// Its own nonce is a cookie.
	answer kind = 2
	// call echoes that cookie, which proves that the sender is there now and receives under its source address. It says
	// from where (source) and to where (destination) it was sent. Nobody answers it.
	call kind = 3
)

type (
	nonce [16]byte
	id    [16]byte
)

// message is one decoded message, its MAC checked.
type message struct {
	kind                kind
	nonce, echo         nonce
	from, to            id
	source, destination netip.AddrPort
}

// Why a packet is no message for us.
var (
	errFormat  = errors.New("not a message of NAT discovery")
	errVersion = errors.New("another version of NAT discovery")
	errMAC     = errors.New("made with another key")
)

// codec makes and reads messages with the keys of a clusterset.
type codec struct{ mac, ids []byte }

// newCodec derives the keys from the clusterset's PSK (HKDF, RFC 5869), so that the PSK itself, which other protocols
// use as well, is not used here.
func newCodec(psk []byte) (codec, error) {
	if len(psk) == 0 {
		return codec{}, errors.New("the PSK of the clusterset is empty: take it from the Secret submariner-ipsec-psk")
	}
	derive := func(info string) ([]byte, error) { return hkdf.Key(sha256.New, psk, nil, info, sha256.Size) }
	mac, err := derive("pelago natt 1 message")
	if err != nil {
		return codec{}, fmt.Errorf("derive the key of NAT discovery: %w", err)
	}
	ids, err := derive("pelago natt 1 name")
	if err != nil {
		return codec{}, fmt.Errorf("derive the key of names: %w", err)
	}
	return codec{mac: mac, ids: ids}, nil
}

// id is a gateway's name as messages carry it: of fixed length, and telling a listener nothing.
func (c codec) id(name string) id { return id(sum(c.ids, []byte(name))[:16]) }

func (c codec) encode(m message) []byte {
	b := make([]byte, 0, messageSize)
	b = append(b, magic...)
	b = append(b, messageVersion, byte(m.kind), 0, 0)
	b = append(b, m.nonce[:]...)
	b = append(b, m.echo[:]...)
	b = append(b, m.from[:]...)
	b = append(b, m.to[:]...)
	b = appendAddrPort(b, m.source)
	b = appendAddrPort(b, m.destination)
	return append(b, sum(c.mac, b)...)
}

// decode reads a packet. The MAC is compared before anything but size, magic and version is looked at.
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
	if m.kind < request || m.kind > call {
		return message{}, errFormat
	}
	return m, nil
}

// cookie is the nonce of an answer: it can be checked without keeping anything per request. slot numbers periods of
// our own clock; key lives as long as the process.
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
