package v1alpha1

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// What has the fields of Kubernetes' types converts to them.
var (
	_ = corev1.Toleration(Toleration{})
	_ = corev1.NodeSelectorRequirement(FieldSelectorRequirement{})
)

// read reads a spec; the defaults of the schema are not applied.
func read[T any](t *testing.T, text string) T {
	t.Helper()
	var spec T
	if err := yaml.UnmarshalStrict([]byte(text), &spec); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return spec
}

func TestDefaultedPropagation(t *testing.T) {
	for name, tt := range map[string]struct{ given, want, namespace string }{
		"selectors are of the policy's namespace": {
			given: `{resourceSelectors: [{apiVersion: v1, kind: Pod}, {apiVersion: v1, kind: Pod, namespace: other}]}`, namespace: "shop",
			want: `{resourceSelectors: [{apiVersion: v1, kind: Pod, namespace: shop}, {apiVersion: v1, kind: Pod, namespace: other}]}`},
		"selectors of a cluster-wide policy are of all": {
			given: `{resourceSelectors: [{apiVersion: v1, kind: Pod}]}`, want: `{resourceSelectors: [{apiVersion: v1, kind: Pod}]}`},
		"a ServiceImport brings its dependents": {
			given: `{resourceSelectors: [{apiVersion: multicluster.x-k8s.io/v1alpha1, kind: ServiceImport}]}`,
			want:  `{propagateDeps: true, resourceSelectors: [{apiVersion: multicluster.x-k8s.io/v1alpha1, kind: ServiceImport}]}`},
		"the former name of propagateDeps": {
			given: `{association: true, resourceSelectors: []}`, want: `{association: true, propagateDeps: true, resourceSelectors: []}`},
		"a spread constraint that says nothing": {
			given: `{resourceSelectors: [], placement: {spreadConstraints: [{maxGroups: 3}, {spreadByLabel: rack}, {spreadByField: region, minGroups: 2}]}}`,
			want:  `{resourceSelectors: [], placement: {spreadConstraints: [{spreadByField: cluster, minGroups: 1, maxGroups: 3}, {spreadByLabel: rack, minGroups: 1}, {spreadByField: region, minGroups: 2}]}}`},
		"division is weighted": {
			given: `{resourceSelectors: [], placement: {replicaScheduling: {replicaSchedulingType: Divided}}}`,
			want:  `{resourceSelectors: [], placement: {replicaScheduling: {replicaSchedulingType: Divided, replicaDivisionPreference: Weighted}}}`},
		"duplication is not": {
			given: `{resourceSelectors: [], placement: {replicaScheduling: {replicaSchedulingType: Duplicated}}}`,
			want:  `{resourceSelectors: [], placement: {replicaScheduling: {replicaSchedulingType: Duplicated}}}`},
		"ten minutes of grace": {
			given: `{resourceSelectors: [], failover: {application: {decisionConditions: {}, purgeMode: Gracefully}}}`,
			want:  `{resourceSelectors: [], failover: {application: {decisionConditions: {}, purgeMode: Gracefully, gracePeriodSeconds: 600}}}`},
		"the former names of purge modes": {
			given: `{resourceSelectors: [], failover: {application: {decisionConditions: {}, purgeMode: Graciously}}}`,
			want:  `{resourceSelectors: [], failover: {application: {decisionConditions: {}, purgeMode: Gracefully, gracePeriodSeconds: 600}}}`},
		"the former name of Directly": {
			given: `{resourceSelectors: [], failover: {application: {decisionConditions: {}, purgeMode: Immediately}}}`,
			want:  `{resourceSelectors: [], failover: {application: {decisionConditions: {}, purgeMode: Directly}}}`},
		"no grace for Directly": {
			given: `{resourceSelectors: [], failover: {application: {decisionConditions: {}, purgeMode: Directly}, cluster: {purgeMode: Gracefully}}}`,
			want:  `{resourceSelectors: [], failover: {application: {decisionConditions: {}, purgeMode: Directly}, cluster: {purgeMode: Gracefully}}}`},
	} {
		t.Run(name, func(t *testing.T) {
			given := read[PropagationSpec](t, tt.given)
			if diff := cmp.Diff(read[PropagationSpec](t, tt.want), given.Defaulted(tt.namespace)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if diff := cmp.Diff(read[PropagationSpec](t, tt.given), given); diff != "" {
				t.Errorf("the given spec was changed:\n%s", diff)
			}
		})
	}
}

func TestDefaultedOverride(t *testing.T) {
	for name, tt := range map[string]struct{ given, want string }{
		"selectors are of the policy's namespace": {
			given: `{resourceSelectors: [{apiVersion: v1, kind: Pod}], overrideRules: [{overriders: {}}]}`,
			want:  `{resourceSelectors: [{apiVersion: v1, kind: Pod, namespace: shop}], overrideRules: [{overriders: {}}]}`},
		"the former form becomes a rule": {
			given: `{targetCluster: {clusterNames: [m1]}, overriders: {plaintext: [{path: /a, operator: remove}]}}`,
			want:  `{overrideRules: [{targetCluster: {clusterNames: [m1]}, overriders: {plaintext: [{path: /a, operator: remove}]}}]}`},
		"empty overriders beside rules stay": {
			given: `{overriders: {}, overrideRules: [{overriders: {}}]}`, want: `{overriders: {}, overrideRules: [{overriders: {}}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			given := read[OverrideSpec](t, tt.given)
			if diff := cmp.Diff(read[OverrideSpec](t, tt.want), given.Defaulted("shop")); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if diff := cmp.Diff(read[OverrideSpec](t, tt.given), given); diff != "" {
				t.Errorf("the given spec was changed:\n%s", diff)
			}
		})
	}
}
