package clusterdns

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func TestStubDomains(t *testing.T) {
	f := &Forward{Zones: []string{"clusterset.local", "example.org"}, To: netip.MustParseAddr("10.77.0.20"), Cache: 5 * time.Second}
	moved := &Forward{Zones: []string{"Clusterset.Local."}, To: netip.MustParseAddr("10.77.0.21")}
	const ours = `{"clusterset.local":["10.77.0.20"],"example.org":["10.77.0.20"]}`
	for name, tt := range map[string]struct {
		have, owned string
		f           *Forward
		want        string // "": no change
		wantOwned   string
		err         string
	}{
		"the key is missing":               {"", "", f, ours, "clusterset.local,example.org", ""},
		"it is as it must be":              {ours, "clusterset.local,example.org", f, "", "", ""},
		"entries of others stay":           {`{"acme.local": ["1.2.3.4", "1.2.3.5"]}`, "", moved, `{"acme.local":["1.2.3.4","1.2.3.5"],"clusterset.local":["10.77.0.21"]}`, "clusterset.local", ""},
		"the address and the zones change": {ours, "clusterset.local,example.org", moved, `{"clusterset.local":["10.77.0.21"]}`, "clusterset.local", ""},
		"somebody removed the entries":     {"", "clusterset.local,example.org", f, ours, "clusterset.local,example.org", ""},
		"unjoin":                           {ours, "clusterset.local,example.org", nil, "none", "", ""},
		"unjoin beside entries of others":  {`{"acme.local":["1.2.3.4"],"clusterset.local":["10.77.0.20"]}`, "clusterset.local", nil, `{"acme.local":["1.2.3.4"]}`, "", ""},
		"unjoin without entries of ours":   {`{"acme.local":["1.2.3.4"]}`, "", nil, "", "", ""},
		"a zone of another":                {`{"example.org":["1.2.3.4"]}`, "", f, "", "", "sends example.org to 1.2.3.4 already: delete that entry"},
		"no JSON":                          {`clusterset.local=1.2.3.4`, "", f, "", "", "it is no JSON object"},
		"a Service without a ClusterIP":    {"", "", &Forward{Zones: f.Zones}, "", "", "must not be headless"},
	} {
		cm := &corev1.ConfigMap{Data: map[string]string{"upstreamNameservers": "kept"}}
		if tt.have != "" {
			cm.Data[kubeDNS.Key] = tt.have
		}
		if tt.owned != "" {
			cm.Annotations = map[string]string{annotationStubDomains: tt.owned}
		}
		changed, err := kubeDNS.apply(cm, tt.f)
		if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: error %v, want one with %q", name, err, tt.err)
		}
		if changed != (tt.want != "") {
			t.Errorf("%s: changed %t", name, changed)
		}
		if got := cm.Data[kubeDNS.Key]; changed && got != strings.TrimPrefix(tt.want, "none") || !changed && got != tt.have || cm.Data["upstreamNameservers"] != "kept" {
			t.Errorf("%s: %v, want %s", name, cm.Data, tt.want)
		}
		if got := cm.Annotations[annotationStubDomains]; changed && got != tt.wantOwned {
			t.Errorf("%s: owns %q, want %q", name, got, tt.wantOwned)
		}
		if changed && tt.f != nil && kubeDNS.Forwards(cm, *tt.f) != nil {
			t.Errorf("%s: it does not forward", name)
		}
	}
}
