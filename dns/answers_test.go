package dns

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	miekg "github.com/miekg/dns"
)

const zoneSuffix = ".sample.svc.clusterset.local"

// answered is a question about a service, "name TYPE" without the zone, and what is said to it.
type answered struct {
	about   string
	service Service
	ask     string
	want    string
}

func wantAnswers(t *testing.T, mode Mode, all []answered) {
	t.Helper()
	for _, c := range all {
		t.Run(c.about, func(t *testing.T) {
			h := serving(t, sample(mode, c.service))
			name, typ, _ := strings.Cut(c.ask, " ")
			if got := ask(t, h, name+zoneSuffix+" "+typ); got != c.want {
				t.Errorf("%s: got %s, want %s", c.ask, got, c.want)
			}
		})
	}
}

// TestSubmarinerClusterSetIP holds the answers that Submariner's users know
// for services with an address per cluster.
func TestSubmarinerClusterSetIP(t *testing.T) {
	remote := Service{Ports: http, Clusters: []Cluster{in("g2", ready("120.2.0.1"))}}
	both := Service{Ports: http, Clusters: []Cluster{in("g1", ready("10.77.0.9")), in("g2", ready("120.2.0.1"))}}
	localDown := Service{Ports: http, Clusters: []Cluster{in("g1", unready("10.77.0.9")), in("g2", ready("120.2.0.1"))}}
	allDown := Service{Ports: http, Clusters: []Cluster{in("g2", unready("120.2.0.1")), in("g3", unready("120.3.0.1"))}}
	vip := Service{Ports: http, IPs: []netip.Addr{ip("243.0.0.1")}, Clusters: []Cluster{in("g1", ready("10.77.0.9")), in("g2", unready("120.2.0.1"))}}
	dual := Service{Ports: http, Clusters: []Cluster{in("g2", ready("120.2.0.1"), ready("fd00:2::1"))}}
	differing := both
	differing.Ports = []Port{{Name: "grpc", Protocol: "tcp", Number: 9090}, {Name: "http", Protocol: "tcp", Number: 80}}
	differing.Clusters = []Cluster{in("g1", ready("10.77.0.9")), in("g2", ready("120.2.0.1")), in("g3")}
	differing.Clusters[0].Ports, differing.Clusters[1].Ports, differing.Clusters[2].Ports = http, differing.Ports, []Port{{Name: "x", Protocol: "tcp", Number: 1}}
	differingVIP := differing
	differingVIP.IPs = []netip.Addr{ip("243.0.0.1")}
	unnamed := Service{Ports: []Port{{Protocol: "tcp", Number: 42}, {Name: "d", Protocol: "udp", Number: 42}}, Clusters: []Cluster{in("g2", ready("120.2.0.1"))}}

	wantAnswers(t, ModeSubmariner, []answered{
		{"only in a remote cluster: that cluster's address", remote, "web A", "120.2.0.1"},
		{"also local and ready: the local ClusterIP", both, "web A", "10.77.0.9"},
		{"local but not ready: the remote one", localDown, "web A", "120.2.0.1"},
		{"ready nowhere: the name exists, no address", allDown, "web A", "NODATA"},
		{"clusterset IP wins over clusters and health", vip, "web A", "243.0.0.1"},
		{"cluster prefix: that cluster's address", both, "g2.web A", "120.2.0.1"},
		{"cluster prefix, local cluster", both, "g1.web A", "10.77.0.9"},
		{"cluster prefix: even if unhealthy", allDown, "g2.web A", "120.2.0.1"},
		{"cluster prefix beside a clusterset IP", vip, "g1.web A", "10.77.0.9"},
		{"prefix of a cluster that does not export it", remote, "g9.web A", "NXDOMAIN"},
		{"IPv6 of an IPv4 service", remote, "web AAAA", "NODATA"},
		{"IPv6 of an IPv4 service, by cluster", remote, "g2.web AAAA", "NODATA"},
		{"dual stack, IPv4", dual, "web A", "120.2.0.1"},
		{"dual stack, IPv6", dual, "web AAAA", "fd00:2::1"},
		{"SRV of the service", remote, "web SRV", "80 web.sample.svc.clusterset.local."},
		{"SRV by port", remote, "_http._tcp.web SRV", "80 web.sample.svc.clusterset.local."},
		{"SRV by cluster", remote, "g2.web SRV", "80 g2.web.sample.svc.clusterset.local."},
		{"SRV by port and cluster", remote, "_http._tcp.g2.web SRV", "80 g2.web.sample.svc.clusterset.local."},
		{"SRV of an unknown port", remote, "_grpc._tcp.web SRV", "NXDOMAIN"},
		{"SRV of a port in another protocol", remote, "_http._udp.web SRV", "NXDOMAIN"},
		{"SRV of a port that a cluster lacks", differing, "_grpc._tcp.web SRV", "NXDOMAIN"},
		{"SRV of the ports that all clusters have", differing, "web SRV", "80 web.sample.svc.clusterset.local."},
		{"SRV of a port, by the cluster that has it", differing, "_grpc._tcp.g2.web SRV", "9090 g2.web.sample.svc.clusterset.local."},
		{"SRV of a port that a cluster lacks, beside a clusterset IP", differingVIP, "_grpc._tcp.web SRV", "9090 web.sample.svc.clusterset.local."},
		{"SRV with nothing ready", allDown, "web SRV", "NODATA"},
		{"SRV by port with nothing ready", allDown, "_http._tcp.web SRV", "NODATA"},
		{"SRV by cluster, even if unhealthy", allDown, "g2.web SRV", "80 g2.web.sample.svc.clusterset.local."},
		{"equal port numbers of two protocols are one record", unnamed, "web SRV", "42 web.sample.svc.clusterset.local."},
		{"address of a port name", remote, "_http._tcp.web A", "NODATA"},
		{"protocol alone is an empty non-terminal", remote, "_tcp.web A", "NODATA"},
		{"protocol and cluster are an empty non-terminal", remote, "_tcp.g2.web SRV", "NODATA"},
		{"hostname of a service with an address", remote, "pod.g2.web A", "NXDOMAIN"},
		{"other types", remote, "web MX", "NODATA"},
		{"unknown service", remote, "none A", "NXDOMAIN"},
	})
}

func TestRoundRobinOverReadyRemoteClusters(t *testing.T) {
	h := serving(t, sample(ModeSubmariner, Service{Clusters: []Cluster{
		in("g1", unready("10.77.0.9")),
		in("g2", ready("120.2.0.1"), ready("120.2.0.2")),
		in("g3", unready("120.3.0.1")),
		in("g4", ready("120.4.0.1")),
	}}))
	seen := map[string]int{}
	for range 10 {
		seen[ask(t, h, "web"+zoneSuffix+" A")]++
	}
	if diff := cmp.Diff(map[string]int{"120.2.0.1": 5, "120.4.0.1": 5}, seen); diff != "" {
		t.Errorf("ten answers over two ready clusters (-want +got):\n%s", diff)
	}
}

// A weighted service has answers in proportion to the weights of its ready clusters, spread over the
// answers; without one that is ready, by the usual rule.
func TestWeighted(t *testing.T) {
	weigh := func(c Cluster, weight int) Cluster {
		c.Weight = weight
		return c
	}
	all := []Cluster{
		weigh(in("g1", ready("10.77.0.9")), 250), weigh(in("g2", ready("120.2.0.1")), 500), weigh(in("g3", ready("120.3.0.1")), 250),
		weigh(in("g4", ready("120.4.0.1")), 0), weigh(in("g5", unready("120.5.0.1")), 900),
	}
	for _, tt := range []struct {
		name string
		from Service
		want map[string]int
	}{
		{"by weight", Service{Clusters: all}, map[string]int{"10.77.0.9": 4, "120.2.0.1": 8, "120.3.0.1": 4}},
		{"with session affinity the highest", Service{Clusters: all, ClientIP: true}, map[string]int{"120.2.0.1": 16}},
		{"only clusters without weight are ready", Service{Clusters: all[3:]}, map[string]int{"120.4.0.1": 16}},
		{"weights that nothing divides", Service{Clusters: []Cluster{weigh(all[0], 1<<20-1), weigh(all[1], 1<<20)}}, map[string]int{"10.77.0.9": 8, "120.2.0.1": 8}},
	} {
		tt.from.Weighted = true
		h := serving(t, sample(ModeSubmariner, tt.from))
		seen, former, repeated := map[string]int{}, "", 0
		for range 16 {
			got := ask(t, h, "web"+zoneSuffix+" A")
			if seen[got]++; got == former {
				repeated++
			}
			former = got
		}
		if diff := cmp.Diff(tt.want, seen); diff != "" || len(seen) > 1 && repeated > 3 {
			t.Errorf("%s: %d times the same as before (-want +got):\n%s", tt.name, repeated, diff)
		}
	}
}

// The addresses next to an SRV record are no turn of their own: clients that request both would
// only get every second cluster.
func TestRoundRobinBesideSRV(t *testing.T) {
	h := serving(t, sample(ModeSubmariner, Service{Ports: http, Clusters: []Cluster{in("g2", ready("120.2.0.1")), in("g3", ready("120.3.0.1"))}}))
	seen := map[string]int{}
	for range 10 {
		ask(t, h, "web"+zoneSuffix+" SRV")
		seen[ask(t, h, "web"+zoneSuffix+" A")]++
	}
	if diff := cmp.Diff(map[string]int{"120.2.0.1": 5, "120.3.0.1": 5}, seen); diff != "" {
		t.Errorf("ten times SRV, then A (-want +got):\n%s", diff)
	}
}

// Each address family has its rotation: a resolver that queries A, then AAAA gets every cluster in
// both.
func TestRoundRobinOfBothFamilies(t *testing.T) {
	for name, service := range map[string]Service{
		"one cluster of two": {Clusters: []Cluster{in("g2", ready("120.2.0.1"), ready("fd00:2::1")), in("g3", ready("120.3.0.1"), ready("fd00:3::1"))}},
		"the first of two pods": {Type: Headless, Clusters: []Cluster{
			in("g2", pod("a", "120.2.0.1"), pod("b", "120.3.0.1")), in("g3", pod("a", "fd00:2::1"), pod("b", "fd00:3::1"))}},
	} {
		h := serving(t, sample(ModeSubmariner, service))
		seen := map[string]int{}
		for range 10 {
			for _, family := range []string{" A", " AAAA"} {
				first, _, _ := strings.Cut(ask(t, h, "web"+zoneSuffix+family), ", ")
				seen[first]++
			}
		}
		if diff := cmp.Diff(map[string]int{"120.2.0.1": 5, "120.3.0.1": 5, "fd00:2::1": 5, "fd00:3::1": 5}, seen); diff != "" {
			t.Errorf("%s: ten times A, then AAAA (-want +got):\n%s", name, diff)
		}
	}
}

// TestRoundRobinGoesOnOverChanges: a service that changes often must not send
// everybody to the first cluster of the list.
func TestRoundRobinGoesOnOverChanges(t *testing.T) {
	table := func(port uint16) Table {
		return sample(ModeSubmariner, Service{Ports: []Port{{Number: port}}, Clusters: []Cluster{in("g2", ready("120.2.0.1")), in("g3", ready("120.3.0.1"))}})
	}
	h := serving(t, table(1))
	first := ask(t, h, "web"+zoneSuffix+" A")
	if err := h.Set(table(2)); err != nil {
		t.Fatal(err)
	}
	if second := ask(t, h, "web"+zoneSuffix+" A"); second == first {
		t.Errorf("both answers are %s; the change reset the rotation", first)
	}
}

// With session affinity, all clients of a cluster get the same remote cluster, also when others
// become unready; local clusters are distributed over the remote ones.
func TestSessionAffinity(t *testing.T) {
	all := map[string]string{"g2": "120.2.0.1", "g3": "120.3.0.1", "g4": "120.4.0.1"}
	table := func(local string, without ...string) Table {
		s := Service{Ports: http, ClientIP: true}
		for _, id := range []string{"g2", "g3", "g4"} {
			if slices.Contains(without, id) {
				s.Clusters = append(s.Clusters, in(id, unready(all[id])))
			} else {
				s.Clusters = append(s.Clusters, in(id, ready(all[id])))
			}
		}
		out := sample(ModeSubmariner, s)
		out.LocalCluster = local
		return out
	}
	answers := func(h *Handler) string {
		t.Helper()
		first := ask(t, h, "web"+zoneSuffix+" A")
		for range 20 {
			if again := ask(t, h, "web"+zoneSuffix+" A"); again != first {
				t.Fatalf("%s, then %s", first, again)
			}
		}
		return first
	}
	chosen := map[string]int{}
	for i := range 300 {
		local := fmt.Sprintf("c%d", i)
		h := serving(t, table(local))
		kept := answers(h)
		chosen[kept]++
		for id, address := range all {
			if err := h.Set(table(local, id)); err != nil {
				t.Fatal(err)
			}
			switch now := answers(h); {
			case address == kept && (now == kept || !slices.Contains(slices.Collect(maps.Values(all)), now)):
				t.Errorf("%s: %s has no ready backend, and the answer is %s", local, id, now)
			case address != kept && now != kept:
				t.Errorf("%s: %s has no ready backend, and the answer goes from %s to %s", local, id, kept, now)
			}
		}
	}
	for id, address := range all {
		if chosen[address] < 50 {
			t.Errorf("%d of 300 clusters chose %s: %v", chosen[address], id, chosen)
		}
	}
	if h := serving(t, table("g3")); answers(h) != all["g3"] {
		t.Error("the local cluster is not preferred")
	}
}

func statefulSet() Service {
	return Service{
		Name: "db", Type: Headless, Ports: http,
		Clusters: []Cluster{
			in("g1", pod("db-0", "10.7.0.1")),
			{ID: "g2", Ports: []Port{{Name: "http", Protocol: "tcp", Number: 8080}}, Endpoints: []Endpoint{
				pod("db-0", "120.2.0.1"), pod("db-1", "120.2.0.2"), {Hostname: "db-2", IP: ip("120.2.0.3")}, ready("120.2.0.4"),
			}},
			in("g3", unready("120.3.0.1")),
		},
	}
}

func TestSubmarinerHeadless(t *testing.T) {
	down := Service{Name: "db", Type: Headless, Ports: http, Clusters: []Cluster{in("g2", unready("120.2.0.1"))}}
	ownPorts := Service{Name: "db", Type: Headless, Ports: http, Clusters: []Cluster{
		{ID: "g2", Ports: []Port{{Name: "http", Protocol: "tcp", Number: 8080}}, Endpoints: []Endpoint{{Hostname: "db-0", IP: ip("120.2.0.1"), Ready: true}}},
		{ID: "g2", Ports: []Port{{Name: "http", Protocol: "tcp", Number: 9090}}, Endpoints: []Endpoint{{Hostname: "db-1", IP: ip("120.2.0.2"), Ready: true}}},
		// without that port
		{ID: "g2", Endpoints: []Endpoint{{Hostname: "db-2", IP: ip("120.2.0.3"), Ready: true}}},
	}}
	for _, c := range []struct {
		about   string
		service Service
		ask     string
		want    []string
	}{
		{"by cluster: its ready pods", statefulSet(), "g1.db A", []string{"10.7.0.1"}},
		{"one pod", statefulSet(), "db-1.g2.db A", []string{"120.2.0.2"}},
		{"same hostname in another cluster", statefulSet(), "db-0.g1.db A", []string{"10.7.0.1"}},
		{"a pod without hostname: its address with dashes", statefulSet(), "120-2-0-4.g2.db A", []string{"120.2.0.4"}},
		{"a pod that is not ready", statefulSet(), "db-2.g2.db A", []string{"NODATA"}},
		{"an unknown pod", statefulSet(), "db-9.g2.db A", []string{"NXDOMAIN"}},
		{"a pod of the wrong cluster", statefulSet(), "db-1.g1.db A", []string{"NXDOMAIN"}},
		{"a cluster with no ready pod", statefulSet(), "g3.db A", []string{"NODATA"}},
		{"IPv6 of the service", statefulSet(), "db AAAA", []string{"NODATA"}},
		{"IPv6 of a pod", statefulSet(), "db-1.g2.db AAAA", []string{"NODATA"}},
		{"all ready pods, rotated", statefulSet(), "db A", []string{
			"10.7.0.1, 120.2.0.1, 120.2.0.2, 120.2.0.4",
			"120.2.0.1, 120.2.0.2, 120.2.0.4, 10.7.0.1",
			"120.2.0.2, 120.2.0.4, 10.7.0.1, 120.2.0.1",
			"120.2.0.4, 10.7.0.1, 120.2.0.1, 120.2.0.2",
		}},
		{"SRV by cluster, with that cluster's port", statefulSet(), "_http._tcp.g2.db SRV", []string{
			"8080 db-0.g2.db.sample.svc.clusterset.local., 8080 db-1.g2.db.sample.svc.clusterset.local., 8080 120-2-0-4.g2.db.sample.svc.clusterset.local.",
		}},
		{"SRV of the service: one per ready pod", statefulSet(), "_http._tcp.db SRV", []string{
			"80 db-0.g1.db.sample.svc.clusterset.local., 8080 db-0.g2.db.sample.svc.clusterset.local., 8080 db-1.g2.db.sample.svc.clusterset.local., 8080 120-2-0-4.g2.db.sample.svc.clusterset.local.",
		}},
		{"SRV of pods with ports of their own", ownPorts, "_http._tcp.g2.db SRV", []string{
			"8080 db-0.g2.db.sample.svc.clusterset.local., 9090 db-1.g2.db.sample.svc.clusterset.local."}},
		{"SRV of the service, likewise", ownPorts, "db SRV", []string{
			"8080 db-0.g2.db.sample.svc.clusterset.local., 9090 db-1.g2.db.sample.svc.clusterset.local."}},
		{"nothing ready", down, "db A", []string{"NODATA"}},
		{"nothing ready, SRV", down, "_http._tcp.db SRV", []string{"NODATA"}},
		{"nothing ready, by cluster", down, "g2.db A", []string{"NODATA"}},
	} {
		t.Run(c.about, func(t *testing.T) {
			h := serving(t, sample(ModeSubmariner, c.service))
			name, typ, _ := strings.Cut(c.ask, " ")
			if diff := cmp.Diff(c.want, asked(t, h, name+zoneSuffix+" "+typ, 8)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.ask, diff)
			}
		})
	}
}

// TestMCS holds the Multicluster DNS specification 1.0.0.
func TestMCS(t *testing.T) {
	vip := Service{Ports: http, IPs: []netip.Addr{ip("243.0.0.1"), ip("fd00:243::1")}, Clusters: []Cluster{in("g1", ready("10.77.0.9")), in("g2", unready("120.2.0.1"))}}
	pending := Service{Ports: http, Clusters: []Cluster{in("g1", ready("10.77.0.9"))}}
	twoProtocols := Service{IPs: []netip.Addr{ip("243.0.0.1")}, Ports: []Port{{Name: "a", Protocol: "tcp", Number: 42}, {Name: "b", Protocol: "udp", Number: 42}}}
	down := Service{Name: "db", Type: Headless, Ports: http, Clusters: []Cluster{in("g2", Endpoint{Hostname: "db-0", IP: ip("120.2.0.1")})}}

	wantAnswers(t, ModeMCS, []answered{
		{"the clusterset IP, also where the service is local", vip, "web A", "243.0.0.1"},
		{"both families", vip, "web AAAA", "fd00:243::1"},
		{"import without an IP yet", pending, "web A", "NODATA"},
		{"cluster prefix is reserved", vip, "g1.web A", "NODATA"},
		{"cluster prefix is reserved, SRV", vip, "g1.web SRV", "NODATA"},
		{"SRV by port and cluster does not exist", vip, "_http._tcp.g1.web SRV", "NXDOMAIN"},
		{"prefix of an unknown cluster", vip, "g9.web A", "NXDOMAIN"},
		{"SRV by port", vip, "_http._tcp.web SRV", "80 web.sample.svc.clusterset.local."},
		{"SRV at the bare name: exactly one for tcp/42 and udp/42", twoProtocols, "web SRV", "42 web.sample.svc.clusterset.local."},
		{"headless SRV: one per endpoint, target by hostname", statefulSet(), "_http._tcp.db SRV",
			"80 db-0.g1.db.sample.svc.clusterset.local., 8080 db-0.g2.db.sample.svc.clusterset.local., 8080 db-1.g2.db.sample.svc.clusterset.local., 8080 120-2-0-4.g2.db.sample.svc.clusterset.local."},
		{"headless, one pod", statefulSet(), "db-1.g2.db A", "120.2.0.2"},
		{"headless, a pod that is not ready does not exist", statefulSet(), "db-2.g2.db A", "NXDOMAIN"},
		{"headless, cluster prefix is an empty non-terminal", statefulSet(), "g2.db A", "NODATA"},
		{"headless, cluster without a ready pod", statefulSet(), "g3.db A", "NXDOMAIN"},
		{"headless with nothing ready does not exist", down, "db A", "NXDOMAIN"},
		{"headless with nothing ready, a pod", down, "db-0.g2.db A", "NXDOMAIN"},
		{"headless with nothing ready, a port", down, "_http._tcp.db SRV", "NXDOMAIN"},
	})
}

func TestZone(t *testing.T) {
	table := sample(ModeSubmariner, Service{Ports: http, Clusters: []Cluster{in("g2", ready("120.2.0.1"))}})
	table.Zones = []string{"clusterset.local", "Global.Example.", "sub.clusterset.local"}
	h := serving(t, table)
	for _, c := range []struct{ about, ask, want string }{
		{"custom domain", "web.sample.svc.global.example A", "120.2.0.1"},
		{"SRV stays in the asked domain", "web.sample.svc.global.example SRV", "80 web.sample.svc.global.example."},
		{"the longer of two nested domains", "web.sample.svc.sub.clusterset.local SRV", "80 web.sample.svc.sub.clusterset.local."},
		{"dns-version", "dns-version.clusterset.local TXT", "1.0.0"},
		{"SOA", "clusterset.local SOA", "ns.dns.clusterset.local. hostmaster.clusterset.local. 1 7200 1800 86400 5"},
		{"NS", "clusterset.local NS", "ns.dns.clusterset.local."},
		{"the name server's name exists", "ns.dns.clusterset.local A", "NODATA"},
		{"apex without addresses", "clusterset.local A", "NODATA"},
		{"svc is an empty non-terminal", "svc.clusterset.local A", "NODATA"},
		{"a namespace is an empty non-terminal", "sample.svc.clusterset.local A", "NODATA"},
		{"an unknown namespace", "none.svc.clusterset.local A", "NXDOMAIN"},
		{"not below svc", "web.sample.pod.clusterset.local A", "NXDOMAIN"},
		{"a search list's detour", "web.sample.svc.clusterset.local.sample.svc.clusterset.local A", "NXDOMAIN"},
		{"another domain", "web.sample.svc.cluster.local A", "REFUSED"},
		{"a domain that only ends alike", "xclusterset.local A", "REFUSED"},
		{"a dot inside a label is no label border", `x\.clusterset.local A`, "REFUSED"},
		{"an escaped backslash before a label border", `x\\.clusterset.local A`, "NXDOMAIN"},
		{"the root", ". NS", "REFUSED"},
		{"zone transfer", "clusterset.local AXFR", "REFUSED"},
		{"ANY is answered as RFC 8482 says", "web.sample.svc.clusterset.local ANY", `"RFC8482" ""`},
		{"ANY at an unknown name", "none.sample.svc.clusterset.local ANY", "NXDOMAIN"},
	} {
		t.Run(c.about, func(t *testing.T) {
			if got := ask(t, h, c.ask); got != c.want {
				t.Errorf("%s: got %s, want %s", c.ask, got, c.want)
			}
		})
	}
}

// TestLetterCase: any case matches, and the question and all owners come back
// as asked (0x20).
func TestLetterCase(t *testing.T) {
	h := serving(t, sample(ModeSubmariner, Service{Ports: http, Clusters: []Cluster{in("g2", ready("120.2.0.1"))}}))
	const name = "wEB.SamPLE.sVc.ClusterSET.LocaL."
	for qtype, answers := range map[uint16]int{miekg.TypeA: 1, miekg.TypeSRV: 1, miekg.TypeAAAA: 0} {
		r := exchange(t, h, new(miekg.Msg).SetQuestion(name, qtype))
		if r.Rcode != miekg.RcodeSuccess || len(r.Answer) != answers || len(r.Ns) != 1-answers {
			t.Errorf("want NOERROR and %d answers, or the SOA without any, got\n%s", answers, r)
		}
		if got := r.Question[0].Name; got != name {
			t.Errorf("question came back as %s", got)
		}
		for _, rr := range r.Answer {
			if got := rr.Header().Name; got != name {
				t.Errorf("answer belongs to %s", got)
			}
		}
		for _, rr := range r.Ns {
			if got := rr.Header().Name; got != "ClusterSET.LocaL." {
				t.Errorf("SOA belongs to %s", got)
			}
		}
	}
}

func TestTTL(t *testing.T) {
	h := serving(t, sample(ModeSubmariner, Service{Clusters: []Cluster{in("g2", ready("120.2.0.1"))}}))
	for question, rcode := range map[string]int{"web" + zoneSuffix: miekg.RcodeSuccess, "none" + zoneSuffix: miekg.RcodeNameError} {
		r := exchange(t, h, new(miekg.Msg).SetQuestion(question+".", miekg.TypeA))
		records := append(r.Answer, r.Ns...)
		if r.Rcode != rcode || len(records) != 1 || (len(r.Answer) == 1) != (rcode == miekg.RcodeSuccess) {
			t.Errorf("want %s with the address or the SOA, got\n%s", miekg.RcodeToString[rcode], r)
		}
		for _, rr := range records {
			if got := rr.Header().Ttl; got != 5 {
				t.Errorf("%s: TTL %d, want 5", rr, got)
			}
		}
	}
	r := exchange(t, h, new(miekg.Msg).SetQuestion("dns-version.clusterset.local.", miekg.TypeTXT))
	if got := r.Answer[0].Header().Ttl; got != 28800 {
		t.Errorf("dns-version has TTL %d, the specification says 28800", got)
	}
}

func TestSRVAdditional(t *testing.T) {
	addresses := func(r *miekg.Msg) map[string]string {
		out := map[string]string{}
		for _, rr := range r.Extra {
			if a, ok := rr.(*miekg.A); ok {
				out[a.Hdr.Name] += a.A.String()
			}
		}
		return out
	}
	h := serving(t, sample(ModeSubmariner, statefulSet(), Service{Ports: http, Clusters: []Cluster{in("g2", ready("120.2.0.1"))}}))
	m := new(miekg.Msg).SetQuestion("db"+zoneSuffix+".", miekg.TypeSRV).SetEdns0(1232, false)
	want := map[string]string{
		"db-0.g1.db.sample.svc.clusterset.local.":      "10.7.0.1",
		"db-0.g2.db.sample.svc.clusterset.local.":      "120.2.0.1",
		"db-1.g2.db.sample.svc.clusterset.local.":      "120.2.0.2",
		"120-2-0-4.g2.db.sample.svc.clusterset.local.": "120.2.0.4",
	}
	if diff := cmp.Diff(want, addresses(exchange(t, h, m))); diff != "" {
		t.Errorf("addresses of the targets (-want +got):\n%s", diff)
	}
	// Without EDNS five SRV records fit in 512 octets, their addresses do not.
	five := Service{Name: "five", Type: Headless, Ports: http, Clusters: []Cluster{in("g2")}}
	for i := range 5 {
		five.Clusters[0].Endpoints = append(five.Clusters[0].Endpoints, pod(fmt.Sprintf("five-%d", i), fmt.Sprintf("120.2.0.%d", i)))
	}
	r := exchange(t, serving(t, sample(ModeSubmariner, five)), new(miekg.Msg).SetQuestion("five"+zoneSuffix+".", miekg.TypeSRV))
	if len(r.Answer) != 5 || len(r.Extra) != 0 || r.Truncated {
		t.Errorf("want five SRV records, no partial additional section and no TC, got\n%s", r)
	}
	m = new(miekg.Msg).SetQuestion("web"+zoneSuffix+".", miekg.TypeSRV)
	if diff := cmp.Diff(map[string]string{"web.sample.svc.clusterset.local.": "120.2.0.1"}, addresses(exchange(t, h, m))); diff != "" {
		t.Errorf("address of the service (-want +got):\n%s", diff)
	}
}

func TestBeforeTheFirstTable(t *testing.T) {
	h := NewHandler(newRegistry())
	if got := ask(t, h, "web"+zoneSuffix+" A"); got != "SERVFAIL" {
		t.Errorf("got %s, want SERVFAIL", got)
	}
}

func TestBadTables(t *testing.T) {
	good := sample(ModeSubmariner, Service{Clusters: []Cluster{in("g2", ready("120.2.0.1"))}})
	h := serving(t, good)
	for _, c := range []struct {
		about string
		spoil func(*Table)
		want  string
	}{
		{"unknown mode", func(t *Table) { t.Mode = "both" }, `parse mode "both"`},
		{"no zone", func(t *Table) { t.Zones = nil }, "no zone: add"},
		{"the root as zone", func(t *Table) { t.Zones = []string{"."} }, `parse zone "."`},
		{"an empty label", func(t *Table) { t.Zones = []string{"a..b"} }, `"" is not a DNS label`},
		{"a zone too long", func(t *Table) { t.Zones = []string{strings.Repeat("a23456789.", 26)} }, "255 octets"},
	} {
		t.Run(c.about, func(t *testing.T) {
			table := good
			c.spoil(&table)
			if err := h.Set(table); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got error %v, want one with %q", err, c.want)
			}
			if got := ask(t, h, "web"+zoneSuffix+" A"); got != "120.2.0.1" {
				t.Errorf("the former table is gone: %s", got)
			}
		})
	}
}

// TestNamesTooLong: what cannot be asked for is left out, the rest is served.
func TestNamesTooLong(t *testing.T) {
	long, zone := strings.Repeat("h", 63), strings.Repeat("z", 63)+".local"
	with := func(pods ...Endpoint) *Handler {
		table := sample(ModeSubmariner, Service{
			Name: strings.Repeat("s", 63), Type: Headless, Ports: http, Clusters: []Cluster{in(strings.Repeat("c", 63), pods...)},
		})
		table.Zones = []string{zone}
		return serving(t, table)
	}
	h := with(pod(long, "120.2.0.1"), pod("ok", "120.2.0.2"))
	name := strings.Repeat("s", 63) + ".sample.svc." + zone
	if got := asked(t, h, name+" A", 4); len(got) != 2 {
		t.Errorf("both pods belong to the service, got %q", got)
	}
	if got := ask(t, h, name+" SRV"); strings.Contains(got, long) || !strings.Contains(got, "ok.") {
		t.Errorf("SRV: got %s, want only the pod whose name fits", got)
	}
	h = with(pod(long, "120.2.0.1"))
	for _, question := range []string{name, "_http._tcp." + name} {
		if got := ask(t, h, question+" SRV"); got != "NODATA" { // with the SOA, which ask requires
			t.Errorf("SRV without a pod whose name fits: got %s", got)
		}
	}
}
