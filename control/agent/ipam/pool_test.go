package ipam_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pelago-net/pelago/control/agent/ipam"
	"pgregory.net/rapid"
)

func ips(texts ...string) []netip.Addr {
	var a []netip.Addr
	for _, t := range texts {
		a = append(a, netip.MustParseAddr(t))
	}
	return a
}

func prefixes(text string) []netip.Prefix {
	var p []netip.Prefix
	for _, t := range strings.Fields(text) {
		p = append(p, netip.MustParsePrefix(t))
	}
	return p
}

func TestNext(t *testing.T) {
	for _, tc := range []struct {
		name  string
		cidr  string
		taken []netip.Addr
		n     int
		want  []netip.Addr
	}{
		{name: "the cluster pool of the walk-through", cidr: "120.1.0.0/24", n: 8,
			want: ips("120.1.0.1", "120.1.0.2", "120.1.0.3", "120.1.0.4", "120.1.0.5", "120.1.0.6", "120.1.0.7", "120.1.0.8")},
		{name: "one, the lowest free", cidr: "120.1.0.0/24", taken: ips("120.1.0.1", "120.1.0.3"), n: 1, want: ips("120.1.0.2")},
		{name: "a run behind a gap that is too small", cidr: "120.1.0.0/24", taken: ips("120.1.0.3"), n: 3,
			want: ips("120.1.0.4", "120.1.0.5", "120.1.0.6")},
		{name: "no run: the lowest free ones", cidr: "120.1.0.0/29", taken: ips("120.1.0.2", "120.1.0.5"), n: 3,
			want: ips("120.1.0.1", "120.1.0.3", "120.1.0.4")},
		{name: "never the broadcast address", cidr: "120.1.0.0/30", n: 2, want: ips("120.1.0.1", "120.1.0.2")},
		{name: "more than there are", cidr: "120.1.0.0/30", n: 3},
		{name: "a prefix without usable addresses", cidr: "120.1.0.0/31", n: 1},
		{name: "host bits in the prefix", cidr: "120.1.0.77/24", n: 1, want: ips("120.1.0.1")},
		{name: "the second prefix", cidr: "120.1.0.0/30 120.2.0.0/30", taken: ips("120.1.0.1", "120.1.0.2"), n: 1, want: ips("120.2.0.1")},
		{name: "IPv6", cidr: "fd00::/120", n: 2, want: ips("fd00::1", "fd00::2")},
		{name: "none", cidr: "120.1.0.0/24", n: 0, want: nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := ipam.NewPool(prefixes(tc.cidr)...)
			for _, ip := range tc.taken {
				if !p.Take(ip) {
					t.Fatalf("%s is not free", ip)
				}
			}
			got, ok := p.Next(tc.n)
			if ok != (len(tc.want) == tc.n) {
				t.Errorf("ok = %v", ok)
			}
			if diff := cmp.Diff(tc.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestSizes(t *testing.T) {
	for cidr, want := range map[string]int{
		"120.1.0.0/24": 254, "120.1.0.0/30": 2, "120.1.0.0/31": 0, "120.1.0.0/32": 0, "120.0.0.0/8": 1<<24 - 2, "fd00::/8": 1 << 30,
		"120.1.0.0/24 120.2.0.0/24": 508,
	} {
		if got := ipam.NewPool(prefixes(cidr)...).Size(); got != want {
			t.Errorf("size of %s: got %d, want %d", cidr, got, want)
		}
	}
}

// Whatever is taken and released: nothing twice, only usable addresses, the lowest first, and the
// counts are right.
func TestPoolNeverGivesTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cidr := netip.PrefixFrom(netip.MustParseAddr("120.1.0.0"), rapid.IntRange(26, 30).Draw(t, "bits"))
		p := ipam.NewPool(cidr)
		broadcast := lastByCounting(cidr)
		have := map[netip.Addr]bool{}
		t.Repeat(map[string]func(*rapid.T){
			"next": func(t *rapid.T) {
				n := rapid.IntRange(1, 9).Draw(t, "n")
				free := p.Free()
				got, ok := p.Next(n)
				if ok != (n <= free) {
					t.Fatalf("asked for %d of %d free: %v", n, free, ok)
				}
				for _, ip := range got {
					if have[ip] || !cidr.Contains(ip) || ip == cidr.Addr() || ip == broadcast {
						t.Fatalf("gave out %s", ip)
					}
					have[ip] = true
				}
				if n == 1 && ok {
					for ip := cidr.Addr().Next(); ip.Less(got[0]); ip = ip.Next() {
						if !have[ip] {
							t.Fatalf("gave out %s although %s is free", got[0], ip)
						}
					}
				}
			},
			"take": func(t *rapid.T) {
				ip := netip.AddrFrom4([4]byte{120, 1, 0, rapid.Byte().Draw(t, "last byte")})
				want := cidr.Contains(ip) && ip != cidr.Addr() && ip != broadcast && !have[ip]
				if got := p.Take(ip); got != want {
					t.Fatalf("take %s: got %v, want %v", ip, got, want)
				}
				if want {
					have[ip] = true
				}
			},
			"release": func(t *rapid.T) {
				ip := netip.AddrFrom4([4]byte{120, 1, 0, rapid.Byte().Draw(t, "last byte")})
				p.Release(ip)
				delete(have, ip)
			},
			"": func(t *rapid.T) {
				if p.Size()-p.Free() != len(have) {
					t.Fatalf("%d are taken, %d counted", len(have), p.Size()-p.Free())
				}
			},
		})
	})
}

func lastByCounting(prefix netip.Prefix) netip.Addr {
	last := prefix.Addr()
	for ip := last; prefix.Contains(ip); ip = ip.Next() {
		last = ip
	}
	return last
}
