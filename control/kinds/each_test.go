package kinds

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

func TestOfEachCluster(t *testing.T) {
	for text, want := range map[string]bool{
		`{apiVersion: v1, kind: ConfigMap, metadata: {namespace: shop, name: kube-root-ca.crt}}`:                                                                 true,
		`{apiVersion: v1, kind: ConfigMap, metadata: {namespace: shop, name: settings}}`:                                                                         false,
		`{apiVersion: v1, kind: Secret, metadata: {namespace: shop, name: kube-root-ca.crt}}`:                                                                    false,
		`{apiVersion: v1, kind: Service, metadata: {namespace: default, name: kubernetes}}`:                                                                      true,
		`{apiVersion: v1, kind: Service, metadata: {namespace: shop, name: kubernetes}}`:                                                                         false,
		`{apiVersion: v1, kind: Endpoints, metadata: {namespace: default, name: kubernetes}}`:                                                                    true,
		`{apiVersion: v1, kind: Namespace, metadata: {name: default}}`:                                                                                           true,
		`{apiVersion: v1, kind: Namespace, metadata: {name: shop}}`:                                                                                              false,
		`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: admin, labels: {kubernetes.io/bootstrapping: rbac-defaults}}}`:           true,
		`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: "shop:reader"}}`:                                                         false,
		`{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: system-node-critical}}`:                                                        true,
		`{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: gold}}`:                                                                        false,
		`{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1.apps, labels: {kube-aggregator.kubernetes.io/automanaged: onstart}}}`:     true,
		`{apiVersion: flowcontrol.apiserver.k8s.io/v1, kind: FlowSchema, metadata: {name: catch-all, annotations: {apf.kubernetes.io/autoupdate-spec: "true"}}}`: true,
		`{apiVersion: flowcontrol.apiserver.k8s.io/v1, kind: FlowSchema, metadata: {name: mine}}`:                                                                false,
	} {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), o); err != nil {
			t.Fatal(err)
		}
		if got := OfEachCluster(o.GroupVersionKind().GroupKind(), o); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}
