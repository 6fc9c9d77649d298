package dns

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	miekg "github.com/miekg/dns"
)

// serving returns a handler that answers from t.
func serving(t testing.TB, table Table) *Handler {
	t.Helper()
	h := NewHandler(newRegistry())
	if err := h.Set(table); err != nil {
		t.Fatal(err)
	}
	return h
}

// exchange sends one message through the whole packet path.
func exchange(t testing.TB, h *Handler, m *miekg.Msg) *miekg.Msg {
	t.Helper()
	in, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	var b buffer
	if !h.packet(&b, in) {
		t.Fatalf("no answer to %s", m)
	}
	reply := new(miekg.Msg)
	if err := reply.Unpack(b.out); err != nil {
		t.Fatalf("answer to %s does not parse: %v", m, err)
	}
	return reply
}

// ask queries "name TYPE" and returns the outcome in an operator's words: addresses and
// targets in order of appearance, or NODATA, NXDOMAIN, REFUSED. It fails the
// test where the flags or the SOA do not fit the outcome.
func ask(t testing.TB, h *Handler, question string) string {
	t.Helper()
	name, typ, _ := strings.Cut(question, " ")
	m := new(miekg.Msg).SetQuestion(miekg.Fqdn(name), miekg.StringToType[typ])
	r := exchange(t, h, m)

	authoritative := r.Rcode == miekg.RcodeSuccess || r.Rcode == miekg.RcodeNameError
	if r.Authoritative != authoritative {
		t.Errorf("%s: aa is %v with %s", question, r.Authoritative, miekg.RcodeToString[r.Rcode])
	}
	denied := authoritative && len(r.Answer) == 0
	if got := len(r.Ns) == 1 && r.Ns[0].Header().Rrtype == miekg.TypeSOA; got != denied {
		t.Errorf("%s: SOA in the authority section is %v:\n%s", question, got, r)
	}
	switch {
	case r.Rcode != miekg.RcodeSuccess:
		return miekg.RcodeToString[r.Rcode]
	case len(r.Answer) == 0:
		return "NODATA"
	}
	var out []string
	for _, rr := range r.Answer {
		switch rr := rr.(type) {
		case *miekg.A:
			out = append(out, rr.A.String())
		case *miekg.AAAA:
			out = append(out, rr.AAAA.String())
		case *miekg.SRV:
			out = append(out, fmt.Sprint(rr.Port, " ", rr.Target))
		case *miekg.TXT:
			out = append(out, strings.Join(rr.Txt, "|"))
		default:
			out = append(out, strings.Join(strings.Fields(strings.TrimPrefix(rr.String(), rr.Header().String())), " "))
		}
	}
	return strings.Join(out, ", ")
}

// asked collects n answers to one query, sorted, each outcome once.
func asked(t testing.TB, h *Handler, question string, n int) []string {
	t.Helper()
	var out []string
	for range n {
		out = append(out, ask(t, h, question))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

func ready(addr string) Endpoint   { return Endpoint{IP: ip(addr), Ready: true} }
func unready(addr string) Endpoint { return Endpoint{IP: ip(addr)} }

func pod(host, addr string) Endpoint { return Endpoint{Hostname: host, IP: ip(addr), Ready: true} }

func in(cluster string, endpoints ...Endpoint) Cluster {
	return Cluster{ID: cluster, Endpoints: endpoints}
}

var http = []Port{{Name: "http", Protocol: "tcp", Number: 80}}

// sample is a table seen from g1 with the services of namespace sample.
func sample(mode Mode, services ...Service) Table {
	for i := range services {
		services[i].Namespace = "sample"
		if services[i].Name == "" {
			services[i].Name = "web"
		}
		if services[i].Type == "" {
			services[i].Type = ClusterSetIP
		}
	}
	return Table{Mode: mode, LocalCluster: "g1", Zones: []string{"clusterset.local"}, Services: services}
}

// TestSwapsDuringQueries: every answer comes whole from one table, while
// tables are swapped under it. Worth running with -race.
func TestSwapsDuringQueries(t *testing.T) {
	table := func(generation int) Table {
		c := Cluster{ID: "g2"}
		for i := range 4 {
			c.Endpoints = append(c.Endpoints, ready(fmt.Sprintf("120.%d.0.%d", generation, i)))
		}
		return sample(ModeSubmariner, Service{Type: Headless, Ports: http, Clusters: []Cluster{c}})
	}
	h := serving(t, table(0))
	var askers sync.WaitGroup
	for range 4 {
		askers.Go(func() {
			for range 300 {
				addresses := strings.Split(ask(t, h, "web"+zoneSuffix+" A"), ", ")
				generation := strings.Split(addresses[0], ".")[1]
				for _, a := range addresses {
					if len(addresses) != 4 || strings.Split(a, ".")[1] != generation {
						t.Errorf("an answer of two tables: %s", addresses)
						return
					}
				}
			}
		})
	}
	stop := make(chan struct{})
	var setter sync.WaitGroup
	setter.Go(func() {
		for generation := 1; ; generation = generation%200 + 1 {
			select {
			case <-stop:
				return
			default:
			}
			if err := h.Set(table(generation)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	askers.Wait()
	close(stop)
	setter.Wait()
}
