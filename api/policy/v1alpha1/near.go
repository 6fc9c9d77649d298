package v1alpha1

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// AnnotationNear of a propagation policy places its templates by the round-trip time to a cluster
// or an exported service, as the probes of the data path measure it. The value is JSON of Near:
//
//	pelago.io/near: '{"service": "shop/db", "maxRTT": "20ms"}'
const AnnotationNear = "pelago.io/near"

// Near is the value of AnnotationNear: a cluster or a service, and how near.
//
// +kubebuilder:object:generate=false
type Near struct {
	// Cluster is the name of a cluster.
	Cluster string `json:"cluster,omitempty"`
	// Service is the namespace and name of an exported service: the nearest of the clusters that
	// export it counts.
	Service string `json:"service,omitempty"`
	// MaxRTT excludes clusters at a longer round-trip time, and those for which there is no
	// measurement.
	MaxRTT *metav1.Duration `json:"maxRTT,omitempty"`
	// Prefer orders clusters by their round-trip time: spread constraints select the nearest ones,
	// a division by capacity fills them first, and a template leaves a cluster if another one is
	// much nearer. nil: true.
	Prefer *bool `json:"prefer,omitempty"`
}

// NearOf reads AnnotationNear of a policy or a binding; nil: it has none.
func NearOf(annotations map[string]string) (*Near, error) {
	text, ok := annotations[AnnotationNear]
	if !ok {
		return nil, nil
	}
	var n Near
	d := json.NewDecoder(bytes.NewBufferString(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&n); err != nil {
		return nil, fmt.Errorf(`%w: use {"cluster": NAME} or {"service": "NAMESPACE/NAME"}, with "maxRTT": "20ms" and "prefer": false if wanted`, err)
	}
	if err := n.validate(); err != nil {
		return nil, err
	}
	return &n, nil
}

func (n *Near) validate() error {
	switch namespace, name, ok := strings.Cut(n.Service, "/"); {
	case (n.Cluster == "") == (n.Service == ""):
		return fmt.Errorf("set either cluster or service")
	case n.Cluster != "" && len(validation.IsDNS1123Label(n.Cluster)) > 0:
		return fmt.Errorf("cluster %q is not the name of a cluster: %s", n.Cluster, validation.IsDNS1123Label(n.Cluster)[0])
	case n.Service != "" && (!ok || len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1035Label(name)) > 0):
		return fmt.Errorf("service %q is not NAMESPACE/NAME", n.Service)
	case n.MaxRTT != nil && (n.MaxRTT.Duration <= 0 || n.MaxRTT.Duration > time.Minute):
		return fmt.Errorf("maxRTT %s is out of range: set more than 0 and 1m at most", n.MaxRTT.Duration)
	case n.MaxRTT == nil && !n.Prefers():
		return fmt.Errorf("without maxRTT and with prefer false it has no effect: remove it, or set one")
	}
	return nil
}

// Prefers reports whether clusters are ordered by their round-trip time.
func (n *Near) Prefers() bool { return n.Prefer == nil || *n.Prefer }

func (n *Near) String() string {
	if n.Cluster != "" {
		return "cluster " + n.Cluster
	}
	return "service " + n.Service
}
