package broker

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// withVIPs is the book of the published walk-through with a range of ClusterSetIPs and cluster c1,
// which has the first /20 of it.
func withVIPs(t testing.TB, within string) Book {
	t.Helper()
	b, err := NewBook(true, netip.MustParsePrefix("120.0.0.0/8"), 65536)
	if err == nil {
		b, err = b.WithClusterSetIPs(netip.MustParsePrefix(within))
	}
	if err != nil {
		t.Fatal(err)
	}
	_, b, err = b.Allocate(Request{ClusterID: "c1", ClusterUID: "uid-1"})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestAllocateClusterSetIPRange(t *testing.T) {
	for name, tt := range map[string]struct {
		within  string
		request Request
		want    string
		wantErr string
	}{
		"the first free /20":             {request: Request{ClusterID: "c2", ClusterUID: "uid-2"}, want: "243.0.16.0/20"},
		"asked for":                      {request: Request{ClusterID: "c2", ClusterUID: "uid-2", ClusterSetIPCIDR: netip.MustParsePrefix("243.9.0.0/24")}, want: "243.9.0.0/24"},
		"joining again keeps it":         {request: Request{ClusterID: "c1", ClusterUID: "uid-1"}, want: "243.0.0.0/20"},
		"joining again with the same":    {request: Request{ClusterID: "c1", ClusterUID: "uid-1", ClusterSetIPCIDR: netip.MustParsePrefix("243.0.0.0/20")}, want: "243.0.0.0/20"},
		"joining again with another":     {request: Request{ClusterID: "c1", ClusterUID: "uid-1", ClusterSetIPCIDR: netip.MustParsePrefix("243.9.0.0/20")}, wantErr: "already has the ClusterSetIP range [243.0.0.0/20] and keeps it"},
		"that of another cluster":        {request: Request{ClusterID: "c2", ClusterUID: "uid-2", ClusterSetIPCIDR: netip.MustParsePrefix("243.0.8.0/24")}, wantErr: `ClusterSetIP range 243.0.8.0/24 overlaps 243.0.0.0/20 of cluster "c1"`},
		"outside":                        {request: Request{ClusterID: "c2", ClusterUID: "uid-2", ClusterSetIPCIDR: netip.MustParsePrefix("244.0.0.0/20")}, wantErr: "does not lie inside the clusterset's range 243.0.0.0/8"},
		"host bits":                      {request: Request{ClusterID: "c2", ClusterUID: "uid-2", ClusterSetIPCIDR: netip.MustParsePrefix("243.9.0.1/20")}, wantErr: "write 243.9.0.0/20"},
		"too small":                      {request: Request{ClusterID: "c2", ClusterUID: "uid-2", ClusterSetIPCIDR: netip.MustParsePrefix("243.9.0.0/29")}, wantErr: "at least 16 are needed"},
		"IPv6":                           {request: Request{ClusterID: "c2", ClusterUID: "uid-2", ClusterSetIPCIDR: netip.MustParsePrefix("fd00::/64")}, wantErr: "is no IPv4 range"},
		"pods or services in the range":  {request: Request{ClusterID: "c2", ClusterUID: "uid-2", Pods: prefixes("243.7.0.0/16")}, wantErr: "range 243.7.0.0/16 of this cluster overlaps the clusterset's range 243.0.0.0/8 of ClusterSetIPs: deploy the broker with another --clusterset-ip-cidr-range"},
		"a node in the range":            {request: Request{ClusterID: "c2", ClusterUID: "uid-2", Nodes: []netip.Addr{netip.MustParseAddr("243.7.0.1")}}, wantErr: "range 243.7.0.1/32 of this cluster overlaps"},
		"the hub in the range":           {request: Request{ClusterID: "c2", ClusterUID: "uid-2", Hub: []netip.Addr{netip.MustParseAddr("243.7.0.1")}}, wantErr: "contains the hub's address 243.7.0.1"},
		"joining again, a node moved in": {request: Request{ClusterID: "c1", ClusterUID: "uid-1", Nodes: []netip.Addr{netip.MustParseAddr("243.7.0.1")}}, wantErr: "range 243.7.0.1/32 of this cluster overlaps"},
		"the last /20":                   {within: "243.0.0.0/19", request: Request{ClusterID: "c2", ClusterUID: "uid-2"}, want: "243.0.16.0/20"},
	} {
		t.Run(name, func(t *testing.T) {
			before := withVIPs(t, max(tt.within, "243.0.0.0/8"))
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
			if diff := cmp.Diff(prefixes(tt.want), got.ClusterSetIPCIDR, comparePrefixes); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			data, err := after.Data()
			if err != nil {
				t.Fatal(err)
			}
			again, err := ParseBook(data)
			if diff := cmp.Diff(after, again, comparePrefixes); diff != "" || err != nil {
				t.Errorf("written and read again: %v; -want +got\n%s", err, diff)
			}
		})
	}
}

func TestClusterSetIPRangeIsFull(t *testing.T) {
	b := withVIPs(t, "243.0.0.0/19")
	_, b, err := b.Allocate(Request{ClusterID: "c2", ClusterUID: "uid-2"})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err = b.Allocate(Request{ClusterID: "c3", ClusterUID: "uid-3"}); err == nil || !strings.Contains(err.Error(), "the range 243.0.0.0/19 of ClusterSetIPs has no room for a /20") {
		t.Errorf("a third cluster: %v", err)
	}
	e, _, err := b.Release("c1").Allocate(Request{ClusterID: "c3", ClusterUID: "uid-3"})
	if err != nil || len(e.ClusterSetIPCIDR) != 1 || e.ClusterSetIPCIDR[0].String() != "243.0.0.0/20" {
		t.Errorf("after one has left: %v, %v", e, err)
	}
}

func TestWithClusterSetIPs(t *testing.T) {
	globalnet, err := NewBook(true, netip.MustParsePrefix("243.0.0.0/9"), 65536)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		book    Book
		cidr    netip.Prefix
		wantErr string
	}{
		"default":                {cidr: netip.MustParsePrefix("243.0.0.0/8")},
		"two clusters":           {cidr: netip.MustParsePrefix("243.0.0.0/19")},
		"one cluster":            {cidr: netip.MustParsePrefix("243.0.0.0/20"), wantErr: "no room for two clusters"},
		"host bits":              {cidr: netip.MustParsePrefix("243.1.0.0/8"), wantErr: "write 243.0.0.0/8"},
		"IPv6":                   {cidr: netip.MustParsePrefix("fd00::/64"), wantErr: "is no IPv4 range"},
		"none":                   {wantErr: "is no IPv4 range"},
		"multicast":              {cidr: netip.MustParsePrefix("239.0.0.0/8"), wantErr: "multicast"},
		"overlap with globalnet": {book: globalnet, cidr: netip.MustParsePrefix("243.0.0.0/8"), wantErr: "overlaps the globalnet range 243.0.0.0/9: choose another with spec.clustersetIPCIDRRange"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tt.book.WithClusterSetIPs(tt.cidr)
			if (err == nil) != (tt.wantErr == "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("error %v, want %q", err, tt.wantErr)
			}
		})
	}
	if _, _, err := (Book{}).Allocate(Request{ClusterID: "c1", ClusterUID: "uid-1", ClusterSetIPCIDR: netip.MustParsePrefix("243.0.0.0/20")}); err == nil ||
		!strings.Contains(err.Error(), "join without spec.clustersetIPCIDR") {
		t.Errorf("a range in a book without: %v", err)
	}
	_, err = ParseBook(map[string]string{keyEnabled: "false", keyVIPRange: "nonsense"})
	if err == nil || !strings.Contains(err.Error(), "key clustersetIPCIDRRange") {
		t.Errorf("a book with a broken range: %v", err)
	}
}

// The book of an earlier release gets the range while clusters are registered; a change is refused
// then.
func TestSetupAddsTheClusterSetIPRange(t *testing.T) {
	old, err := NewBook(true, netip.MustParsePrefix("120.0.0.0/8"), 65536)
	if err != nil {
		t.Fatal(err)
	}
	h := openHubWith(t, old)
	_, g1 := h.join(t, "g1", "120.1.0.0/24")
	former := Request{ClusterID: "g1", ClusterUID: g1.ClusterUID, Fabric: fabric}
	set := Clusterset{Mode: "submariner", HubID: "hub", Fabric: fabric, AutoAcceptNetwork: true}
	with := func(cidr string) Book {
		b, err := old.WithClusterSetIPs(netip.MustParsePrefix(cidr))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if _, err := Setup(t.Context(), h.admin, with("10.0.0.0/8"), set, nil); err == nil || !strings.Contains(err.Error(), `of cluster "g1" overlaps the clusterset's range 10.0.0.0/8 of ClusterSetIPs`) {
		t.Errorf("a range with the pods of a registered cluster: %v", err)
	}
	if _, err := Setup(t.Context(), h.admin, with("243.0.0.0/8"), set, nil); err != nil {
		t.Fatal(err)
	}
	_, entry := h.join(t, "g2", "120.2.0.0/24")
	if diff := cmp.Diff(prefixes("243.0.0.0/20"), entry.ClusterSetIPCIDR, comparePrefixes); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	again, err := Claim(t.Context(), h.admin, namespace, former)
	if err != nil || len(again.ClusterSetIPCIDR) > 0 {
		t.Errorf("g1 joins again: %v, range %v; want it to stay without", err, again.ClusterSetIPCIDR)
	}
	if _, err := Setup(t.Context(), h.admin, with("244.0.0.0/8"), set, nil); err == nil || !strings.Contains(err.Error(), "change the range of ClusterSetIPs from 243.0.0.0/8 to 244.0.0.0/8: 2 clusters are registered") {
		t.Errorf("another range: %v", err)
	}
}

func TestClusterSetIPRangesAreDisjoint(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b, err := Book{}.WithClusterSetIPs(netip.MustParsePrefix("243.0.0.0/16"))
		if err != nil {
			rt.Fatal(err)
		}
		ids := []string{"a", "b", "c", "d"}
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			id := rapid.SampledFrom(ids).Draw(rt, "cluster")
			if rapid.Bool().Draw(rt, "leaves") {
				b = b.Release(id)
				continue
			}
			r := Request{ClusterID: id, ClusterUID: id}
			if rapid.Bool().Draw(rt, "asks") {
				bits := rapid.IntRange(16, 28).Draw(rt, "bits")
				r.ClusterSetIPCIDR = netip.PrefixFrom(toAddr(243<<24|rapid.Uint32Range(0, 1<<16-1).Draw(rt, "at")), bits).Masked()
			}
			if _, next, err := b.Allocate(r); err == nil {
				b = next
			}
		}
		for i, x := range b.Clusters {
			for _, y := range b.Clusters[i+1:] {
				if x.ClusterSetIPCIDR[0].Overlaps(y.ClusterSetIPCIDR[0]) {
					rt.Fatalf("%v overlaps %v", x, y)
				}
			}
		}
	})
}
