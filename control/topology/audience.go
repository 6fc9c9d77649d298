package topology

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	maxClusterID = 48   // characters
	maxNamed     = 1023 // clusters of a clusterset
)

// Audience is the set of clusters to which a service is exported (annotation pelago.io/export-to of
// a ServiceExport).
type Audience struct {
	named    []string        // sorted
	selector labels.Selector // nil: clusters are named
}

// ParseAudience reads a comma list of cluster ids, or a label selector over the labels that the
// administrator of the hub gave to the clusters. A word alone is the id of a cluster: write `key in
// (a,b)`, `key=value` or `!key` to select.
func ParseAudience(text string) (Audience, error) {
	if strings.ContainsAny(text, "=!(") {
		selector, err := labels.Parse(text)
		if err != nil {
			return Audience{}, fmt.Errorf("%q is no label selector: %w", text, err)
		}
		return Audience{selector: selector}, nil
	}
	var a Audience
	for word := range strings.SplitSeq(text, ",") {
		id := strings.TrimSpace(word)
		if id == "" {
			return Audience{}, errors.New("the name of a cluster is empty: write a list such as c1,c2, or a label selector such as env=prod")
		}
		if errs := validation.IsDNS1123Label(id); len(errs) > 0 || len(id) > maxClusterID {
			return Audience{}, fmt.Errorf("%q is no cluster id, which is an RFC 1123 label of at most %d characters", id, maxClusterID)
		}
		a.named = append(a.named, id)
	}
	slices.Sort(a.named)
	a.named = slices.Compact(a.named)
	if len(a.named) > maxNamed {
		return Audience{}, fmt.Errorf("%d clusters are named, a clusterset has at most %d", len(a.named), maxNamed)
	}
	return a, nil
}

// Includes reports whether a cluster with these labels is in the audience.
func (a Audience) Includes(id string, of map[string]string) bool {
	if a.selector != nil {
		return a.selector.Matches(labels.Set(of))
	}
	return slices.Contains(a.named, id)
}

// Named are the clusters that are named; empty if they are selected by labels.
func (a Audience) Named() []string { return slices.Clone(a.named) }
