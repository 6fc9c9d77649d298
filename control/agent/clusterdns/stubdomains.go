package clusterdns

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// kubeDNS is the configuration of kube-dns, which GKE and clusters that came before CoreDNS have:
// https://kubernetes.io/docs/tasks/administer-cluster/dns-custom-nameservers and, before it,
// kubernetes/dns docs/kube-dns.md.
var kubeDNS = Target{ConfigMap: types.NamespacedName{Namespace: Namespace, Name: "kube-dns"}, Key: "stubDomains", Optional: true, stubDomains: true}

// annotationStubDomains of the ConfigMap lists the zones that were added, with commas between: the
// value of the key, JSON, has no room for it.
const annotationStubDomains = "pelago.io/stub-domains"

// applyStub changes the key, a JSON object of name servers by domain, to forward, or not to if f is
// nil, and reports whether that is a change. Entries of others stay as they are.
func (t Target) applyStub(cm *corev1.ConfigMap, f *Forward) (changed bool, err error) {
	domains := map[string][]string{}
	if text := strings.TrimSpace(cm.Data[t.Key]); text != "" {
		if err := json.Unmarshal([]byte(text), &domains); err != nil {
			return false, fmt.Errorf("read key %s: it is no JSON object of lists of addresses, and kube-dns does not use it either: %w", t.Key, err)
		}
	}
	before := maps.Clone(domains)
	owned := strings.FieldsFunc(cm.Annotations[annotationStubDomains], func(r rune) bool { return r == ',' })
	for _, zone := range owned {
		delete(domains, zone)
	}
	var zones []string
	if f != nil {
		checked, err := f.checked()
		if err != nil {
			return false, err
		}
		zones = slices.Sorted(slices.Values(checked.Zones))
		var errs []error
		for _, zone := range zones {
			if others, taken := domains[zone]; taken {
				errs = append(errs, fmt.Errorf("key %s sends %s to %s already: delete that entry", t.Key, zone, strings.Join(others, ", ")))
			}
			domains[zone] = []string{checked.To.String()}
		}
		if err := errors.Join(errs...); err != nil {
			return false, err
		}
	}
	if maps.EqualFunc(before, domains, slices.Equal[[]string]) && slices.Equal(owned, zones) {
		return false, nil
	}
	text := ""
	if len(domains) > 0 {
		out, err := json.Marshal(domains)
		if err != nil {
			return false, fmt.Errorf("write key %s: %w", t.Key, err)
		}
		text = string(out)
	}
	t.set(cm, text)
	if delete(cm.Annotations, annotationStubDomains); len(zones) > 0 {
		if cm.Annotations == nil {
			cm.Annotations = map[string]string{}
		}
		cm.Annotations[annotationStubDomains] = strings.Join(zones, ",")
	}
	return true, nil
}
