package broker

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestCableDriver(t *testing.T) {
	for name, tt := range map[string]struct {
		joined      string // drivers of c1, c2, …; "-": not recorded
		id          string
		said, first string
		want        string
	}{
		"the first cluster":                     {id: "c1", want: "wireguard"},
		"the first one, from Submariner":        {id: "c1", first: "libreswan", want: "libreswan"},
		"one is given":                          {joined: "wireguard", id: "c2", said: "vxlan", want: "vxlan"},
		"that of the others":                    {joined: "libreswan", id: "c2", want: "libreswan"},
		"of the others before Submariner's":     {joined: "wireguard", id: "c2", first: "libreswan", want: "wireguard"},
		"one wrong cluster does not decide":     {joined: "wireguard vxlan", id: "c3", want: "wireguard"},
		"nor two of five":                       {joined: "vxlan libreswan libreswan vxlan libreswan", id: "c6", want: "libreswan"},
		"joining again keeps it":                {joined: "wireguard vxlan", id: "c2", want: "vxlan"},
		"joining again with another":            {joined: "wireguard vxlan", id: "c2", said: "wireguard", want: "wireguard"},
		"clusters of a release without":         {joined: "- -", id: "c3", want: "wireguard"},
		"and one of Submariner":                 {joined: "- -", id: "c3", first: "libreswan", want: "wireguard"},
		"joining again after such a release":    {joined: "- libreswan", id: "c1", want: "libreswan"},
		"joining again after one, with its own": {joined: "- libreswan", id: "c1", said: "wireguard", want: "wireguard"},
	} {
		var b Book
		for i, driver := range strings.Fields(tt.joined) {
			b.Clusters = append(b.Clusters, Entry{ClusterID: fmt.Sprintf("c%d", i+1), ClusterUID: fmt.Sprintf("uid-c%d", i+1), ClusterIndex: i + 1,
				CableDriver: strings.Trim(driver, "-")})
		}
		before := fmt.Sprint(b.Clusters)
		e, next, err := b.Allocate(Request{ClusterID: tt.id, ClusterUID: "uid-" + tt.id, CableDriver: tt.said, FirstCableDriver: tt.first})
		if err != nil || e.CableDriver != tt.want {
			t.Errorf("%s: %q, %v, want %q", name, e.CableDriver, err, tt.want)
		}
		if again, _, err := next.Allocate(Request{ClusterID: tt.id, ClusterUID: "uid-" + tt.id}); err != nil || again.CableDriver != tt.want {
			t.Errorf("%s: the book has %q, %v", name, again.CableDriver, err)
		}
		if fmt.Sprint(b.Clusters) != before {
			t.Errorf("%s: the former book has changed", name)
		}
	}
}

// TestNoDriverGiven: clusters of which none is given a driver have the same one, in whatever order
// and way they join and leave.
func TestNoDriverGiven(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b Book
		for range rapid.IntRange(1, 20).Draw(t, "operations") {
			id := fmt.Sprintf("c%d", rapid.IntRange(1, 6).Draw(t, "cluster"))
			if rapid.IntRange(0, 3).Draw(t, "operation") == 0 {
				b = b.Release(id)
				continue
			}
			r := Request{ClusterID: id, ClusterUID: "uid-" + id, FirstCableDriver: rapid.SampledFrom([]string{"", "libreswan", "vxlan"}).Draw(t, "first")}
			var err error
			if _, b, err = b.Allocate(r); err != nil {
				t.Fatal(err)
			}
			for _, e := range b.Clusters {
				if e.CableDriver != b.Clusters[0].CableDriver || e.CableDriver == "" {
					t.Fatalf("drivers differ: %v", b.Clusters)
				}
			}
		}
	})
}
