package v1alpha1

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// check compares errors with one line of text; empty if there is to be none.
func check(t *testing.T, errs field.ErrorList, want string) {
	t.Helper()
	switch {
	case want == "" && len(errs) > 0:
		t.Errorf("found %v", errs)
	case want != "" && (len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), want)):
		t.Errorf("found %v, want %s", errs, want)
	}
}

func TestValidatePropagation(t *testing.T) {
	bad := `{matchExpressions: [{key: a, operator: In}]}`
	for name, tt := range map[string]struct{ spec, namespace, want string }{
		"a selector of the namespace":     {`{resourceSelectors: [{apiVersion: v1, kind: Pod, namespace: shop}, {apiVersion: v1, kind: Pod}]}`, "shop", ""},
		"a selector of another namespace": {`{resourceSelectors: [{apiVersion: v1, kind: Pod, namespace: other}]}`, "shop", `spec.resourceSelectors[0].namespace: Invalid value: "other": must be the namespace of the policy, shop`},
		"a cluster-wide policy":           {`{resourceSelectors: [{apiVersion: v1, kind: Pod, namespace: other}]}`, "", ""},
		"labels of a selector":            {`{resourceSelectors: [{apiVersion: v1, kind: Pod, labelSelector: ` + bad + `}]}`, "", "spec.resourceSelectors[0].labelSelector.matchExpressions[0].values: Required value"},
		"labels of clusters":              {`{resourceSelectors: [], placement: {clusterAffinity: {labelSelector: ` + bad + `}}}`, "", "spec.placement.clusterAffinity.labelSelector.matchExpressions[0].values: Required value"},
		"labels of a group":               {`{resourceSelectors: [], placement: {clusterAffinities: [{affinityName: a, labelSelector: ` + bad + `}]}}`, "", "spec.placement.clusterAffinities[0].labelSelector.matchExpressions[0].values: Required value"},
		"labels of an overflow":           {`{resourceSelectors: [], placement: {clusterAffinities: [{affinityName: a, overflowAffinities: [{affinityName: b, labelSelector: ` + bad + `}]}]}}`, "", "spec.placement.clusterAffinities[0].overflowAffinities[0].labelSelector.matchExpressions[0].values: Required value"},
		"labels of a weight":              {`{resourceSelectors: [], placement: {replicaScheduling: {weightPreference: {staticWeightList: [{weight: 1, targetCluster: {labelSelector: ` + bad + `}}]}}}}`, "", "spec.placement.replicaScheduling.weightPreference.staticWeightList[0].targetCluster.labelSelector.matchExpressions[0].values: Required value"},
	} {
		t.Run(name, func(t *testing.T) { check(t, read[PropagationSpec](t, tt.spec).Validate(tt.namespace), tt.want) })
	}
}

func TestValidateOverride(t *testing.T) {
	rule := func(overriders string) string { return `{overrideRules: [{overriders: ` + overriders + `}]}` }
	for name, tt := range map[string]struct{ spec, want string }{
		"nothing wrong": {rule(`{labelsOverrider: [{operator: add, value: {example.com/a: b}}], annotationsOverrider: [{operator: add, value: {a: "any text"}}],
			fieldOverrider: [{fieldPath: /a, json: [{subPath: /a, operator: remove}, {subPath: /b, operator: add, value: false}]}]}`), ""},
		"a selector of another namespace": {`{resourceSelectors: [{apiVersion: v1, kind: Pod, namespace: other}]}`, "spec.resourceSelectors[0].namespace: Invalid value"},
		"a key of a label":                {rule(`{labelsOverrider: [{operator: add, value: {a~b: c}}]}`), "spec.overrideRules[0].overriders.labelsOverrider[0].value: Invalid value"},
		"a value of a label":              {rule(`{labelsOverrider: [{operator: add, value: {a: b c}}]}`), "spec.overrideRules[0].overriders.labelsOverrider[0].value"},
		"a key of an annotation":          {rule(`{annotationsOverrider: [{operator: add, value: {a~b: c}}]}`), "spec.overrideRules[0].overriders.annotationsOverrider[0].value: Invalid value"},
		"a removal with a value":          {rule(`{fieldOverrider: [{fieldPath: /a, json: [{subPath: /a, operator: remove, value: 1}]}]}`), "spec.overrideRules[0].overriders.fieldOverrider[0].json[0].value: Forbidden: value is not allowed for remove operation"},
		"an addition without value":       {rule(`{fieldOverrider: [{fieldPath: /a, yaml: [{subPath: /a, operator: add}]}]}`), "spec.overrideRules[0].overriders.fieldOverrider[0].yaml[0].value: Required value: value is required for add or replace operation"},
		"a replacement without value":     {rule(`{fieldOverrider: [{fieldPath: /a, json: [{subPath: /a, operator: replace}]}]}`), "spec.overrideRules[0].overriders.fieldOverrider[0].json[0].value: Required value"},
		"the former form":                 {`{overriders: {labelsOverrider: [{operator: add, value: {a~b: c}}]}}`, "spec.overriders.labelsOverrider[0].value: Invalid value"},
		"labels of clusters":              {`{overrideRules: [{targetCluster: {labelSelector: {matchExpressions: [{key: a, operator: In}]}}, overriders: {}}]}`, "spec.overrideRules[0].targetCluster.labelSelector.matchExpressions[0].values: Required value"},
		"labels of clusters, former form": {`{targetCluster: {labelSelector: {matchExpressions: [{key: a, operator: In}]}}}`, "spec.targetCluster.labelSelector.matchExpressions[0].values: Required value"},
	} {
		t.Run(name, func(t *testing.T) { check(t, read[OverrideSpec](t, tt.spec).Validate("shop"), tt.want) })
	}
}

func TestNearOf(t *testing.T) {
	for text, want := range map[string]string{
		`{"cluster": "db"}`: "",
		`{"service": "shop/db", "maxRTT": "20ms", "prefer": false}`: "",
		`cluster: db`:                        "invalid character",
		`{"region": "eu"}`:                   `unknown field "region": use {"cluster": NAME}`,
		`{}`:                                 "set either cluster or service",
		`{"cluster": "a", "service": "b/c"}`: "set either cluster or service",
		`{"cluster": "A"}`:                   `cluster "A" is not the name of a cluster`,
		`{"service": "db"}`:                  `service "db" is not NAMESPACE/NAME`,
		`{"service": "shop/db/x"}`:           `service "shop/db/x" is not NAMESPACE/NAME`,
		`{"cluster": "a", "maxRTT": "20"}`:   "missing unit",
		`{"cluster": "a", "maxRTT": "-1ms"}`: "maxRTT -1ms is out of range",
		`{"cluster": "a", "maxRTT": "2h"}`:   "maxRTT 2h0m0s is out of range",
		`{"cluster": "a", "prefer": false}`:  "it has no effect",
	} {
		p := &PropagationPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Annotations: map[string]string{AnnotationNear: text}}}
		errs := ValidatePropagation(p, p.Spec)
		if want == "" && len(errs) > 0 || want != "" && (len(errs) != 1 || !strings.Contains(errs[0].Error(), want)) {
			t.Errorf("%s: %v, want %q", text, errs, want)
		}
	}
	if n, err := NearOf(nil); n != nil || err != nil {
		t.Errorf("without the annotation: %v, %v", n, err)
	}
}

func TestFailback(t *testing.T) {
	for text, want := range map[string]struct {
		after time.Duration
		err   string
	}{
		"":                  {},
		"Never":             {},
		"WhenHealthy":       {after: 5 * time.Minute},
		"WhenHealthy(10s)":  {after: 10 * time.Second},
		"WhenHealthy(168h)": {after: 168 * time.Hour},
		"WhenHealthy(169h)": {err: "169h0m0s is out of range: set 1s at least and 168h0m0s at most"},
		"WhenHealthy(0s)":   {err: "0s is out of range"},
		"WhenHealthy(-5m)":  {err: "-5m0s is out of range"},
		"WhenHealthy(5)":    {err: "missing unit"},
		"WhenHealthy()":     {err: "invalid duration"},
		"WhenHealthy(5m":    {err: "use Never, WhenHealthy or WhenHealthy(DURATION)"},
		"whenhealthy":       {err: "use Never, WhenHealthy or WhenHealthy(DURATION)"},
		"5m":                {err: "use Never, WhenHealthy or WhenHealthy(DURATION)"},
	} {
		p := &PropagationPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Annotations: map[string]string{AnnotationFailback: text}}}
		errs := ValidatePropagation(p, p.Spec)
		if want.err == "" && len(errs) > 0 || want.err != "" && (len(errs) != 1 || !strings.Contains(errs[0].Error(), want.err) ||
			errs[0].Field != "metadata.annotations[pelago.io/failback]") {
			t.Errorf("%q: %v, want %q", text, errs, want.err)
		}
		if after, _ := FailbackOf(p.Annotations); after != want.after {
			t.Errorf("%q: %s, want %s", text, after, want.after)
		}
	}
}

func TestScoresOf(t *testing.T) {
	for text, want := range map[string]string{
		`{"gpu": 1, "cost": -1000}`: "",
		``:                          "unexpected end of JSON input",
		`{}`:                        "0 scores are named",
		`{"gpu": 0}`:                "the weight 0 of score gpu",
		`{"gpu": 1001}`:             "the weight 1001 of score gpu",
		`{"gpu": 1.5}`:              "json: cannot unmarshal",
		`{"GPU": 1}`:                `score "GPU"`,
		`{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1}`: "9 scores are named",
	} {
		weights, err := ScoresOf(map[string]string{AnnotationScores: text})
		if want == "" && (err != nil || len(weights) != 2) || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%s: %v, %v, want an error that begins with %q", text, weights, err, want)
		}
	}
}

func TestRolloutOf(t *testing.T) {
	for text, want := range map[string]string{
		`{"order": ["tier=canary", "region in (eu, us)"], "maxClusters": 2, "soak": "10m", "stopWhenUnhealthy": false, "progressDeadline": "5m"}`: "",
		`{"maxClusters": 1}`:                 "",
		``:                                   "EOF",
		`{}`:                                 "neither order nor maxClusters",
		`{"maxClusters": 1} {}`:              "there is more than one object",
		`{"maxClusters": 1, "max": 2}`:       `json: unknown field "max"`,
		`{"maxClusters": "1"}`:               "json: cannot unmarshal string",
		`{"maxClusters": -1}`:                "maxClusters -1: set 1 at least",
		`{"maxClusters": 1, "soak": "-1s"}`:  "soak -1s is out of range",
		`{"maxClusters": 1, "soak": "169h"}`: "soak 169h0m0s is out of range",
		`{"maxClusters": 1, "soak": "10"}`:   "time: missing unit",
		`{"order": ["a"], "progressDeadline": "-5m"}`: "progressDeadline -5m0s is out of range",
		`{"order": [""]}`:      `selector "" of order: it is empty`,
		`{"order": ["a=b=c"]}`: `selector "a=b=c" of order:`,
		`{"order": ["a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a"]}`: "order has 17 selectors",
	} {
		p := &PropagationPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Annotations: map[string]string{AnnotationRollout: text}}}
		_, err := RolloutOf(p.Annotations)
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%s: %v, want an error that begins with %q", text, err, want)
		}
		if errs := ValidatePropagation(p, p.Spec); (len(errs) > 0) != (want != "") {
			t.Errorf("%s: the policy has the errors %v, want some: %t", text, errs, want != "")
		}
	}
	r, err := RolloutOf(map[string]string{AnnotationRollout: `{"order": ["tier=canary", "region=eu"]}`})
	if err != nil || r.ProgressDeadline.Duration != 10*time.Minute || !r.Stops() {
		t.Fatalf("%v, %v, want a deadline of 10 minutes and stops", r, err)
	}
	for want, labels := range map[int]map[string]string{1: {"tier": "canary", "region": "eu"}, 2: {"region": "eu"}, 3: nil} {
		if got := r.Wave(labels); got != want {
			t.Errorf("labels %v: wave %d, want %d", labels, got, want)
		}
	}
}
