package node

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Method is a way to learn a public address.
type PublicIPMethod string

// Methods.
const (
	// IPv4 is an address that stands there.
	IPv4 PublicIPMethod = "ipv4"
	// DNS is the lowest A record of a name.
	DNS PublicIPMethod = "dns"
	// LoadBalancer is the address of a Service of type LoadBalancer in our namespace.
	LoadBalancer PublicIPMethod = "lb"
	// API is the first IPv4 address in the answer of an https server.
	API PublicIPMethod = "api"
)

// Source is one entry of the annotation: `<method>:<argument>`. It is comparable.
type PublicIPSource struct {
	Method PublicIPMethod
	// Argument is an IPv4 address, a DNS name, the name of a Service, or host and path of a URL without its scheme.
	Argument string
}

func (s PublicIPSource) String() string { return string(s.Method) + ":" + s.Argument }

// sources reads `<method>:<argument>[,…]`. What is wrong is left out and reported.
func sources(text string) (out []PublicIPSource, errs []error) {
	for entry := range strings.SplitSeq(text, ",") {
		s, err := source(strings.TrimSpace(entry))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, s)
	}
	return out, errs
}

func source(entry string) (PublicIPSource, error) {
	method, argument, _ := strings.Cut(entry, ":")
	s := PublicIPSource{PublicIPMethod(method), strings.TrimSpace(argument)}
	switch s.Method {
	case IPv4:
		address, err := netip.ParseAddr(s.Argument)
		if err != nil {
			return s, fmt.Errorf("%q in %q is no IPv4 address: use ipv4:a.b.c.d", s.Argument, entry)
		}
		if err := usable(address); err != nil {
			return s, fmt.Errorf("read %q: %w: use the address under which other clusters reach this gateway", entry, err)
		}
	case DNS:
		if problems := validation.IsDNS1123Subdomain(strings.ToLower(strings.TrimSuffix(s.Argument, "."))); len(problems) > 0 {
			return s, fmt.Errorf("%q in %q is no DNS name: use dns:gateway.example.org", s.Argument, entry)
		}
	case LoadBalancer:
		if problems := validation.IsDNS1035Label(s.Argument); len(problems) > 0 {
			return s, fmt.Errorf("%q in %q is no name of a Service: use lb:NAME of a Service of type LoadBalancer in our namespace", s.Argument, entry)
		}
	case API:
		s.Argument = strings.TrimPrefix(s.Argument, "https://")
		u, err := url.Parse("https://" + s.Argument)
		if err != nil || u.Hostname() == "" || u.User != nil || strings.Contains(s.Argument, "://") {
			return s, fmt.Errorf("%q in %q is no address of an https server: use api:HOST/PATH", s.Argument, entry)
		}
	default:
		return s, fmt.Errorf("the method of %q is not known: use ipv4:ADDRESS, dns:NAME, lb:SERVICE or api:HOST/PATH, separated by commas", entry)
	}
	return s, nil
}

// usable refuses addresses at which no other cluster can reach a gateway. Private ones are fine: the networks between
// clusters may be private, too.
func usable(a netip.Addr) error {
	switch {
	case !a.Is4():
		return fmt.Errorf("%s is no IPv4 address", a)
	case a.IsUnspecified(), a.IsLoopback(), a.IsMulticast(), a.IsLinkLocalUnicast(), a.As4()[0] == 0, a.As4()[0] >= 240:
		return fmt.Errorf("%s is not the address of a host", a)
	}
	return nil
}

// ErrNoSource is in the Result where the node wants no public address, or none was looked for yet.
var ErrNoSource = errors.New("no " + KeyPublicIP + " is set: no public address is looked up")
