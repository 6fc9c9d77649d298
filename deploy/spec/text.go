package spec

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pelago-net/pelago/control/agent/clusterdns"
)

// Args are the flags by which a user gets the same Member: those of fields that differ from their
// defaults, sorted.
func (m Member) Args() []string {
	preset := Texts(DefaultMember())
	var out []string
	for flag, text := range Texts(m) {
		switch {
		case text == preset[flag]:
		case text == "true":
			out = append(out, "--"+flag)
		default:
			out = append(out, "--"+flag+"="+text)
		}
	}
	slices.Sort(out)
	return out
}

// Texts are the values of the fields of a Member or a Broker in the form of their flags, by flag.
func Texts(of any) map[string]string {
	out := map[string]string{}
	for _, f := range fields(reflect.ValueOf(of)) {
		if flag := f.tag.Get("flag"); flag != "" {
			out[flag] = text(f.value.Interface())
		}
	}
	return out
}

func text(value any) string {
	switch v := value.(type) {
	case netip.Prefix:
		if !v.IsValid() {
			return ""
		}
		return v.String()
	case []netip.Prefix:
		return (*ranges)(&v).String()
	case []string:
		return strings.Join(v, ",")
	case *string:
		if v == nil || *v == "" {
			return ""
		}
		return clusterdns.Namespace + "/" + *v
	case map[string]string:
		var labels []string
		for _, key := range slices.Sorted(maps.Keys(v)) {
			labels = append(labels, key+"="+v[key])
		}
		return strings.Join(labels, ",")
	case []corev1.Toleration:
		var texts []string
		for _, t := range v {
			texts = append(texts, tolerationText(t))
		}
		return strings.Join(texts, ",")
	default:
		return fmt.Sprint(v)
	}
}
