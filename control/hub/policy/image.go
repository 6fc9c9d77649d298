package policy

import (
	"strings"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// image is a reference in its parts; each may be empty. suffix is a tag with its colon, a digest with its @, or both.
type image struct {
	registry, repository, suffix string
}

// parseImage splits a reference as container runtimes do: the part before the first slash is a registry if it has a dot or a
// port, or is localhost. Nothing is completed: nginx stays nginx.
func parseImage(ref string) (out image) {
	rest := ref
	if head, tail, ok := strings.Cut(rest, "/"); ok && (strings.ContainsAny(head, ".:") || head == "localhost") {
		out.registry, rest = head, tail
	}
	named, _, _ := strings.Cut(rest, "@")
	at := strings.LastIndexByte(named, ':') // a port would be before a slash
	if at < 0 {
		at = len(named)
	}
	out.repository, out.suffix = rest[:at], rest[at:]
	return out
}

func (i image) String() string {
	if i.registry == "" {
		return i.repository + i.suffix
	}
	return i.registry + "/" + i.repository + i.suffix
}

// changeImage adds to a component, replaces or removes it.
func changeImage(ref string, o policyv1alpha1.ImageOverrider) string {
	i := parseImage(ref)
	switch o.Component {
	case policyv1alpha1.Registry:
		i.registry = change(i.registry, o)
	case policyv1alpha1.Repository:
		i.repository = change(i.repository, o)
	case policyv1alpha1.Tag:
		i.suffix = changeSuffix(i.suffix, o)
	}
	return i.String()
}

func change(part string, o policyv1alpha1.ImageOverrider) string {
	switch o.Operator {
	case policyv1alpha1.OverriderOpAdd:
		return part + o.Value
	case policyv1alpha1.OverriderOpReplace:
		return o.Value
	}
	return ""
}

// changeSuffix changes a tag or a digest; a value in the form of a digest becomes one. Of both, the digest is dropped, as in
// Karmada: it is that of the former tag.
func changeSuffix(suffix string, o policyv1alpha1.ImageOverrider) string {
	if tag, _, both := strings.Cut(suffix, "@"); both && tag != "" {
		suffix = tag
	}
	separator, value := "", suffix
	if suffix != "" {
		separator, value = suffix[:1], suffix[1:]
	}
	value = change(value, o)
	if value == "" {
		return ""
	}
	if o.Operator == policyv1alpha1.OverriderOpReplace || separator == "" {
		separator = ":"
		if algorithm, _, digest := strings.Cut(value, ":"); digest && algorithm != "" {
			separator = "@"
		}
	}
	return separator + value
}
