package clusterdns

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// OperatorName is the one object of OpenShift's DNS operator, which makes CoreDNS' Corefile from
// it.
const OperatorName = "default"

// operatorKind is foreign: of its fields only spec.servers is read and written, so there is no Go
// type of it.
var operatorKind = schema.GroupVersionKind{Group: "operator.openshift.io", Version: "v1", Kind: "DNS"}

// NewOperator is an empty object of OpenShift's DNS operator, to read into.
func NewOperator() *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(operatorKind)
	return u
}

// operatorServer is the name of our entry of spec.servers; operatorPredecessor is Submariner's.
const operatorServer, operatorPredecessor = "pelago", "lighthouse"

// ApplyOperator makes the object forward as f defines, or stop forwarding if f is nil, and reports
// whether that changed it. The operator has one cache for all zones (spec.cache), which is left as
// it is.
func ApplyOperator(u *unstructured.Unstructured, f *Forward) (changed bool, err error) {
	var checked Forward
	if f != nil {
		if checked, err = f.checked(); err != nil {
			return false, err
		}
	}
	servers, _, err := unstructured.NestedSlice(u.Object, "spec", "servers")
	if err != nil {
		return false, fmt.Errorf("read DNS %s of OpenShift: %w", u.GetName(), err)
	}
	at := -1
	for i, s := range servers {
		server, _ := s.(map[string]any)
		name, _, _ := unstructured.NestedString(server, "name")
		zones, _, _ := unstructured.NestedStringSlice(server, "zones")
		switch {
		case name == operatorServer:
			at = i
		case f == nil:
		case name == operatorPredecessor:
			return false, fmt.Errorf("change DNS %s of OpenShift: spec.servers has Submariner's entry %s; uninstall Submariner's service discovery or delete that entry", u.GetName(), name)
		default:
			if j := slices.IndexFunc(zones, func(z string) bool { return slices.Contains(checked.Zones, z) }); j >= 0 {
				return false, fmt.Errorf("change DNS %s of OpenShift: entry %s of spec.servers has zone %s already; delete it there", u.GetName(), name, zones[j])
			}
		}
	}
	if f == nil {
		if at < 0 {
			return false, nil
		}
		return true, unstructured.SetNestedSlice(u.Object, slices.Delete(servers, at, at+1), "spec", "servers")
	}
	if at < 0 {
		at, servers = len(servers), append(servers, map[string]any{"name": operatorServer})
	}
	// The operator's defaults of the other fields of the entry stay.
	ours, ok := servers[at].(map[string]any)
	if !ok {
		return false, fmt.Errorf("read DNS %s of OpenShift: entry %d of spec.servers is no object", u.GetName(), at)
	}
	zones, _, _ := unstructured.NestedStringSlice(ours, "zones")
	upstreams, _, _ := unstructured.NestedStringSlice(ours, "forwardPlugin", "upstreams")
	if slices.Equal(zones, checked.Zones) && slices.Equal(upstreams, []string{checked.To.String()}) {
		return false, nil
	}
	if err := unstructured.SetNestedStringSlice(ours, checked.Zones, "zones"); err != nil {
		return false, err
	}
	if err := unstructured.SetNestedStringSlice(ours, []string{checked.To.String()}, "forwardPlugin", "upstreams"); err != nil {
		return false, fmt.Errorf("change DNS %s of OpenShift: %w", u.GetName(), err)
	}
	return true, unstructured.SetNestedSlice(u.Object, servers, "spec", "servers")
}
