package clusterdns

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// kubeadm is the Corefile that most clusters begin with.
const kubeadm = `.:53 {
    errors
    health {
       lameduck 5s
    }
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
       pods insecure
       fallthrough in-addr.arpa ip6.arpa
       ttl 30
    }
    prometheus :9153
    forward . /etc/resolv.conf {
       max_concurrent 1000
    }
    cache 30
    loop
    reload
    loadbalance
}
`

const block = `#pelago-start AUTO-GENERATED SECTION. DO NOT EDIT
clusterset.local:53 {
    forward . 10.77.0.20
}
#pelago-end
`

var server20 = netip.MustParseAddr("10.77.0.20")

func TestPatch(t *testing.T) {
	one := []string{"clusterset.local"}
	for _, c := range []struct {
		about    string
		corefile string
		zones    []string
		to       netip.Addr
		want     string // "": refused
		problem  string
	}{
		{"first time: in front, the rest as it was", kubeadm, one, server20, block + kubeadm, ""},
		{"again: nothing changes", block + kubeadm, one, server20, block + kubeadm, ""},
		{"another address", block + kubeadm, one, netip.MustParseAddr("10.77.0.21"), strings.ReplaceAll(block, "0.20", "0.21") + kubeadm, ""},
		{"moved by a person: it stays there", kubeadm + block + "# mine", one, netip.MustParseAddr("10.77.0.21"), kubeadm + strings.ReplaceAll(block, "0.20", "0.21") + "# mine", ""},
		{"changed by a person: put right", strings.ReplaceAll(block, "AUTO", "auto") + kubeadm, one, server20, block + kubeadm, ""},
		{"custom domains, once each", kubeadm, []string{"clusterset.local.", "Global.Example", "clusterset.local"}, server20,
			strings.ReplaceAll(block, " {", " global.example:53 {") + kubeadm, ""},
		{"listens where the first server does", ".:53 {\n    bind 127.0.0.1 ::1\n    bind lo\n    log . {\n        bind no\n    }\n}\n", one, server20,
			strings.ReplaceAll(block, "    forward", "    bind 127.0.0.1 ::1 lo\n    forward") + ".:53 {\n    bind 127.0.0.1 ::1\n    bind lo\n    log . {\n        bind no\n    }\n}\n", ""},
		{"bind that cannot be copied", ".:53 {\n    bind lo {\n        except ::1\n    }\n}\n", one, server20, "", "bind lo {"},
		{"IPv6", kubeadm, one, netip.MustParseAddr("fd00::20"), strings.ReplaceAll(block, "10.77.0.20", "fd00::20") + kubeadm, ""},
		{"OpenShift's port", ".:5353 {\n}\n", one, server20, strings.ReplaceAll(block, ":53 ", ":5353 ") + ".:5353 {\n}\n", ""},
		{"empty", "", one, server20, block, ""},
		{"no line end at the end", ". {\n}", one, server20, block + ". {\n}", ""},
		{"zone of the same name on another port", ".:53 {\n}\nclusterset.local:54 {\n}\n", one, server20, block + ".:53 {\n}\nclusterset.local:54 {\n}\n", ""},

		{"start without end", startMarker + "\n" + kubeadm, one, server20, "", "markers are damaged"},
		{"end without start", endMarker + "\n" + kubeadm, one, server20, "", "markers are damaged"},
		{"end before start", endMarker + "\n" + startMarker + "\n" + kubeadm, one, server20, "", "markers are damaged"},
		{"two blocks", block + block + kubeadm, one, server20, "", "delete these lines"},
		{"Submariner's block", "#lighthouse-start AUTO-GENERATED SECTION. DO NOT EDIT\nclusterset.local:53 {\n}\n#lighthouse-end\n" + kubeadm, one, server20, "", "#lighthouse-start … #lighthouse-end"},
		{"served by a person's block", "example.org, CLUSTERSET.local. {\n}\n" + kubeadm, one, server20, "", "serves clusterset.local:53 already"},
		{"no zone", kubeadm, nil, server20, "", "give at least clusterset.local"},
		{"the root as zone", kubeadm, []string{"."}, server20, "", `"." is no domain`},
		{"a zone that would be more than a zone", kubeadm, []string{"a {\n}\nb"}, server20, "", "is no domain"},
		{"no address", kubeadm, one, netip.Addr{}, "", "no address to forward to"},
		{"any address", kubeadm, one, netip.IPv4Unspecified(), "", "no address to forward to"},
	} {
		t.Run(c.about, func(t *testing.T) {
			got, err := Forward{Zones: c.zones, To: c.to}.Patch(c.corefile)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("Corefile (-want +got):\n%s", diff)
			}
			if (err != nil) != (c.problem != "") || err != nil && !strings.Contains(err.Error(), c.problem) {
				t.Errorf("got error %v, want %q", err, c.problem)
			}
		})
	}
}

func TestRemove(t *testing.T) {
	for _, c := range []struct{ about, corefile, want string }{
		{"ours", block + kubeadm, kubeadm},
		{"in the middle", "# a\n" + block + kubeadm, "# a\n" + kubeadm},
		{"indented markers, other line ends", "  #pelago-start x\r\nany\r\n\t#pelago-end\r\n" + kubeadm, kubeadm},
		{"without line end", kubeadm + strings.TrimSpace(block), kubeadm},
		{"none", kubeadm, kubeadm},
		{"Submariner's stays", "#lighthouse-start\n#lighthouse-end\n" + block, "#lighthouse-start\n#lighthouse-end\n"},
	} {
		t.Run(c.about, func(t *testing.T) {
			got, err := Remove(c.corefile)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("Corefile (-want +got):\n%s", diff)
			}
		})
	}
	if _, err := Remove(startMarker); err == nil {
		t.Error("damaged markers were accepted")
	}
}

func TestServers(t *testing.T) {
	for _, c := range []struct {
		about, corefile string
		want            []server
	}{
		{"kubeadm's", kubeadm, []server{{port: "53"}}},
		{"several addresses, over lines", "a.org:1053,\n  dns://b.org. c.org {\n}\n", []server{{zone: "a.org", port: "1053"}, {scheme: "dns", zone: "b.org", port: "53"}, {zone: "c.org", port: "53"}}},
		{"other transports", "tls://.:853 {\n}\nhttps://. {\n}\n", []server{{scheme: "tls", port: "853"}, {scheme: "https", port: "53"}}},
		{"a port from the environment", ".:{$DNS_PORT} {\n}\n", []server{{port: "{$DNS_PORT}"}}},
		{"reverse zones", "10.0.0.0/8:54 2001:db8::/32 {\n}\n", []server{{zone: "10.0.0.0/8", port: "54"}, {zone: "2001:db8::/32", port: "53"}}},
		{"snippets and imports", "(log) {\n  errors\n}\nimport custom/*.server\n.:53 {\n  import log\n}\n", []server{{port: "53"}}},
		{"comments and quotes", "# x {\n\".:53\" { # y {\n  template {\n    answer \"{{ .Name }} \\\" { #\"\n  }\n}\nb.org {\n}\n", []server{{port: "53"}, {zone: "b.org", port: "53"}}},
		{"no braces", "a.org\nforward . 9.9.9.9\n", []server{{zone: "a.org", port: "53"}}},
		{"not closed", "a.org {\nb.org {\n", []server{{zone: "a.org", port: "53"}}},
		{"addresses", "a.org {\n  bind 10.0.0.1 lo # two\n  bind ::1\n}\nb.org {\n  view x { bind no\n  }\n}\n", []server{{zone: "a.org", port: "53", bind: "10.0.0.1 lo ::1"}, {zone: "b.org", port: "53"}}},
		{"nothing", "# nothing\n", nil},
	} {
		t.Run(c.about, func(t *testing.T) {
			if diff := cmp.Diff(c.want, servers(c.corefile), cmp.AllowUnexported(server{})); diff != "" {
				t.Errorf("servers (-want +got):\n%s", diff)
			}
		})
	}
}

// FuzzPatch: whatever the Corefile, removing undoes patching, patching twice is
// patching once, and the rest stays byte for byte.
func FuzzPatch(f *testing.F) {
	for _, seed := range []string{"", kubeadm, block, block + kubeadm, kubeadm + block, ". {", "a,\nb", "\"", "#pelago-end", "#pelago-start\n", "\r\n.:1\r\n", nodeLocal, ". {\nbind a {"} {
		f.Add(seed)
	}
	forward := Forward{Zones: []string{"clusterset.local", "global.example"}, To: server20, Cache: time.Second}
	f.Fuzz(func(t *testing.T, corefile string) {
		patched, err := forward.Patch(corefile)
		if err != nil {
			if patched != "" {
				t.Errorf("an error and a Corefile: %q", patched)
			}
			return
		}
		again, err := forward.Patch(patched)
		if err != nil || again != patched {
			t.Errorf("patched twice: %q, %v; once: %q", again, err, patched)
		}
		bare, err := Remove(corefile)
		if err != nil {
			t.Fatal(err)
		}
		if removed, err := Remove(patched); err != nil || removed != bare {
			t.Errorf("patched and removed: %q, %v; want %q", removed, err, bare)
		}
		if !strings.Contains(corefile, startWord) && !strings.HasSuffix(patched, corefile) {
			t.Errorf("the rest changed: %q", patched)
		}
	})
}
