//go:build linux

package cable

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// draw reads choices from a fuzzer's bytes; 0 at their end.
type draw []byte

func (d *draw) below(n int) int {
	if len(*d) == 0 {
		return 0
	}
	b := (*d)[0]
	*d = (*d)[1:]
	return int(b) % n
}

func (d *draw) of(words ...string) string { return words[d.below(len(words))] }

func fuzzKey(n int) wgtypes.Key {
	var k wgtypes.Key
	binary.BigEndian.PutUint64(k[1:], uint64(n)+1)
	k[0] = 8
	return k
}

// hostile is a peer that publishes anything. Its fabric address is its own: the hub's admission
// policies and control/agent/peering derive that from its indexes.
func (d *draw) hostile(n int, victims []string) Peer {
	keys := append([]string{"", "x", fuzzKey(1000 + n).String(), fuzzKey(2000 + n).String(), strings.Repeat("A", 44), wgtypes.Key{}.String()}, victims...)
	var public []string
	for range d.below(MaxTunnels + 2) {
		public = append(public, d.of(keys...))
	}
	p := Peer{
		Name: fmt.Sprint("hostile-", n), Fabric: netip.AddrFrom4([4]byte{241, 0, 9, byte(n)}), Port: uint16(d.below(256) * 257), Tunnels: d.below(8) - 1,
		Identity: map[string]string{
			IdentityPublicKey: strings.Join(public, ","), IdentityStandbyKey: d.of(keys...),
			IdentityDraining: d.of("", "0", "4", "-1,99", "a,,1", "0,1,2,3,4"),
		},
		Keepalive: time.Duration(d.below(256)-1) * time.Millisecond,
	}
	if d.below(2) == 1 {
		p.Address = netip.AddrFrom4([4]byte{192, 0, 2, byte(d.below(256))})
	}
	return p
}

// apply does with a device what WireGuard does.
func apply(have *wgtypes.Device, c wgtypes.Config) {
	if c.PrivateKey != nil {
		have.PrivateKey = *c.PrivateKey
	}
	if c.ListenPort != nil {
		have.ListenPort = *c.ListenPort
	}
	if c.ReplacePeers {
		have.Peers = nil
	}
	for _, p := range c.Peers {
		i := slices.IndexFunc(have.Peers, func(h wgtypes.Peer) bool { return h.PublicKey == p.PublicKey })
		switch {
		case p.Remove:
			if i >= 0 {
				have.Peers = slices.Delete(have.Peers, i, i+1)
			}
			continue
		case i < 0 && p.UpdateOnly:
			continue
		case i < 0:
			have.Peers = append(have.Peers, wgtypes.Peer{PublicKey: p.PublicKey})
			i = len(have.Peers) - 1
		}
		h := &have.Peers[i]
		if p.PresharedKey != nil {
			h.PresharedKey = *p.PresharedKey
		}
		if p.Endpoint != nil {
			h.Endpoint = p.Endpoint
		}
		if p.PersistentKeepaliveInterval != nil {
			h.PersistentKeepaliveInterval = *p.PersistentKeepaliveInterval
		}
		if p.ReplaceAllowedIPs {
			h.AllowedIPs = nil
		}
		for _, a := range p.AllowedIPs { // an address belongs to the peer that got it last
			for j := range have.Peers {
				have.Peers[j].AllowedIPs = slices.DeleteFunc(have.Peers[j].AllowedIPs, func(b net.IPNet) bool { return b.String() == a.String() })
			}
			h.AllowedIPs = append(h.AllowedIPs, a)
		}
	}
}

// FuzzPlan: n peers that publish anything never change what the devices hold for a gateway that was
// there before them, and a plan that was carried out leaves nothing to do.
func FuzzPlan(f *testing.F) {
	for _, seed := range [][]byte{{}, {1, 2, 3, 4, 5}, []byte("two peers with one key"), slices.Repeat([]byte{7}, 60), slices.Repeat([]byte{2, 9}, 60)} {
		f.Add(seed)
	}
	own := []wgtypes.Key{fuzzKey(1), fuzzKey(2), fuzzKey(3), fuzzKey(4), fuzzKey(5)}
	local := Local{Fabric: netip.MustParseAddr("241.0.1.1"), Listen: 4500, Tunnels: 3, PSK: []byte("clusterset")}
	honest := Peer{
		Name: "honest", Fabric: netip.MustParseAddr("241.0.2.1"), Address: netip.MustParseAddr("192.0.2.2"), Port: 4500, Tunnels: 3,
		Identity: map[string]string{
			IdentityPublicKey:  strings.Join([]string{fuzzKey(11).String(), fuzzKey(12).String(), fuzzKey(13).String()}, ","),
			IdentityStandbyKey: fuzzKey(14).String(),
		},
	}
	victims := []string{own[0].PublicKey().String(), fuzzKey(11).String(), fuzzKey(13).String(), fuzzKey(14).String()}
	f.Fuzz(func(t *testing.T, seed []byte) {
		d := draw(seed)
		peers := []Peer{honest}
		for n := range d.below(20) {
			peers = append(peers, d.hostile(n, victims))
		}
		alone, err := wgPeers(local, peers[:1], own)
		if err != nil {
			t.Fatal(err)
		}
		all, _ := wgPeers(local, peers, own) // the error names those that are left out
		now := time.Unix(1_700_000_000, 0)
		for number := range MaxTunnels + 1 {
			want := &wgtypes.Device{}
			c, _ := plan(want, tunnel{number: number, key: own[number], port: 4500, peers: alone}, endpoints{}, now)
			apply(want, c)
			have := &wgtypes.Device{}
			apply(have, c)
			hostile := tunnel{number: number, key: own[number], port: 4500, peers: all}
			if c, differs := plan(have, hostile, endpoints{}, now); differs {
				apply(have, c)
			}
			for _, w := range want.Peers {
				i := slices.IndexFunc(have.Peers, func(h wgtypes.Peer) bool { return h.PublicKey == w.PublicKey })
				if i < 0 {
					t.Fatalf("tunnel %d: hostile peers have removed the honest one", number)
				}
				if diff := cmp.Diff(w, have.Peers[i]); diff != "" {
					t.Fatalf("tunnel %d: hostile peers have changed the honest one: -want +got\n%s", number, diff)
				}
			}
			if c, differs := plan(have, hostile, endpoints{}, now); differs {
				t.Fatalf("tunnel %d: the plan was carried out, but another is due: %+v", number, c)
			}
			for _, p := range all {
				usable(p, local.Tunnels, number, func(i int) bool { return i%2 == 0 })
			}
		}
	})
}
