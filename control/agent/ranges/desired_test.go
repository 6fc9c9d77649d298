package ranges

import (
	"net/netip"
	"strings"
	"testing"
)

func TestOutgrown(t *testing.T) {
	p := netip.MustParsePrefix
	have := Registered{ClusterID: "g1", Pods: []netip.Prefix{p("10.7.0.0/16")}, Services: []netip.Prefix{p("10.77.0.0/16")}}
	for name, tt := range map[string]struct {
		ranges []Range
		want   string // the end of the message
	}{
		"nothing known":          {nil, ""},
		"all inside":             {[]Range{{"ServiceCIDR kubernetes", p("10.77.0.0/16"), true}, {"CiliumNode n1", p("10.7.3.0/24"), false}}, ""},
		"IPv6 has no range":      {[]Range{{"IPPool v6", p("fd00::/64"), false}}, ""},
		"a second pool":          {[]Range{{"IPPool more", p("10.8.0.0/16"), false}}, "register them: pelago join broker-info.subm --clusterid g1 --clustercidr 10.7.0.0/16,10.8.0.0/16"},
		"a larger pool":          {[]Range{{"IPPool all", p("10.0.0.0/8"), false}}, "--clustercidr 10.0.0.0/8"},
		"a pool and nodes":       {[]Range{{"CiliumNode n1", p("10.8.1.0/24"), false}, {"IPPool all", p("10.8.0.0/16"), false}}, "--clustercidr 10.7.0.0/16,10.8.0.0/16"},
		"a second of ClusterIPs": {[]Range{{"ServiceCIDR more", p("10.78.0.0/16"), true}}, "--clusterid g1 --servicecidr 10.77.0.0/16,10.78.0.0/16"},
		"both": {[]Range{{"ServiceCIDR more", p("10.78.0.0/16"), true}, {"IPPool more", p("10.8.0.0/16"), false}},
			"--clustercidr 10.7.0.0/16,10.8.0.0/16 --servicecidr 10.77.0.0/16,10.78.0.0/16"},
	} {
		got := Outgrown(have, tt.ranges)
		if (tt.want == "") != (got == "") || !strings.HasSuffix(got, tt.want) {
			t.Errorf("%s: %q, want one that ends with %q", name, got, tt.want)
		}
		if got != "" && !strings.HasPrefix(got, tt.ranges[0].Object+" has "+tt.ranges[0].Prefix.String()) {
			t.Errorf("%s: %q does not name object and range", name, got)
		}
	}
}
