package inspect

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	miekg "github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/control/agent/clusterdns"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dns"
)

var protocols = map[string]uint8{"tcp": dataplane.ProtocolTCP, "udp": dataplane.ProtocolUDP, "icmp": dataplane.ProtocolICMP}

func protocolName(number uint8) string {
	for name, n := range protocols {
		if n == number {
			return name
		}
	}
	return strconv.Itoa(int(number))
}

func protocolOf(p corev1.Protocol) uint8 {
	if p == "" {
		return dataplane.ProtocolTCP
	}
	return protocols[strings.ToLower(string(p))]
}

// destination is where a trace leads to, as the user names it.
type destination struct {
	text     string
	address  netip.Addr // invalid: a name
	name     string     // fully qualified
	port     uint16     // 0: the first of the service
	protocol string
}

const defaultZone = "clusterset.local"

// parseDestination reads IP[:PORT], NAMESPACE/SERVICE[:PORT] or a DNS name[:PORT].
func parseDestination(text, protocol string, zones []string) (destination, error) {
	d := destination{text: text, protocol: protocol}
	host := text
	if before, port, ok := strings.Cut(text, ":"); ok {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return d, fmt.Errorf("--to %q: %q is no port", text, port)
		}
		host, d.port = before, uint16(n)
	}
	if a, err := netip.ParseAddr(host); err == nil {
		if d.address = a; !a.Is4() {
			return d, fmt.Errorf("--to %q: only IPv4 is carried", text)
		}
		if d.port == 0 && protocol != "icmp" {
			return d, fmt.Errorf("--to %q: add the port, or use --protocol icmp", text)
		}
		return d, nil
	}
	host = strings.TrimSuffix(host, ".")
	if namespace, service, ok := strings.Cut(host, "/"); ok {
		host = service + "." + namespace + ".svc." + defaultZone
	}
	if !slices.ContainsFunc(zones, func(z string) bool { return strings.HasSuffix(host, "."+z) }) {
		return d, fmt.Errorf("--to %q: use IP:PORT, NAMESPACE/SERVICE, or a name below %s", text, strings.Join(zones, " or "))
	}
	d.name = host
	return d, nil
}

func zonesOf(c config.Config) []string { return append([]string{defaultZone}, c.CustomDomains...) }

// table is the table from which the cluster's name server answers, without the node's information
// on unreachable clusters.
func (m member) table(ctx context.Context) (dns.Table, error) {
	// Both served versions have the same schema.
	kind := schema.GroupKind{Group: mcs.GroupName, Kind: "ServiceImport"}
	mapping, err := m.Client.RESTMapper().RESTMapping(kind)
	if err != nil {
		return dns.Table{}, fmt.Errorf("find kind ServiceImport: %w: has the cluster joined with `pelago join`?", err)
	}
	var raw unstructured.UnstructuredList
	raw.SetGroupVersionKind(mapping.GroupVersionKind)
	if err := m.Client.List(ctx, &raw); err != nil {
		return dns.Table{}, fmt.Errorf("list ServiceImports: %w", err)
	}
	imports := make([]mcs.ServiceImport, len(raw.Items))
	for i, item := range raw.Items {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, &imports[i]); err != nil {
			return dns.Table{}, fmt.Errorf("read ServiceImport %s/%s: %w", item.GetNamespace(), item.GetName(), err)
		}
	}
	var endpoints discoveryv1.EndpointSliceList
	if err := m.Client.List(ctx, &endpoints, client.HasLabels{mcs.LabelServiceName}); err != nil {
		return dns.Table{}, fmt.Errorf("list EndpointSlices: %w", err)
	}
	c := clusterdns.TableConfig{LocalCluster: m.config.ClusterID, Mode: dns.Mode(m.config.Mode), Zones: zonesOf(m.config)}
	// what makes no sense is left out, as the name server does
	table, _ := clusterdns.DesiredTable(imports, endpoints.Items, c)
	return table, nil
}

// resolve answers a name as the cluster's name server does. The end is not nil if the trace ends
// here.
func resolve(table dns.Table, services []corev1.Service, d *destination) (*End, error) {
	end := func(o Outcome, reason, format string, args ...any) (*End, error) {
		e := endOf(o, reason, fmt.Sprintf(format, args...))
		return &e, nil
	}
	service, ok := serviceOf(table, d.name)
	if !ok {
		return end(Dropped, "no-import", "%s", d.name)
	}
	addresses, rcode, err := query(table, d.name)
	switch {
	case err != nil:
		return nil, err
	case rcode != miekg.RcodeSuccess && rcode != miekg.RcodeNameError:
		return end(Unknown, "unknown-name", "%s: %s", d.name, miekg.RcodeToString[rcode])
	case len(addresses) == 0 && !slices.ContainsFunc(service.Clusters, isReady):
		return end(Dropped, "no-backend", "%s", d.name)
	case len(addresses) == 0:
		return end(Dropped, "unknown-name", "%s", d.name)
	}
	d.address = addresses[0]
	if d.protocol == "icmp" {
		d.port = 0
	} else if i := slices.IndexFunc(service.Ports, func(p dns.Port) bool {
		return p.Protocol == d.protocol && (d.port == 0 || p.Number == d.port)
	}); i >= 0 {
		d.port = service.Ports[i].Number
	} else if service.Type == dns.ClusterSetIP || d.port == 0 {
		// pods of a headless service have any port
		return end(Dropped, "no-port", "%s has no %s port%s", d.name, d.protocol, strings.TrimSuffix(fmt.Sprintf(" %d", d.port), " 0"))
	}
	for _, s := range services {
		if s.Namespace == service.Namespace && s.Name == service.Name && slices.Contains(s.Spec.ClusterIPs, d.address.String()) {
			return end(Delivered, "own-cluster", "%s is %s", d.name, d.address)
		}
	}
	return nil, nil
}

func isReady(c dns.Cluster) bool {
	return slices.ContainsFunc(c.Endpoints, func(e dns.Endpoint) bool { return e.Ready })
}

// serviceOf is the service of a name <…>.<service>.<namespace>.svc.<zone>.
func serviceOf(t dns.Table, name string) (dns.Service, bool) {
	i := slices.IndexFunc(t.Services, func(s dns.Service) bool {
		return slices.ContainsFunc(t.Zones, func(zone string) bool {
			full := s.Name + "." + s.Namespace + ".svc." + zone
			return name == full || strings.HasSuffix(name, "."+full)
		})
	})
	if i < 0 {
		return dns.Service{}, false
	}
	return t.Services[i], true
}

// query asks the name server's own code.
func query(table dns.Table, name string) (addresses []netip.Addr, rcode int, err error) {
	h := dns.NewHandler(prometheus.NewRegistry())
	if err := h.Set(table); err != nil {
		return nil, 0, err
	}
	var w reply
	h.ServeDNS(&w, new(miekg.Msg).SetQuestion(miekg.Fqdn(name), miekg.TypeA))
	var m miekg.Msg
	if err := m.Unpack(w.bytes); err != nil {
		return nil, 0, fmt.Errorf("read the answer for %s: %w", name, err)
	}
	for _, rr := range m.Answer {
		if a, ok := rr.(*miekg.A); ok {
			if ip, ok := netip.AddrFromSlice(a.A.To4()); ok {
				addresses = append(addresses, ip)
			}
		}
	}
	return addresses, m.Rcode, nil
}

// reply keeps what the handler writes. Of the interface it uses no more.
type reply struct {
	miekg.ResponseWriter
	bytes []byte
}

func (r *reply) RemoteAddr() net.Addr { return &net.TCPAddr{} } // not truncated
func (r *reply) Write(b []byte) (int, error) {
	r.bytes = append(r.bytes, b...)
	return len(b), nil
}
