package dns

import (
	"fmt"
	"net/netip"
	"testing"

	miekg "github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
)

// clusterset builds a table of n ClusterSetIP services and n/10 headless ones
// with three pods, each exported by g2 and g3.
func clusterset(n int) Table {
	t := Table{Mode: ModeSubmariner, LocalCluster: "g1", Zones: []string{"clusterset.local"}}
	ip := netip.MustParseAddr("120.2.0.1")
	next := func() netip.Addr { ip = ip.Next(); return ip }
	ports := []Port{{Name: "http", Protocol: "tcp", Number: 80}}
	for i := range n {
		s := Service{Namespace: "sample", Name: fmt.Sprintf("web-%d", i), Type: ClusterSetIP, Ports: ports}
		for _, id := range []string{"g2", "g3"} {
			s.Clusters = append(s.Clusters, Cluster{ID: id, Endpoints: []Endpoint{{IP: next(), Ready: true}}})
		}
		t.Services = append(t.Services, s)
		if i%10 != 0 {
			continue
		}
		h := Service{Namespace: "sample", Name: fmt.Sprintf("db-%d", i), Type: Headless, Ports: ports}
		for _, id := range []string{"g2", "g3"} {
			c := Cluster{ID: id}
			for p := range 3 {
				c.Endpoints = append(c.Endpoints, Endpoint{Hostname: fmt.Sprintf("db-%d-%d", i, p), IP: next(), Ready: true})
			}
			h.Clusters = append(h.Clusters, c)
		}
		t.Services = append(t.Services, h)
	}
	return t
}

// BenchmarkAnswer is the whole way from a packet read to a packet packed,
// metrics included, without the socket.
func BenchmarkAnswer(b *testing.B) {
	for _, c := range []struct {
		name, asked string
		qtype       uint16
		edns        bool
	}{
		{"ClusterSetIP", "web-7.sample.svc.clusterset.local.", miekg.TypeA, true},
		{"ByCluster", "g3.web-7.sample.svc.clusterset.local.", miekg.TypeA, true},
		{"Headless", "db-10.sample.svc.clusterset.local.", miekg.TypeA, true},
		{"SRV", "_http._tcp.db-10.sample.svc.clusterset.local.", miekg.TypeSRV, true},
		{"NoData", "web-7.sample.svc.clusterset.local.", miekg.TypeAAAA, true},
		{"NXDomain", "none.sample.svc.clusterset.local.", miekg.TypeA, true},
		{"PlainDNS", "web-7.sample.svc.clusterset.local.", miekg.TypeA, false},
	} {
		b.Run(c.name, func(b *testing.B) {
			h := NewHandler(prometheus.NewRegistry())
			if err := h.Set(clusterset(1000)); err != nil {
				b.Fatal(err)
			}
			m := new(miekg.Msg).SetQuestion(c.asked, c.qtype)
			if c.edns {
				m.SetEdns0(1232, false)
			}
			in, err := m.Pack()
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				buf := &buffer{}
				for pb.Next() {
					if !h.packet(buf, in) {
						b.Fatal("no answer")
					}
				}
			})
		})
	}
}

// BenchmarkSet is what one changed service costs among many.
func BenchmarkSet(b *testing.B) {
	for _, c := range []struct {
		n    int
		zone []string
	}{{100, nil}, {10000, nil}, {10000, []string{"120.in-addr.arpa"}}} {
		b.Run(fmt.Sprint(c.n, c.zone), func(b *testing.B) {
			h := NewHandler(prometheus.NewRegistry())
			table := clusterset(c.n)
			table.Zones = append(table.Zones, c.zone...)
			if err := h.Set(table); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				changed := table
				changed.Services = append([]Service(nil), table.Services...)
				c := changed.Services[0].Clusters
				changed.Services[0].Clusters = []Cluster{{ID: c[0].ID, Endpoints: []Endpoint{{IP: c[0].Endpoints[0].IP, Ready: i%2 == 0}}}, c[1]}
				if err := h.Set(changed); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
