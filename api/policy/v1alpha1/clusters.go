package v1alpha1

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation"
)

// AnnotationClusters of a Namespace of the hub is which clusters the namespace may use; without it,
// or with an empty value, all. The value is that of pelago.io/export-to: a comma list of names, or a
// selector over the labels of Clusters. pelago-hub copies it to the bindings of the namespace. Only
// those with the verb bind on clusters.cluster.karmada.io change it (deploy/propagation/policies).
//
//	pelago.io/clusters: team in (shop,shared),tier!=prod
const AnnotationClusters = "pelago.io/clusters"

// operators of a selector in text that a LabelSelector has.
var operators = map[selection.Operator]metav1.LabelSelectorOperator{
	selection.Equals: metav1.LabelSelectorOpIn, selection.DoubleEquals: metav1.LabelSelectorOpIn, selection.In: metav1.LabelSelectorOpIn,
	selection.NotEquals: metav1.LabelSelectorOpNotIn, selection.NotIn: metav1.LabelSelectorOpNotIn,
	selection.Exists: metav1.LabelSelectorOpExists, selection.DoesNotExist: metav1.LabelSelectorOpDoesNotExist,
}

// ParseClusters reads a value of AnnotationClusters; nil: all clusters.
func ParseClusters(text string) (*ClusterAffinity, error) {
	if text == "" {
		return nil, nil
	}
	if strings.ContainsAny(text, "=!(") {
		selector, err := labels.ParseToRequirements(text)
		out := &metav1.LabelSelector{}
		for _, r := range selector {
			operator, ok := operators[r.Operator()]
			if !ok {
				err = fmt.Errorf("operator %s is not supported", r.Operator())
			}
			out.MatchExpressions = append(out.MatchExpressions, metav1.LabelSelectorRequirement{Key: r.Key(), Operator: operator, Values: r.ValuesUnsorted()})
		}
		if err != nil {
			return nil, fmt.Errorf("annotation %s of the namespace: %q is no label selector: %w", AnnotationClusters, text, err)
		}
		return &ClusterAffinity{LabelSelector: out}, nil
	}
	names := strings.Split(text, ",")
	for i, name := range names {
		names[i] = strings.TrimSpace(name)
		if errs := validation.IsDNS1123Label(names[i]); len(errs) > 0 {
			return nil, fmt.Errorf("annotation %s of the namespace: %q is not the name of a cluster: write a list such as c1,c2, "+
				"or a label selector such as team=shop", AnnotationClusters, names[i])
		}
	}
	return &ClusterAffinity{ClusterNames: names}, nil
}
