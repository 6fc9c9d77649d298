package topology

import (
	"fmt"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

// NATBehavior is how the UDP of pods behind an egress object is translated (RFC 4787).
type NATBehavior struct {
	// Mapped: a pod's address and port are translated to the same egress IP and port for all remote
	// endpoints (REQ-1).
	Mapped bool
	// Open: accepted clusters may send to that IP and port even if the pod has not sent to them
	// (REQ-8).
	Open bool
}

// ParseNATBehavior reads the annotations of an egress object. With an error, it returns the
// default, which is endpoint-dependent.
func ParseNATBehavior(annotations map[string]string) (NATBehavior, error) {
	var b NATBehavior
	for _, a := range []struct {
		key string
		to  *bool
	}{{submarinerv1.AnnotationNATMapping, &b.Mapped}, {submarinerv1.AnnotationNATFiltering, &b.Open}} {
		switch value, ok := annotations[a.key]; {
		case value == submarinerv1.NATEndpointIndependent:
			*a.to = true
		case ok && value != submarinerv1.NATEndpointDependent:
			return NATBehavior{}, fmt.Errorf("annotation %s is %q: use %s or %s",
				a.key, value, submarinerv1.NATEndpointIndependent, submarinerv1.NATEndpointDependent)
		}
	}
	if b.Open && !b.Mapped {
		return NATBehavior{}, fmt.Errorf("annotation %s is %s without mappings to filter: set %s to %s as well",
			submarinerv1.AnnotationNATFiltering, submarinerv1.NATEndpointIndependent, submarinerv1.AnnotationNATMapping, submarinerv1.NATEndpointIndependent)
	}
	return b, nil
}

func (b NATBehavior) String() string {
	mapping, filtering := submarinerv1.NATEndpointDependent, submarinerv1.NATEndpointDependent
	if b.Mapped {
		mapping = submarinerv1.NATEndpointIndependent
	}
	if b.Open {
		filtering = submarinerv1.NATEndpointIndependent
	}
	return fmt.Sprintf("UDP has mapping %s and filtering %s", mapping, filtering)
}
