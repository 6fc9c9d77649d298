package placement

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"

	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/util/jsonpath"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// preserve reads the values that statePreservation names from the status of the template in one
// cluster.
func preserve(p *policyv1alpha1.StatePreservation, in *workv1alpha2.AggregatedStatusItem) (map[string]string, error) {
	if p == nil || len(p.Rules) == 0 {
		return nil, nil
	}
	var status any
	if in != nil && in.Status != nil {
		// whole numbers stay whole: as float64 large ones would print as 1e+06
		if err := utiljson.Unmarshal(in.Status.Raw, &status); err != nil {
			return nil, fmt.Errorf("read its status: %w", err)
		}
	}
	out := map[string]string{}
	for _, r := range p.Rules {
		path := jsonpath.New(r.AliasLabelName)
		if err := path.Parse(r.JSONPath); err != nil {
			return nil, fmt.Errorf("statePreservation rule %s: parse %q: %w", r.AliasLabelName, r.JSONPath, err)
		}
		var text bytes.Buffer
		results, err := path.FindResults(status)
		if err != nil {
			return nil, fmt.Errorf("statePreservation rule %s: %w", r.AliasLabelName, err)
		}
		for _, values := range results {
			if slices.ContainsFunc(values, func(v reflect.Value) bool { return v.Kind() == reflect.Interface && v.IsNil() }) {
				return nil, fmt.Errorf("statePreservation rule %s: %s is null", r.AliasLabelName, r.JSONPath)
			}
			if err := path.PrintResults(&text, values); err != nil {
				return nil, fmt.Errorf("statePreservation rule %s: %w", r.AliasLabelName, err)
			}
		}
		if problems := validation.IsValidLabelValue(text.String()); len(problems) > 0 || text.Len() == 0 {
			return nil, fmt.Errorf("statePreservation rule %s: %q is no value of a label: %s", r.AliasLabelName, text.String(), strings.Join(problems, "; "))
		}
		out[r.AliasLabelName] = text.String()
	}
	return out, nil
}

func preservationOf(c *policyv1alpha1.ClusterFailoverBehavior) *policyv1alpha1.StatePreservation {
	if c == nil {
		return nil
	}
	return c.StatePreservation
}
