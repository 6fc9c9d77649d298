package broker

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

var comparePrefixes = cmpopts.EquateComparable(netip.Prefix{})

func prefixes(texts ...string) []netip.Prefix {
	out := []netip.Prefix{}
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

// walkthrough is the book of the published walk-through with cluster g1 in it.
func walkthrough(t testing.TB) Book {
	t.Helper()
	b, err := NewBook(true, netip.MustParsePrefix("120.0.0.0/8"), 65536)
	if err != nil {
		t.Fatal(err)
	}
	_, b, err = b.Allocate(Request{ClusterID: "g1", ClusterUID: "uid-1", GlobalCIDR: netip.MustParsePrefix("120.1.0.0/24"),
		Pods: prefixes("10.7.0.0/16", "10.77.0.0/16")})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestAllocate(t *testing.T) {
	local := prefixes("10.7.0.0/16", "10.77.0.0/16")
	tests := map[string]struct {
		request Request
		want    Entry
		wantErr string
	}{
		"asked for": {
			request: Request{ClusterID: "g2", ClusterUID: "uid-2", GlobalCIDR: netip.MustParsePrefix("120.2.0.0/24"), Pods: local},
			want:    Entry{ClusterID: "g2", ClusterUID: "uid-2", ClusterIndex: 2, GlobalCIDR: prefixes("120.2.0.0/24")},
		},
		"first that fits": {
			request: Request{ClusterID: "g2", ClusterUID: "uid-2", Pods: local},
			want:    Entry{ClusterID: "g2", ClusterUID: "uid-2", ClusterIndex: 2, GlobalCIDR: prefixes("120.0.0.0/16")},
		},
		"size is rounded up to a power of two": {
			request: Request{ClusterID: "g2", ClusterUID: "uid-2", Size: 200, Pods: local},
			want:    Entry{ClusterID: "g2", ClusterUID: "uid-2", ClusterIndex: 2, GlobalCIDR: prefixes("120.0.0.0/24")},
		},
		"own ranges are skipped": {
			request: Request{ClusterID: "g2", ClusterUID: "uid-2", Pods: prefixes("120.0.0.0/16")},
			want:    Entry{ClusterID: "g2", ClusterUID: "uid-2", ClusterIndex: 2, GlobalCIDR: prefixes("120.2.0.0/16")},
		},
		"joining again gives what it has": {
			request: Request{ClusterID: "g1", ClusterUID: "uid-1", Pods: local},
			want:    Entry{ClusterID: "g1", ClusterUID: "uid-1", ClusterIndex: 1, GlobalCIDR: prefixes("120.1.0.0/24")},
		},
		"joining again with the size that it has": {
			request: Request{ClusterID: "g1", ClusterUID: "uid-1", Size: 200, Pods: local},
			want:    Entry{ClusterID: "g1", ClusterUID: "uid-1", ClusterIndex: 1, GlobalCIDR: prefixes("120.1.0.0/24")},
		},
		"joining again with another size": {
			request: Request{ClusterID: "g1", ClusterUID: "uid-1", Size: 1024, Pods: local},
			wantErr: "is registered with the GlobalCIDR 120.1.0.0/24 of 256 addresses",
		},
		"joining again with another range": {
			request: Request{ClusterID: "g1", ClusterUID: "uid-1", GlobalCIDR: netip.MustParsePrefix("120.9.0.0/24")},
			wantErr: "already has GlobalCIDR [120.1.0.0/24] and keeps it",
		},
		"id of another cluster": {
			request: Request{ClusterID: "g1", ClusterUID: "uid-2"},
			wantErr: `cluster id "g1" belongs to another cluster`,
		},
		"same cluster under another id": {
			request: Request{ClusterID: "g3", ClusterUID: "uid-1"},
			wantErr: `this cluster is registered as "g1"`,
		},
		"overlap with another cluster": {
			request: Request{ClusterID: "g2", ClusterUID: "uid-2", GlobalCIDR: netip.MustParsePrefix("120.1.0.128/25")},
			wantErr: `overlaps 120.1.0.0/24 of cluster "g1"`,
		},
		"outside the range": {
			request: Request{ClusterID: "g2", ClusterUID: "uid-2", GlobalCIDR: netip.MustParsePrefix("121.0.0.0/24")},
			wantErr: "does not lie inside the clusterset's range 120.0.0.0/8",
		},
		"larger than the range": {
			request: Request{ClusterID: "g2", ClusterUID: "uid-2", GlobalCIDR: netip.MustParsePrefix("120.0.0.0/7")},
			wantErr: "does not lie inside",
		},
		"host bits": {
			request: Request{ClusterID: "g2", ClusterUID: "uid-2", GlobalCIDR: netip.MustParsePrefix("120.2.0.1/24")},
			wantErr: "write 120.2.0.0/24",
		},
		"too small": {
			request: Request{ClusterID: "g2", ClusterUID: "uid-2", GlobalCIDR: netip.MustParsePrefix("120.2.0.0/29")},
			wantErr: "at least 16 are needed",
		},
		"IPv6": {
			request: Request{ClusterID: "g2", ClusterUID: "uid-2", GlobalCIDR: netip.MustParsePrefix("fd00::/64")},
			wantErr: "is no IPv4 range",
		},
		"overlap with its own pods": {
			request: Request{ClusterID: "g2", ClusterUID: "uid-2", GlobalCIDR: netip.MustParsePrefix("120.2.0.0/24"), Pods: prefixes("120.2.0.0/16")},
			wantErr: "overlaps this cluster's own range 120.2.0.0/16",
		},
		"external hosts among global IPs": {
			request: Request{ClusterID: "g2", ClusterUID: "uid-2", Pods: local, External: prefixes("120.9.0.0/24")},
			wantErr: "spec.externalCIDR 120.9.0.0/24 overlaps the globalnet range 120.0.0.0/8",
		},
		"too large": {
			request: Request{ClusterID: "g2", ClusterUID: "uid-2", Size: 1 << 24},
			wantErr: "has no room for 16777216 addresses",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			before := walkthrough(t)
			got, after, err := before.Allocate(tt.request)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Fatalf("error %v, want one with %q", err, tt.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			tt.want.CableDriver = "wireguard" // of the first cluster that is given none
			if diff := cmp.Diff(tt.want, got, comparePrefixes); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if len(before.Clusters) != 1 {
				t.Error("the book that was asked has changed")
			}
			data, err := after.Data()
			if err != nil {
				t.Fatal(err)
			}
			again, err := ParseBook(data)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(after, again, comparePrefixes); diff != "" {
				t.Errorf("written and read again: -want +got\n%s", diff)
			}
		})
	}
}

func TestAllocateWithoutGlobalnet(t *testing.T) {
	var b Book
	e, _, err := b.Allocate(Request{ClusterID: "c1", ClusterUID: "uid-1"})
	if err != nil || len(e.GlobalCIDR) != 0 || e.ClusterIndex != 1 {
		t.Errorf("got %+v, %v; want index 1 and no GlobalCIDR", e, err)
	}
	_, _, err = b.Allocate(Request{ClusterID: "c1", ClusterUID: "uid-1", GlobalCIDR: netip.MustParsePrefix("120.1.0.0/24")})
	if err == nil || !strings.Contains(err.Error(), "has no globalnet") {
		t.Errorf("asking for a GlobalCIDR: error %v", err)
	}
}

func TestAllocateWithoutNetwork(t *testing.T) {
	r := Request{ClusterID: "w1", ClusterUID: "u1", WorkloadsOnly: true}
	e, b, err := walkthrough(t).Allocate(r)
	if err != nil || e.ClusterIndex != 2 || len(e.GlobalCIDR)+len(e.ClusterSetIPCIDR) > 0 || !e.WorkloadsOnly {
		t.Fatalf("%+v, %v; want an index and no range", e, err)
	}
	if again, same, err := b.Allocate(r); err != nil || again.ClusterIndex != 2 || len(same.Clusters) != 2 {
		t.Errorf("again: %+v, %d clusters, %v", again, len(same.Clusters), err)
	}
	for name, r := range map[string]Request{
		"registered with spec.workloadsOnly": {ClusterID: "w1", ClusterUID: "u1"},
		"belongs to another cluster":         {ClusterID: "w1", ClusterUID: "u2", WorkloadsOnly: true},
		`this cluster is registered as "w1"`: {ClusterID: "w2", ClusterUID: "u1", WorkloadsOnly: true},
	} {
		if _, _, err := b.Allocate(r); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%+v: %v, want %q", r, err, name)
		}
	}
}

func TestReleasedRangeAndIndexAreGivenAgain(t *testing.T) {
	b := walkthrough(t).Release("g1")
	e, _, err := b.Allocate(Request{ClusterID: "other", ClusterUID: "uid-9", GlobalCIDR: netip.MustParsePrefix("120.1.0.0/24")})
	if err != nil || e.ClusterIndex != 1 {
		t.Errorf("got %+v, %v; want index 1", e, err)
	}
}

func TestNewBook(t *testing.T) {
	tests := map[string]struct {
		cidr    string
		size    uint64
		want    uint64
		wantErr string
	}{
		"default":         {cidr: "242.0.0.0/8", size: 65536, want: 65536},
		"rounded":         {cidr: "120.0.0.0/8", size: 1000, want: 1024},
		"half":            {cidr: "120.0.0.0/24", size: 128, want: 128},
		"more than half":  {cidr: "120.0.0.0/24", size: 129, wantErr: "more than half of the range 120.0.0.0/24: at most 128"},
		"too small":       {cidr: "120.0.0.0/24", size: 8, wantErr: "not between 16"},
		"host bits":       {cidr: "120.0.0.1/8", size: 1024, wantErr: "write 120.0.0.0/8"},
		"IPv6":            {cidr: "fd00::/48", size: 1024, wantErr: "no IPv4 range"},
		"loopback":        {cidr: "127.0.0.0/8", size: 1024, wantErr: "hosts do not route"},
		"multicast":       {cidr: "239.0.0.0/8", size: 1024, wantErr: "hosts do not route"},
		"everything":      {cidr: "0.0.0.0/0", size: 1024, wantErr: "hosts do not route"},
		"a range of four": {cidr: "120.0.0.0/30", size: 16, wantErr: "more than half"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b, err := NewBook(true, netip.MustParsePrefix(tt.cidr), tt.size)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Fatalf("error %v, want one with %q", err, tt.wantErr)
				}
				return
			}
			if err != nil || b.ClusterSize != tt.want {
				t.Errorf("got size %d, %v; want %d", b.ClusterSize, err, tt.want)
			}
		})
	}
}

func TestParseBookNamesWhatIsWrong(t *testing.T) {
	for name, tt := range map[string]struct {
		data map[string]string
		want string
	}{
		"empty":        {nil, "globalnetEnabled"},
		"bad range":    {map[string]string{"globalnetEnabled": "true", "globalnetCidrRange": "x", "globalnetClusterSize": "1024"}, "globalnetCidrRange"},
		"bad size":     {map[string]string{"globalnetEnabled": "true", "globalnetCidrRange": "120.0.0.0/8", "globalnetClusterSize": "0"}, "globalnetClusterSize"},
		"bad clusters": {map[string]string{"globalnetEnabled": "false", "clusterinfo": "["}, "clusterinfo"},
	} {
		if _, err := ParseBook(tt.data); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, tt.want)
		}
	}
	// Submariner writes the range as a JSON string or list.
	for _, text := range []string{`120.0.0.0/8`, `"120.0.0.0/8"`, `["120.0.0.0/8"]`} {
		b, err := ParseBook(map[string]string{"globalnetEnabled": "true", "globalnetCidrRange": text, "globalnetClusterSize": "65536"})
		if err != nil || b.Range.String() != "120.0.0.0/8" {
			t.Errorf("range %s: got %s, %v", text, b.Range, err)
		}
	}
}

// Whatever joins and leaves in whatever order: ranges lie inside, never overlap each other or the
// cluster's own, indexes are distinct, and the same requests give the same book.
func TestAllocationProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		length := rapid.IntRange(8, 20).Draw(t, "range length")
		within := netip.PrefixFrom(toAddr(rapid.Uint32().Draw(t, "range")%(96<<24)+(16<<24)), length).Masked()
		size := uint64(1) << rapid.IntRange(4, 32-length-1).Draw(t, "log of the size")
		b, err := NewBook(true, within, size)
		if err != nil {
			t.Fatal(err)
		}
		same := b
		for i := range rapid.IntRange(1, 40).Draw(t, "operations") {
			id := fmt.Sprintf("c%d", rapid.IntRange(0, 30).Draw(t, "cluster"))
			if rapid.IntRange(0, 4).Draw(t, "operation") == 0 {
				b, same = b.Release(id), same.Release(id)
				continue
			}
			r := Request{ClusterID: id, ClusterUID: "uid-" + id}
			if rapid.Bool().Draw(t, "own size") {
				r.Size = uint64(rapid.IntRange(16, 4096).Draw(t, "size"))
			}
			if rapid.Bool().Draw(t, "asks") {
				bits := rapid.IntRange(length, 28).Draw(t, "length")
				offset := rapid.Uint32().Draw(t, "offset") % uint32(addresses(within))
				r.GlobalCIDR = netip.PrefixFrom(toAddr(toUint(within.Addr())+offset), bits).Masked()
			}
			for range rapid.IntRange(0, 2).Draw(t, "own ranges") {
				r.Pods = append(r.Pods, netip.PrefixFrom(toAddr(toUint(within.Addr())+rapid.Uint32().Draw(t, "own")%uint32(addresses(within))),
					rapid.IntRange(length, 28).Draw(t, "own length")).Masked())
			}
			e, next, err := b.Allocate(r)
			e2, next2, err2 := same.Allocate(r)
			if diff := cmp.Diff(e, e2, comparePrefixes); diff != "" || (err == nil) != (err2 == nil) {
				t.Fatalf("operation %d: the same request on the same book gave two answers\n%s", i, diff)
			}
			if err != nil {
				continue
			}
			for _, g := range e.GlobalCIDR {
				if err := disjoint(g, unnamed(r.Pods)); err != nil {
					t.Fatal(err)
				}
			}
			b, same = next, next2
			checkBook(t, b)
		}
	})
}

func checkBook(t *rapid.T, b Book) {
	indexes := map[int]string{}
	for i, e := range b.Clusters {
		if other, taken := indexes[e.ClusterIndex]; taken || e.ClusterIndex < 1 {
			t.Fatalf("clusters %s and %s both have index %d", e.ClusterID, other, e.ClusterIndex)
		}
		indexes[e.ClusterIndex] = e.ClusterID
		for _, g := range e.GlobalCIDR {
			if !b.Range.Contains(g.Addr()) || g.Bits() < b.Range.Bits() || g != g.Masked() {
				t.Fatalf("%s is not a range inside %s", g, b.Range)
			}
			for _, f := range b.Clusters[:i] {
				for _, o := range f.GlobalCIDR {
					if g.Overlaps(o) {
						t.Fatalf("%s of %s overlaps %s of %s", g, e.ClusterID, o, f.ClusterID)
					}
				}
			}
		}
	}
}
