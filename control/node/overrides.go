package node

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Keys of a node's annotations and labels (names and meaning are Submariner's).
const (
	AnnotationPrefix   = "gateway.submariner.io/"
	KeyPublicIP        = AnnotationPrefix + "public-ip"
	KeyUDPPort         = AnnotationPrefix + "udp-port"
	KeyDiscoveryPort   = AnnotationPrefix + "natt-discovery-port"
	KeyPreferredServer = AnnotationPrefix + "preferred-server"
)

// Overrides is what a node says about its own gateway. Zero values: it says nothing.
type Overrides struct {
	// PublicIP lists where the public address comes from, in order of trial.
	PublicIP []PublicIPSource
	// UDPPort is the port of the cable.
	UDPPort uint16
	// DiscoveryPort is the UDP port of NAT discovery.
	DiscoveryPort uint16
	// PreferredServer says that this gateway waits for others to open the connection.
	PreferredServer bool
}

// Parse reads the annotations and labels of a node; an annotation beats the label of the same key. What is wrong is left
// out and named in one error each: the node, the key, and what would be right. None of them is fatal.
func ParseOverrides(node string, labels, annotations map[string]string) (Overrides, []error) {
	var o Overrides
	var errs []error
	values := map[string]string{}
	kinds := map[string]string{}
	for _, from := range []struct {
		kind   string
		values map[string]string
	}{{"label", labels}, {"annotation", annotations}} {
		for key, value := range from.values {
			if strings.HasPrefix(key, AnnotationPrefix) {
				values[key], kinds[key] = value, from.kind
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		value, err := strings.TrimSpace(values[key]), error(nil)
		switch key {
		case KeyPublicIP:
			var problems []error
			o.PublicIP, problems = sources(value)
			for _, p := range problems {
				errs = append(errs, located(node, kinds[key], key, p))
			}
		case KeyUDPPort:
			o.UDPPort, err = port(value)
		case KeyDiscoveryPort:
			o.DiscoveryPort, err = port(value)
		case KeyPreferredServer:
			if o.PreferredServer, err = strconv.ParseBool(value); err != nil {
				err = fmt.Errorf("%q is neither true nor false: use one of them", value)
			}
		default:
			err = errors.New("the key is not known: use public-ip, udp-port, natt-discovery-port or preferred-server, or remove it")
		}
		if err != nil {
			errs = append(errs, located(node, kinds[key], key, err))
		}
	}
	return o, errs
}

func located(node, kind, key string, err error) error {
	return fmt.Errorf("read %s %s of node %s: %w", kind, key, node, err)
}

func port(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is no UDP port: use a number from 1 to 65535", text)
	}
	return uint16(n), nil
}
